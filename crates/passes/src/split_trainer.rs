//! Splits a training program for parameter servers: the trainer's part, and what the servers hold.

use regatta_ir::{Attr, Error, Layout, Op, Origin, Program, Programs, Role, VarDef};
use regatta_ops::{schedule_of, update_rule};
use regatta_optim::{Rule, Schedule};

use crate::updates::LEARNING_RATE;
use crate::{checked, refuse_buffers, refused};

/// A parameter that servers hold whole rows of, by id.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSpec {
    /// Name of the parameter.
    pub name: String,
    /// Floats per row.
    pub dim: usize,
    /// Rows that the program declares; servers make rows for any id as it comes.
    pub rows: usize,
    /// Update rule.
    pub rule: Rule,
    /// Factor on the learning rate.
    pub lr_scale: f64,
    /// The startup op that gives its first values.
    pub init: Op,
}

/// A parameter that servers hold parts of, by position.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseSpec {
    /// Name of the parameter.
    pub name: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Update rule.
    pub rule: Rule,
    /// Factor on the learning rate.
    pub lr_scale: f64,
    /// Its gradient in the trainer program.
    pub grad: String,
}

/// A training program split for parameter servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Forward, backward, clipping and penalties; pulls what it needs, pushes gradients.
    pub trainer: Program,
    /// Tables in the order in which they are numbered.
    pub tables: Vec<TableSpec>,
    /// Dense parameters in the order in which they are laid out.
    pub dense: Vec<DenseSpec>,
    /// Base learning rate and how it changes.
    pub learning_rate: f64,
    /// How it changes with the steps.
    pub schedule: Schedule,
}

/// Name of the local table that holds the pulled rows of a parameter.
pub fn pulled_name(param: &str) -> String {
    format!("{param}@PULLED")
}

/// Name of an input's ids as row numbers of the local table of a parameter.
pub fn local_name(ids: &str, param: &str) -> String {
    format!("{ids}@LOCAL@{param}")
}

/// Takes the updates out of a training program: parameters with row-sparse gradients become tables,
/// whose lookups work on rows pulled for the batch; the gradients of the others are sent.
///
/// # Errors
/// If the program has no updates or treats a table in a way that rows of one batch do not allow.
pub fn split_trainer(programs: &Programs) -> Result<Split, Error> {
    refuse_buffers(&programs.main, "split_trainer")?;
    let mut trainer = programs.main.clone();
    trainer.name = "trainer".to_string();
    let block = trainer.block_mut();
    let (mut tables, mut dense, mut schedule) = (Vec::new(), Vec::new(), None);
    let mut sparse_grads = Vec::new();
    for op in std::mem::take(&mut block.ops) {
        if op.kind == "lr_schedule" {
            schedule = Some((op.float("base")?, schedule_of(&op)?));
            continue;
        }
        let Some(rule) = update_rule(&op)? else {
            block.ops.push(op);
            continue;
        };
        let (name, grad) = (&op.ins("Param")[0], &op.ins("Grad")[0]);
        if let Some(flag) = op.input_var("Skip") {
            let reason = format!(
                "the update of '{name}' is left out if '{flag}' is set, which servers cannot know; \
                 train without loss scaling (bf16 needs none)"
            );
            return refused("split_trainer", reason);
        }
        let lr_scale = op.float("lr_scale")?;
        let shape: Vec<usize> =
            block.var(name, "split_trainer")?.ty.shape.iter().map(|&d| d as usize).collect();
        if block.var(grad, "split_trainer")?.ty.layout == Layout::Rows {
            let init = startup_op(&programs.startup, name)?;
            let (rows, dim) = (shape[0], shape[1]);
            tables.push(TableSpec { name: name.clone(), dim, rows, rule, lr_scale, init });
            sparse_grads.push((name.clone(), grad.clone()));
        } else {
            let (name, grad) = (name.clone(), grad.clone());
            dense.push(DenseSpec { name, shape, rule, lr_scale, grad });
        }
    }
    if tables.is_empty() && dense.is_empty() {
        return refused("split_trainer", "the program updates nothing; call minimize first");
    }
    for table in &tables {
        pull_table(block, &table.name, table.dim, table.rows)?;
    }
    for (table, grad) in sparse_grads {
        let op = Op::new("push_sparse").input("Grad", &grad).attr("table", table);
        block.ops.push(op.role(Role::Optimize));
    }
    if !dense.is_empty() {
        let names = || dense.iter().map(|d| d.name.as_str());
        let send = Op::new("send").inputs("X", dense.iter().map(|d| d.grad.as_str()));
        let recv = Op::new("recv").inputs("Param", names()).outputs("ParamOut", names());
        block.ops.extend([send.role(Role::Optimize), recv.role(Role::Optimize)]);
    }
    block.drop_unused_vars(&[]);
    let (learning_rate, schedule) = match schedule {
        Some(found) => found,
        None => {
            let op = startup_op(&programs.startup, LEARNING_RATE)?;
            (op.float("value")?, Schedule::Constant)
        }
    };
    Ok(Split { trainer: checked(trainer)?, tables, dense, learning_rate, schedule })
}

