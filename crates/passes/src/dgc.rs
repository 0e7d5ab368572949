//! Deep gradient compression: of large gradients only the largest entries travel.

use regatta_ir::{Attr, Error, Layout, Op, Programs};
use regatta_ops::update_rule;
use regatta_optim::Rule;

use crate::infer_types::insert_op;
use crate::{checked, refuse_buffers, refused};

const PASS: &str = "dgc";

/// When and how much is left at home; Paddle's `dgc_configs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dgc {
    /// Until this step, gradients travel whole.
    pub rampup_begin_step: u64,
    /// Number of steps over which the list of sparsities is walked through.
    pub rampup_step: u64,
    /// Fractions of the entries that are deferred; the last one stays in force.
    pub sparsity: Vec<f64>,
    /// Smaller parameters travel whole (16384 elements).
    pub min_elements: usize,
}

impl Default for Dgc {
    fn default() -> Dgc {
        let sparsity = vec![0.999];
        Dgc { rampup_begin_step: 0, rampup_step: 1, sparsity, min_elements: 16384 }
    }
}

/// Replaces the all-reduce and the momentum update of every large dense parameter of a
/// data-parallel program. Momentum is kept at home with the entries that have not travelled yet.
///
/// # Errors
/// If a parameter is updated by another rule than `momentum`, gradients are clipped, or there is
/// nothing to compress.
pub fn dgc(programs: &Programs, how: &Dgc) -> Result<Programs, Error> {
    refuse_buffers(&programs.main, PASS)?;
    let mut programs = programs.clone();
    let clips = ["clip_by_value", "clip_by_norm", "global_norm_factor"];
    if let Some(op) = programs.main.block().ops.iter().find(|op| clips.contains(&op.kind.as_str()))
    {
        let reason = format!(
            "the program limits gradients (op {}), but what dgc sends are entries of several \
             steps; leave out the limit or dgc",
            op.kind
        );
        return refused(PASS, reason);
    }
    let mut compressed = 0;
    let updates: Vec<Op> = programs.main.block().ops.clone();
    for op in &updates {
        let Some(rule) = update_rule(op)? else { continue };
        let param = &op.ins("Param")[0];
        let Rule::Momentum(_) = rule else {
            let reason = format!("'{param}' is updated by {}, but dgc needs momentum", op.kind);
            return refused(PASS, reason);
        };
        if !op.ins("Skip").is_empty() {
            let reason = "the loss is scaled (amp), but deferred entries would have another scale \
                          than those that come later; use amp with bfloat16, or leave out dgc";
            return refused(PASS, reason);
        }
        let grad = regatta_ir::grad_name(param);
        let ty = &programs.main.block().var(&grad, PASS)?.ty;
        let large = ty.numel().is_some_and(|n| n >= how.min_elements);
        if ty.layout == Layout::Dense && large {
            compress(&mut programs, op, how)?;
            compressed += 1;
        }
    }
    if compressed == 0 {
        let n = how.min_elements;
        let reason =
            format!("no dense parameter has {n} elements or more, so nothing would change");
        return refused(PASS, reason);
    }
    programs.main = checked(programs.main)?;
    programs.startup = checked(programs.startup)?;
    Ok(programs)
}

fn compress(programs: &mut Programs, update: &Op, how: &Dgc) -> Result<(), Error> {
    let param = update.ins("Param")[0].clone();
    let grad = regatta_ir::grad_name(&param);
    let ty = programs.main.block().var(&param, PASS)?.ty.clone();
    let (u, v) = (format!("{param}_dgc_u_0"), format!("{param}_dgc_v_0"));
    programs.add_state(&u, ty.clone(), 0.0)?;
    programs.add_state(&v, ty, 0.0)?;
    let block = programs.main.block_mut();
    let exchanges = |op: &Op, kind: &str| op.kind == kind && op.ins("X") == [grad.clone()];
    let Some(at) = block.ops.iter().position(|op| exchanges(op, "all_reduce_start")) else {
        return refused(
            PASS,
            format!("'{grad}' is not all-reduced by itself; apply data_parallel first"),
        );
    };
    let old = block.ops.remove(at);
    let (handle, name) = (old.outs("Handle")[0].clone(), old.str("name")?.to_string());
    block.vars.shift_remove(&handle);
    let begin = how.rampup_begin_step as i64;
    let start = Op::new("dgc_start")
        .input("Grad", &grad)
        .input("U", &u)
        .input("V", &v)
        .attr("name", name.as_str())
        .attr("mu", update.attrs["mu"].clone())
        .attr("nesterov", update.attrs["nesterov"].clone())
        .attr("rampup_begin_step", begin)
        .attr("rampup_step", how.rampup_step as i64)
        .attr("sparsity", how.sparsity.clone())
        .output("Handle", &handle)
        .output("UOut", &u)
        .output("VOut", &v);
    insert_op(block, at, start.role(old.role))?;
    let waits = |op: &Op| exchanges(op, "all_reduce_wait");
    let wait = block.ops.iter_mut().find(|op| waits(op)).expect("what is started is waited for");
    wait.kind = "dgc_wait".into();
    let update = block.ops.iter_mut().find(|op| *op == update).expect("it is one of them");
    update.kind = "dgc_momentum".into();
    update.attrs.insert("rampup_begin_step".into(), Attr::Int(begin));
    for (slot, _) in update.inputs.iter_mut().filter(|(slot, _)| slot == "States") {
        *slot = "Velocity".into();
    }
    for (slot, _) in update.outputs.iter_mut().filter(|(slot, _)| slot == "StatesOut") {
        *slot = "VelocityOut".into();
    }
    Ok(())
}
