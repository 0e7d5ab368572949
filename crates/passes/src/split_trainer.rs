//! Splits a training program for parameter servers: the trainer's part, and what the servers hold.

use std::fmt;

use regatta_ir::{Attr, Block, Error, Layout, Op, Program, Programs};
use regatta_ops::{schedule_of, update_rule};
use regatta_optim::{Rule, Schedule};

use crate::pull_tables::pull_table;
use crate::updates::LEARNING_RATE;
use crate::{Exchange, checked, refuse_buffers, refused};

pub(crate) const PASS: &str = "split_trainer";

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
    /// The startup op that makes its initial values.
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

/// A training program split for parameter servers. As text it is the trainer program between what a
/// worker receives before it and sends after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// What a worker runs: forward, backward, clipping and regularization. Pulled rows are inputs.
    pub trainer: Program,
    /// What a worker pulls and receives before it runs the program, and pushes and sends
    /// afterwards.
    pub exchange: Exchange,
    /// Tables in the order in which they are numbered.
    pub tables: Vec<TableSpec>,
    /// Dense parameters in the order in which they are laid out.
    pub dense: Vec<DenseSpec>,
    /// Base learning rate.
    pub learning_rate: f64,
    /// How it changes with the steps.
    pub schedule: Schedule,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exchange.write_before(f)?;
        write!(f, "{}", self.trainer)?;
        self.exchange.write_after(f)
    }
}

/// Takes the updates out of a training program: parameters with row-sparse gradients become tables,
/// whose lookups work on rows pulled for the batch; the gradients of the others are sent.
///
/// # Errors
/// If the program has no updates or treats a table in a way that rows of one batch do not allow.
pub fn split_trainer(programs: &Programs) -> Result<Split, Error> {
    refuse_buffers(&programs.main, PASS)?;
    let mut trainer = programs.main.clone();
    trainer.name = "trainer".to_string();
    let block = trainer.block_mut();
    let Updates { tables, sparse_grads, dense, schedule } = take_updates(block, programs)?;
    if tables.is_empty() && dense.is_empty() {
        return refused(PASS, "the program updates nothing; call minimize first");
    }
    let mut exchange = Exchange::default();
    for (table, grad) in tables.iter().zip(sparse_grads) {
        let mut pull = pull_table(block, &table.name, table.dim, table.rows)?;
        pull.grad = Some(grad);
        exchange.tables.push(pull);
    }
    exchange.grads = dense.iter().map(|d| d.grad.clone()).collect();
    exchange.params = dense.iter().map(|d| d.name.clone()).collect();
    block.drop_unused_vars(&[]);
    let (learning_rate, schedule) = match schedule {
        Some(found) => found,
        None => learning_rate(programs)?,
    };
    Ok(Split { trainer: checked(trainer)?, exchange, tables, dense, learning_rate, schedule })
}

/// The base learning rate of a training program, with its schedule.
///
/// # Errors
/// If the program updates nothing.
pub fn learning_rate(programs: &Programs) -> Result<(f64, Schedule), Error> {
    match programs.main.block().ops.iter().find(|op| op.kind == "lr_schedule") {
        Some(op) => Ok((op.float("base")?, schedule_of(op)?)),
        None => {
            let op = startup_op(&programs.startup, LEARNING_RATE)?;
            Ok((op.float("value")?, Schedule::Constant))
        }
    }
}

/// What the updates of a program say.
#[derive(Default)]
struct Updates {
    tables: Vec<TableSpec>,
    /// The gradient of each table.
    sparse_grads: Vec<String>,
    dense: Vec<DenseSpec>,
    /// The base learning rate with its schedule, if there is one.
    schedule: Option<(f64, Schedule)>,
}

/// Removes updates and schedule from a block.
fn take_updates(block: &mut Block, programs: &Programs) -> Result<Updates, Error> {
    let mut updates = Updates::default();
    for op in std::mem::take(&mut block.ops) {
        if op.kind == "lr_schedule" {
            updates.schedule = Some((op.float("base")?, schedule_of(&op)?));
            continue;
        }
        let Some(rule) = update_rule(&op)? else {
            block.ops.push(op);
            continue;
        };
        let (name, grad) = (op.ins("Param")[0].clone(), op.ins("Grad")[0].clone());
        if let Some(flag) = op.input_var("Skip") {
            let reason = format!(
                "the update of '{name}' is left out if '{flag}' is set, which servers cannot know; \
                 train without loss scaling (bf16 needs none)"
            );
            return refused(PASS, reason);
        }
        let lr_scale = op.float("lr_scale")?;
        let shape = &block.var(&name, PASS)?.ty.shape;
        let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
        if block.var(&grad, PASS)?.ty.layout == Layout::Rows {
            if op.attrs.get("lazy") == Some(&Attr::Bool(false)) {
                let reason = format!(
                    "rows of the table '{name}' would move without a gradient, which servers do \
                     not do; update it lazily (lazy_mode=True)"
                );
                return refused(PASS, reason);
            }
            let init = startup_op(&programs.startup, &name)?;
            if init.kind == "assign_value" {
                let reason = format!(
                    "the table '{name}' starts with given values, but servers make a row when its \
                     id comes; start it with a constant or random values, and load trained ones"
                );
                return refused(PASS, reason);
            }
            let (rows, dim) = (shape[0], shape[1]);
            updates.tables.push(TableSpec { name, dim, rows, rule, lr_scale, init });
            updates.sparse_grads.push(grad);
        } else {
            updates.dense.push(DenseSpec { name, shape, rule, lr_scale, grad });
        }
    }
    Ok(updates)
}

fn startup_op(startup: &Program, var: &str) -> Result<Op, Error> {
    let found = startup.block().ops.iter().find(|op| op.output_vars().any(|v| v == var));
    found.cloned().ok_or_else(|| Error::Pass {
        pass: PASS.into(),
        reason: format!("the startup program does not initialise '{var}'"),
    })
}