fn startup_op(startup: &Program, var: &str) -> Result<Op, Error> {
    let found = startup.block().ops.iter().find(|op| op.output_vars().any(|v| v == var));
    found.cloned().ok_or_else(|| Error::Pass {
        pass: "split_trainer".into(),
        reason: format!("the startup program does not initialise '{var}'"),
    })
}

/// Puts one `pull_sparse` for all lookups of a table at the start, and lets the lookups and their
/// gradients work on what it pulls.
fn pull_table(
    block: &mut regatta_ir::Block,
    name: &str,
    dim: usize,
    rows: usize,
) -> Result<(), Error> {
    let pulled = pulled_name(name);
    let mut ids: Vec<String> = Vec::new();
    let (mut padding, mut modulo) = (None, 0);
    for op in &mut block.ops {
        if !op.input_vars().any(|v| v == name) {
            continue;
        }
        if op.kind != "embedding" && op.kind != "embedding_grad" {
            // Penalties read the parameter at the rows of its gradient, which are pulled.
            if op.kind == "l2_decay" || op.kind == "l1_decay" {
                op.rename_input(name, &pulled);
                continue;
            }
            return refused(
                "split_trainer",
                format!("op {} reads the table '{name}' whole; it can only be looked up", op.kind),
            );
        }
        let own = op.int("padding_idx")?;
        if *padding.get_or_insert(own) != own {
            let reason = format!("lookups of the table '{name}' differ in padding_idx");
            return refused("split_trainer", reason);
        }
        if op.bool("hash")? {
            modulo = rows as i64;
        }
        for var in op.ins("Ids") {
            if !ids.contains(var) {
                ids.push(var.clone());
            }
        }
        // Row 0 of the local table is the padding row.
        op.attrs.insert("padding_idx".into(), Attr::Int(if own >= 0 { 0 } else { -1 }));
        op.attrs.insert("hash".into(), Attr::Bool(false));
        op.rename_input(name, &pulled);
        for var in &ids {
            op.rename_input(var, &local_name(var, name));
        }
    }
    let mut local =
        VarDef::new(&pulled, block.var(name, "split_trainer")?.ty.clone(), Origin::Temp);
    local.ty.shape[0] = -2;
    block.declare(local)?;
    let (ids, padded) = inputs_of(block, name, ids, padding.unwrap_or(-1))?;
    for var in ids.iter().chain(padded.iter().map(|(var, _)| var)) {
        let ty = block.var(var, "split_trainer")?.ty.clone();
        block.declare(VarDef::new(local_name(var, name), ty, Origin::Temp))?;
    }
    // The gradient has as many rows as were pulled.
    for var in block.vars.values_mut() {
        if var.ty.layout == Layout::Rows && var.name.starts_with(&format!("{name}@GRAD")) {
            var.ty.shape[0] = -2;
        }
    }
    let locals: Vec<String> = ids.iter().map(|v| local_name(v, name)).collect();
    let op = Op::new("pull_sparse")
        .inputs("Ids", ids.iter().map(String::as_str))
        .attr("table", name)
        .attr("dim", dim as i64)
        .attr("padding_idx", padding.unwrap_or(-1))
        .attr("modulo", modulo)
        .output("Out", &pulled)
        .outputs("Local", locals.iter().map(String::as_str));
    // After the pull, sequences of ids are padded as sequences of row numbers.
    block.ops.splice(0..0, std::iter::once(op).chain(padded.into_iter().map(|(_, op)| op)));
    Ok(())
}

