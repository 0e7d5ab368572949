//! Ranks divide optimizer state between them (ZeRO): each parameter is updated by one rank, which
//! alone keeps its state, and then brought to all.

use std::collections::HashSet;

use regatta_ir::{Error, Layout, Op, Program, Programs, Role};
use regatta_ops::update_rule;

use crate::infer_types::{insert_op, push_op};
use crate::{checked, refuse_buffers, refused};

const PASS: &str = "sharding";

/// Who divides what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// Number of ranks.
    pub ranks: usize,
    /// This rank.
    pub rank: usize,
    /// 1: all ranks get all gradients. 2: only the rank that updates a parameter gets its gradient;
    /// gradients of tables still go to all, because all need to know which rows change.
    pub stage: u32,
}

/// Leaves to this rank the updates and states of its partition of the parameters in a data-parallel
/// program, and lets all ranks take over what the others updated. Parameters are divided so that
/// ranks have about as many elements.
///
/// # Errors
/// If the program does not exchange its gradients, or stage 2 meets an op that needs all gradients.
pub fn sharding(programs: &Programs, how: Sharding) -> Result<Programs, Error> {
    refuse_buffers(&programs.main, PASS)?;
    if !(1..=2).contains(&how.stage) {
        return refused(PASS, format!("there is no stage {}; stages are 1 and 2", how.stage));
    }
    let mut programs = programs.clone();
    let owners = owners(&programs.main, how.ranks)?;
    if how.stage == 2 {
        for (param, owner) in &owners {
            reduce_to_owner(&mut programs.main, param, *owner)?;
        }
    }
    let foreign: HashSet<&str> =
        owners.iter().filter(|(_, owner)| *owner != how.rank).map(|(p, _)| p.as_str()).collect();
    let states = drop_updates(&mut programs.main, &foreign)?;
    if how.stage == 2 {
        drop_unused_gradient_ops(&mut programs.main);
    }
    for (param, owner) in &owners {
        broadcast(&mut programs.main, param, *owner)?;
    }
    for (param, _) in &owners {
        take_over(&mut programs.main, param)?;
    }
    for block in [programs.main.block_mut(), programs.startup.block_mut()] {
        block.ops.retain(|op| !op.output_vars().any(|v| states.contains(v)));
        block.vars.retain(|name, _| !states.contains(name.as_str()));
    }
    programs.main = checked(programs.main)?;
    programs.startup = checked(programs.startup)?;
    Ok(programs)
}

/// The rank that updates each parameter: the largest ones first, each to the rank that has least.
fn owners(program: &Program, ranks: usize) -> Result<Vec<(String, usize)>, Error> {
    let block = program.block();
    let mut params = Vec::new();
    for op in &block.ops {
        if update_rule(op)?.is_some() {
            let name = op.ins("Param")[0].clone();
            params.push((block.var(&name, PASS)?.ty.numel().unwrap_or(0), name));
        }
    }
    if params.is_empty() || !block.ops.iter().any(|op| op.kind == "scale_by_share") {
        return refused(PASS, "the program does not exchange gradients; apply data_parallel first");
    }
    let mut by_size: Vec<usize> = (0..params.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(params[i].0), i));
    let (mut loads, mut owner) = (vec![0usize; ranks.max(1)], vec![0; params.len()]);
    for i in by_size {
        let least = (0..loads.len()).min_by_key(|&r| (loads[r], r)).unwrap_or(0);
        owner[i] = least;
        loads[least] += params[i].0.max(1);
    }
    Ok(params.into_iter().map(|(_, name)| name).zip(owner).collect())
}

