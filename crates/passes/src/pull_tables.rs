//! Lets lookups of tables work on rows that are pulled for a batch: the distinct ids of the batch
//! become rows of a small local table, and ids become row numbers of it. Row 0 stays zero and
//! stands for the padding id.

use regatta_ir::{Attr, Block, Error, Layout, Op, Origin, Program, VarDef};

use crate::split_trainer::PASS;
use crate::{TableExchange, checked, refuse_buffers, refused};

/// Name of the local table that holds the pulled rows of a parameter.
pub fn pulled_name(param: &str) -> String {
    format!("{param}@PULLED")
}

/// Name of an input's ids as row numbers of the local table of a parameter.
pub fn local_name(ids: &str, param: &str) -> String {
    format!("{ids}@LOCAL@{param}")
}

/// Lets the lookups of some tables of a program that only predicts work on rows that are pulled for
/// the batch, as in a trainer program; says what is to be pulled.
///
/// # Errors
/// If a name is no parameter of two dimensions, or the program treats it in a way that rows of one
/// batch do not allow.
pub fn pull_tables(
    program: &Program,
    tables: &[String],
) -> Result<(Program, Vec<TableExchange>), Error> {
    refuse_buffers(program, "pull_tables")?;
    let mut program = program.clone();
    let block = program.block_mut();
    let mut pulls = Vec::new();
    for name in tables {
        let var = block.var(name, "pull_tables")?;
        let &[rows, dim] = var.ty.shape.as_slice() else {
            return refused("pull_tables", format!("'{name}' ({}) is no table", var.ty));
        };
        let pull = pull_table(block, name, dim as usize, rows as usize)?;
        pulls.push(pull);
    }
    block.drop_unused_vars(&[]);
    Ok((checked(program)?, pulls))
}

/// Lets all lookups of a table and their gradients work on inputs that hold pulled rows and row
/// numbers.
pub(crate) fn pull_table(
    block: &mut Block,
    name: &str,
    dim: usize,
    rows: usize,
) -> Result<TableExchange, Error> {
    let Lookups { ids, padding, hashed } = rename_lookups(block, name)?;
    let padding = padding.unwrap_or(-1);
    let (inputs, made) = inputs_of(block, name, ids, padding)?;
    let pulled = pulled_name(name);
    let mut local = VarDef::new(&pulled, block.var(name, PASS)?.ty.clone(), Origin::Data);
    local.ty.shape[0] = -2;
    block.declare(local)?;
    for (vars, origin) in [
        (inputs.iter().collect::<Vec<_>>(), Origin::Data),
        (made.iter().map(|(var, _)| var).collect(), Origin::Temp),
    ] {
        for var in vars {
            let ty = block.var(var, PASS)?.ty.clone();
            block.declare(VarDef::new(local_name(var, name), ty, origin))?;
        }
    }
    // The gradient has as many rows as were pulled.
    for var in block.vars.values_mut() {
        if var.ty.layout == Layout::Rows && var.name.starts_with(&format!("{name}@GRAD")) {
            var.ty.shape[0] = -2;
        }
    }
    // What is done to ids is done to row numbers.
    block.ops.splice(0..0, made.into_iter().map(|(_, op)| op));
    let with_local = |ids: String| {
        let local = local_name(&ids, name);
        (ids, local)
    };
    Ok(TableExchange {
        name: name.to_string(),
        dim,
        inputs: inputs.into_iter().map(with_local).collect(),
        padding: u64::try_from(padding).ok(),
        modulo: (hashed && rows > 0).then_some(rows as u64),
        pulled,
        grad: None,
    })
}

/// What the lookups of a table have in common.
#[derive(Default)]
struct Lookups {
    /// Variables that hold ids.
    ids: Vec<String>,
    padding: Option<i64>,
    hashed: bool,
}

/// Lets the ops that look up a table read the local one.
fn rename_lookups(block: &mut Block, name: &str) -> Result<Lookups, Error> {
    let pulled = pulled_name(name);
    let mut lookups = Lookups::default();
    for op in block.ops.iter_mut().filter(|op| op.input_vars().any(|v| v == name)) {
        match op.kind.as_str() {
            "embedding" | "embedding_grad" => {}
            // Regularization reads the parameter at the rows of its gradient, which are pulled.
            "l2_decay" | "l1_decay" => {
                op.rename_input(name, &pulled);
                continue;
            }
            kind => {
                let reason =
                    format!("op {kind} reads the table '{name}' whole; it can only be looked up");
                return refused(PASS, reason);
            }
        }
        let own = op.int("padding_idx")?;
        if *lookups.padding.get_or_insert(own) != own {
            let reason = format!("lookups of the table '{name}' differ in padding_idx");
            return refused(PASS, reason);
        }
        lookups.hashed |= op.bool("hash")?;
        for var in op.ins("Ids") {
            if !lookups.ids.contains(var) {
                lookups.ids.push(var.clone());
            }
        }
        op.attrs.insert("padding_idx".into(), Attr::Int(if own >= 0 { 0 } else { -1 }));
        op.attrs.insert("hash".into(), Attr::Bool(false));
        op.rename_input(name, &pulled);
        for var in &lookups.ids {
            op.rename_input(var, &local_name(var, name));
        }
    }
    Ok(lookups)
}

/// Inputs that hold ids, and the variables that are made of them with the ops that do so.
type Inputs = (Vec<String>, Vec<(String, Op)>);

/// Ops that only move ids, all of them: applied to row numbers, they give the row numbers of what
/// they give for ids.
const MOVES: &[&str] = &["assign", "concat", "reshape", "transpose"];

/// The inputs of the program that hold a table's ids. Ids that are moved or padded are those of
/// inputs: the same is done to their row numbers instead, which row 0 pads.
fn inputs_of(block: &Block, table: &str, ids: Vec<String>, padding: i64) -> Result<Inputs, Error> {
    let mut found: Inputs = (Vec::new(), Vec::new());
    for var in ids {
        trace(block, table, &var, padding, &mut found)?;
    }
    Ok(found)
}

/// Adds the inputs that a variable is made of, and the ops that make its row numbers, in order.
fn trace(
    block: &Block,
    table: &str,
    var: &str,
    padding: i64,
    found: &mut Inputs,
) -> Result<(), Error> {
    if found.0.iter().chain(found.1.iter().map(|(made, _)| made)).any(|known| known == var) {
        return Ok(());
    }
    if block.var(var, PASS)?.origin == Origin::Data {
        found.0.push(var.to_string());
        return Ok(());
    }
    let maker = block.ops.iter().find(|op| op.output_vars().any(|v| v == var));
    let padded = maker.is_some_and(|op| op.kind == "sequence_pad");
    let moved = maker.is_some_and(|op| MOVES.contains(&op.kind.as_str()));
    let Some(maker) = maker.filter(|_| padded || moved) else {
        let reason = format!(
            "the ids '{var}' of the table '{table}' are computed; rows can only be pulled for ids \
             that are inputs, or inputs that were padded, joined or moved"
        );
        return refused(PASS, reason);
    };
    let mut op = maker.clone();
    if padded {
        if maker.int("value")? != padding {
            let reason = format!("'{var}' is padded with another id than padding_idx {padding}");
            return refused(PASS, reason);
        }
        op.attrs.insert("value".into(), Attr::Int(0));
    }
    for source in maker.ins("X") {
        trace(block, table, source, padding, found)?;
        op.rename_input(source, &local_name(source, table));
    }
    op.rename_output(var, &local_name(var, table));
    found.1.push((var.to_string(), op));
    Ok(())
}
