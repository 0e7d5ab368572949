//! Ranks train apart and come together now and then.

use regatta_ir::{Error, Layout, Op, Origin, Program, Programs, Role, VarDef};
use regatta_ops::update_rule;
use regatta_optim::Rule;

use crate::gradient_merge::Periodic;
use crate::infer_types::push_op;
use crate::{checked, refuse_buffers, refused};

const PASS: &str = "local_sgd";
/// Ending of the names of snapshots.
const SNAPSHOT: &str = "@SNAPSHOT";

/// Name of the value of a parameter that all ranks had when they last came together.
pub fn snapshot_name(param: &str) -> String {
    format!("{param}{SNAPSHOT}")
}

/// Whether a variable is such a value. When ranks are together it equals the parameter.
pub fn is_snapshot(name: &str) -> bool {
    name.ends_with(SNAPSHOT)
}

/// Leaves the training program as it is and makes a second one that brings `ranks` ranks together:
/// every rank subtracts its parameters from the snapshot that all have in common, the differences
/// are added up, and snapshot and parameters move by their mean. Of a table only rows that moved
/// travel.
///
/// # Errors
/// If a parameter is updated by a rule other than `sgd` and `momentum`: those are linear in the
/// gradients, so that averages of parameters are what averages of gradients would have given.
pub fn local_sgd(programs: &Programs, ranks: usize) -> Result<Periodic, Error> {
    refuse_buffers(&programs.main, PASS)?;
    let mut each = programs.clone();
    let mut then = Program::new("local_sgd_sync");
    let mut updated = Vec::new();
    for op in &programs.main.block().ops {
        match update_rule(op)? {
            None => continue,
            Some(Rule::Sgd(_) | Rule::Momentum(_)) => {}
            Some(_) => {
                let reason = format!(
                    "'{}' is updated by {}, but averages of parameters need sgd or momentum",
                    op.ins("Param")[0],
                    op.kind
                );
                return refused(PASS, reason);
            }
        }
        let grad = &programs.main.block().var(&op.ins("Grad")[0], PASS)?.ty;
        updated.push((op.ins("Param")[0].clone(), grad.layout == Layout::Rows));
    }
    if updated.is_empty() {
        return refused(PASS, "the program updates nothing; call minimize first");
    }
    for (param, _) in &updated {
        let snapshot = snapshot_name(param);
        let var = programs.main.block().var(param, PASS)?.clone();
        let kept = VarDef::new(&snapshot, var.ty.clone(), Origin::Persist);
        let startup = each.startup.block_mut();
        startup.declare(kept.clone())?;
        startup.ops.push(Op::new("assign").input("X", param).output("Out", &snapshot));
        then.block_mut().declare(var)?;
        then.block_mut().declare(kept)?;
    }
    for (param, by_row) in &updated {
        send(&mut then, param, *by_row)?;
    }
    for (param, by_row) in &updated {
        receive(&mut then, param, *by_row, ranks)?;
    }
    each.startup = checked(each.startup)?;
    Ok(Periodic { each, then: checked(then)? })
}

fn delta_name(param: &str) -> String {
    format!("{param}@DELTA")
}

fn send(then: &mut Program, param: &str, by_row: bool) -> Result<(), Error> {
    let (delta, block) = (delta_name(param), then.block_mut());
    let op = Op::new("snapshot_delta")
        .input("Snapshot", &snapshot_name(param))
        .input("Param", param)
        .attr("by_row", by_row)
        .output("Out", &delta);
    push_op(block, op.role(Role::Optimize))?;
    let kind = if by_row { "gather_rows_start" } else { "all_reduce_start" };
    let start = Op::new(kind).input("X", &delta).attr("name", delta.as_str());
    push_op(block, start.output("Handle", &format!("{delta}@COMM")).role(Role::Optimize))
}

fn receive(then: &mut Program, param: &str, by_row: bool, ranks: usize) -> Result<(), Error> {
    let (delta, snapshot, block) = (delta_name(param), snapshot_name(param), then.block_mut());
    let kind = if by_row { "gather_rows_wait" } else { "all_reduce_wait" };
    let wait = Op::new(kind)
        .input("Handle", &format!("{delta}@COMM"))
        .input("X", &delta)
        .attr("name", delta.as_str())
        .output("XOut", &delta);
    push_op(block, wait.role(Role::Optimize))?;
    let apply = Op::new("apply_delta")
        .input("Delta", &delta)
        .input("Param", param)
        .input("Snapshot", &snapshot)
        .attr("scale", 1.0 / ranks as f64)
        .output("ParamOut", param)
        .output("SnapshotOut", &snapshot);
    push_op(block, apply.role(Role::Optimize))
}