/// Turns the all-reduce of a dense gradient into a reduce.
fn reduce_to_owner(program: &mut Program, param: &str, owner: usize) -> Result<(), Error> {
    let grad = regatta_ir::grad_name(param);
    for op in &mut program.block_mut().ops {
        if op.ins("X") != [grad.clone()] {
            continue;
        }
        match op.kind.as_str() {
            "all_reduce_start" => {
                op.kind = "reduce_start".into();
                op.attrs.retain(|name, _| name == "name");
                op.attrs.insert("root".into(), (owner as i64).into());
            }
            "all_reduce_wait" => op.kind = "reduce_wait".into(),
            _ => {}
        }
    }
    let block = program.block();
    let needs_all = |op: &&Op| ["global_norm_factor", "check_finite"].contains(&op.kind.as_str());
    match block.ops.iter().find(needs_all) {
        Some(op) => refused(
            PASS,
            format!(
                "op {} needs all gradients, but in stage 2 each rank has those that it updates; \
                 use stage 1",
                op.kind
            ),
        ),
        None => Ok(()),
    }
}

/// Drops the updates of parameters that other ranks own; returns the states that are needed no
/// more.
fn drop_updates(program: &mut Program, foreign: &HashSet<&str>) -> Result<HashSet<String>, Error> {
    let block = program.block_mut();
    let mut states = HashSet::new();
    let mut kept = Vec::with_capacity(block.ops.len());
    for op in std::mem::take(&mut block.ops) {
        let other = update_rule(&op)?.is_some() && foreign.contains(op.ins("Param")[0].as_str());
        if other {
            states.extend(op.ins("States").iter().cloned());
        } else {
            kept.push(op);
        }
    }
    block.ops = kept;
    Ok(states)
}

/// Drops regularization and limits of gradients that are not here.
fn drop_unused_gradient_ops(program: &mut Program) {
    let block = program.block_mut();
    loop {
        let read: HashSet<String> =
            block.ops.iter().flat_map(|op| op.input_vars().map(str::to_string)).collect();
        let before = block.ops.len();
        let works_on_gradient =
            ["clip_by_value", "clip_by_norm", "scale_by", "l1_decay", "l2_decay"];
        block.ops.retain(|op| {
            !works_on_gradient.contains(&op.kind.as_str())
                || op.output_vars().any(|v| read.contains(v))
        });
        if block.ops.len() == before {
            break;
        }
    }
    let gone: Vec<String> = block
        .vars
        .values()
        .filter(|v| v.name.contains("@GRAD@"))
        .filter(|v| {
            !block.ops.iter().any(|op| op.input_vars().chain(op.output_vars()).any(|n| n == v.name))
        })
        .map(|v| v.name.clone())
        .collect();
    gone.iter().for_each(|name| {
        block.vars.shift_remove(name);
    });
}

fn exchange_name(param: &str) -> String {
    format!("{param}@SHARD")
}

/// Sends a parameter on its way as soon as its owner has updated it.
fn broadcast(program: &mut Program, param: &str, owner: usize) -> Result<(), Error> {
    let grad = regatta_ir::grad_name(param);
    let block = program.block_mut();
    let (name, root) = (exchange_name(param), owner as i64);
    let rows = block.var(&grad, PASS)?.ty.layout == Layout::Rows;
    let start = if rows {
        Op::new("broadcast_rows_start").input("Param", param).input("Grad", &grad)
    } else {
        Op::new("broadcast_start").input("X", param)
    };
    let start = start.attr("name", name.as_str()).attr("root", root).output("Handle", &name);
    // Exchanges must start in the same order on all ranks, so all stand behind the last update.
    let at = block.ops.len();
    insert_op(block, at, start.role(Role::Optimize))
}

fn take_over(program: &mut Program, param: &str) -> Result<(), Error> {
    let grad = regatta_ir::grad_name(param);
    let block = program.block_mut();
    let name = exchange_name(param);
    let rows = block.var(&grad, PASS)?.ty.layout == Layout::Rows;
    let wait = if rows {
        Op::new("broadcast_rows_wait")
            .input("Handle", &name)
            .input("Grad", &grad)
            .input("Param", param)
            .output("ParamOut", param)
    } else {
        let wait = Op::new("broadcast_wait").input("Handle", &name).input("X", param);
        wait.output("XOut", param)
    };
    push_op(block, wait.attr("name", name.as_str()).role(Role::Optimize))
}