/// Inputs that hold ids, and the variables that are made of them with the ops that do so.
type Inputs = (Vec<String>, Vec<(String, Op)>);

/// The inputs of the program that hold a table's ids. Ids that `sequence_pad` makes are those of its
/// input: it is applied to their row numbers instead, which row 0 pads.
fn inputs_of(
    block: &regatta_ir::Block,
    table: &str,
    ids: Vec<String>,
    padding: i64,
) -> Result<Inputs, Error> {
    let (mut inputs, mut padded): Inputs = (Vec::new(), Vec::new());
    for var in ids {
        if block.var(&var, "split_trainer")?.origin == Origin::Data {
            if !inputs.contains(&var) {
                inputs.push(var);
            }
            continue;
        }
        let maker = block.ops.iter().find(|op| op.output_vars().any(|v| v == var));
        let maker = maker.filter(|op| op.kind == "sequence_pad");
        let source = maker.and_then(|op| op.input_var("X")).map(str::to_string);
        let is_input = source
            .as_ref()
            .is_some_and(|x| block.vars.get(x).is_some_and(|v| v.origin == Origin::Data));
        let (Some(maker), Some(source), true) = (maker, source, is_input) else {
            let reason = format!(
                "the ids '{var}' of the table '{table}' are computed; servers can only be asked for \
                 ids that are inputs, or inputs that were padded"
            );
            return refused("split_trainer", reason);
        };
        if maker.int("value")? != padding {
            let reason = format!("'{var}' is padded with another id than padding_idx {padding}");
            return refused("split_trainer", reason);
        }
        let mut op = maker.clone();
        op.attrs.insert("value".into(), Attr::Int(0));
        op.rename_input(&source, &local_name(&source, table));
        op.rename_output(&var, &local_name(&var, table));
        padded.push((var, op));
        if !inputs.contains(&source) {
            inputs.push(source);
        }
    }
    Ok((inputs, padded))
}

/// Lets the lookups of some tables of a program that only predicts work on rows that are pulled for
/// the batch, as in a trainer program; [`compute_stage`] is then the part that runs.
///
/// # Errors
/// If a name is no parameter of two dimensions, or the program treats it in a way that rows of one
/// batch do not allow.
pub fn pull_tables(program: &Program, tables: &[String]) -> Result<Program, Error> {
    refuse_buffers(program, "pull_tables")?;
    let mut program = program.clone();
    let block = program.block_mut();
    for name in tables {
        let var = block.var(name, "pull_tables")?;
        let &[rows, dim] = var.ty.shape.as_slice() else {
            return refused("pull_tables", format!("'{name}' ({}) is no table", var.ty));
        };
        pull_table(block, name, dim as usize, rows as usize)?;
    }
    block.drop_unused_vars(&[]);
    checked(program)
}

/// The part of a trainer program between its pulls and its pushes: what pulls make becomes an input,
/// and the gradients that pushes and sends take are the results.
///
/// # Errors
/// If the result does not verify.
pub fn compute_stage(trainer: &Program) -> Result<Program, Error> {
    let mut program = trainer.clone();
    program.name = "compute".to_string();
    let block = program.block_mut();
    let is_exchange =
        |op: &Op| matches!(op.kind.as_str(), "pull_sparse" | "push_sparse" | "send" | "recv");
    let (exchanges, ops): (Vec<Op>, Vec<Op>) =
        std::mem::take(&mut block.ops).into_iter().partition(is_exchange);
    block.ops = ops;
    for op in exchanges.iter().filter(|op| op.kind == "pull_sparse") {
        for name in op.output_vars() {
            if let Some(var) = block.vars.get_mut(name) {
                var.origin = Origin::Data;
                // The local table is looked up by row; its gradient is what is pushed.
                var.stop_gradient = true;
            }
        }
    }
    block.drop_unused_vars(&[]);
    checked(program)
}
