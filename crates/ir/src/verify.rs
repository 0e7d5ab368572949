//! Checks a whole program: names, slots, attributes, order, types and shared memory.

use std::collections::{HashMap, HashSet};

use crate::{Block, Error, Op, OpSet, Origin, Program, Schema, VarType};

/// Brings the slots of every op into the order of its schema and writes out the default
/// attributes, as the builder and the compiler passes do. For programs written by hand.
///
/// # Errors
/// If an op is unknown, or a slot or attribute is unknown, missing or of the wrong kind.
pub fn complete(program: &mut Program, ops: &dyn OpSet) -> Result<(), Error> {
    for op in program.blocks.iter_mut().flat_map(|block| &mut block.ops) {
        ops.known(&op.kind)?.complete(op)?;
    }
    Ok(())
}

/// Checks that every op is known and complete, every variable is declared and written before it
/// is read, every output has the type that the op gives it, ops work in place only where their
/// schema says so, nothing writes an input of the program, and variables with one buffer are never
/// in use together.
///
/// # Errors
/// The first problem, naming op and variable.
pub fn verify(program: &Program, ops: &dyn OpSet) -> Result<(), Error> {
    let global = program.block();
    for block in &program.blocks {
        verify_block(block, global, ops)?;
        verify_buffers(block)?;
    }
    Ok(())
}

fn verify_block(block: &Block, global: &Block, ops: &dyn OpSet) -> Result<(), Error> {
    let find =
        |name: &str, op: &str| block.vars.get(name).map(Ok).unwrap_or_else(|| global.var(name, op));
    let mut written: HashSet<&str> = HashSet::new();
    for op in &block.ops {
        let schema = ops.known(&op.kind)?;
        verify_complete(op, schema)?;
        verify_places(op, schema)?;
        let mut inputs: Vec<VarType> = Vec::new();
        for name in op.input_vars() {
            let var = find(name, &op.kind)?;
            let from_outside = var.origin != Origin::Temp || !block.vars.contains_key(name);
            if !from_outside && !written.contains(name) {
                return Err(Error::ReadBeforeWrite { op: op.kind.clone(), var: name.to_string() });
            }
            inputs.push(var.ty.clone());
        }
        let outputs = ops.infer(op, &inputs)?;
        for ((slot, name), ty) in slot_vars(&op.outputs).zip(outputs) {
            let declared = find(name, &op.kind)?;
            if declared.origin == Origin::Data {
                let reason = format!("writes '{name}', which the caller feeds");
                return Err(slot_error(op, slot, reason));
            }
            if !fits(&declared.ty, &ty) {
                return Err(Error::Type {
                    op: op.kind.clone(),
                    slot: slot.to_string(),
                    var: name.to_string(),
                    expected: ty.to_string(),
                    actual: declared.ty.to_string(),
                });
            }
            written.insert(name);
        }
    }
    Ok(())
}

/// Kernels find their variables by position and their constants by name, so both must be there.
fn verify_complete(op: &Op, schema: &Schema) -> Result<(), Error> {
    let mut complete = op.clone();
    schema.complete(&mut complete)?;
    let sides = [(&op.inputs, &complete.inputs), (&op.outputs, &complete.outputs)];
    for (given, wanted) in sides {
        if let Some((slot, _)) = given.iter().find(|slot| !wanted.contains(slot)).or_else(|| {
            given.iter().zip(wanted).find(|(given, wanted)| given != wanted).map(|(given, _)| given)
        }) {
            let reason = "is empty, repeated or out of order; call `complete` on the program first";
            return Err(slot_error(op, slot, reason));
        }
    }
    match complete.attrs.keys().find(|name| !op.attrs.contains_key(*name)) {
        Some(attr) => Err(Error::Attr {
            op: op.kind.clone(),
            attr: attr.clone(),
            reason: "is not written out; call `complete` on the program first".into(),
        }),
        None => Ok(()),
    }
}

/// An output is written by one slot only, and is an input too only where the op updates in place.
fn verify_places(op: &Op, schema: &Schema) -> Result<(), Error> {
    let mut outputs: HashSet<&str> = HashSet::new();
    for (slot, name) in slot_vars(&op.outputs) {
        if !outputs.insert(name) {
            return Err(slot_error(op, slot, format!("writes '{name}' a second time")));
        }
    }
    for (slot, vars) in &op.outputs {
        match schema.updated_input(slot) {
            Some(input) if op.ins(input) != vars => {
                let reason = format!("must hold the variables of '{input}': it updates them");
                return Err(slot_error(op, slot, reason));
            }
            _ => {}
        }
    }
    for (slot, name) in slot_vars(&op.inputs) {
        let updated = op.outputs.iter().find(|(_, vars)| vars.iter().any(|v| v == name));
        match updated {
            Some((output, _)) if schema.updated_input(output) != Some(slot) => {
                let reason = format!("reads '{name}', which '{output}' of the same op writes");
                return Err(slot_error(op, slot, reason));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The executor lays variables of one buffer over each other.
fn verify_buffers(block: &Block) -> Result<(), Error> {
    /// First and last op that uses a variable.
    type Life = (usize, usize);
    let mut in_use: HashMap<&str, Life> = HashMap::new();
    for (i, op) in block.ops.iter().enumerate() {
        for name in op.input_vars().chain(op.output_vars()) {
            in_use.entry(name).or_insert((i, i)).1 = i;
        }
    }
    let mut by_buffer: HashMap<&str, Vec<(Life, &str)>> = HashMap::new();
    for var in block.vars.values() {
        if let (Some(buffer), Some(&life)) = (&var.buffer, in_use.get(var.name.as_str())) {
            by_buffer.entry(buffer).or_default().push((life, &var.name));
        }
    }
    for (buffer, mut lives) in by_buffer {
        lives.sort_unstable();
        if let Some(pair) = lives.windows(2).find(|pair| pair[1].0.0 <= pair[0].0.1) {
            return Err(Error::SharedBuffer {
                var: pair[0].1.to_string(),
                other: pair[1].1.to_string(),
                buffer: buffer.to_string(),
            });
        }
    }
    Ok(())
}

fn slot_error(op: &Op, slot: &str, reason: impl Into<String>) -> Error {
    Error::Slot { op: op.kind.clone(), slot: slot.to_string(), reason: reason.into() }
}

fn slot_vars(slots: &[(String, Vec<String>)]) -> impl Iterator<Item = (&str, &str)> {
    slots.iter().flat_map(|(slot, vars)| vars.iter().map(|v| (slot.as_str(), v.as_str())))
}

/// Equal, where a negative dimension stands for any size.
fn fits(declared: &VarType, inferred: &VarType) -> bool {
    declared.dtype == inferred.dtype
        && declared.layout == inferred.layout
        && declared.shape.len() == inferred.shape.len()
        && declared.shape.iter().zip(&inferred.shape).all(|(a, b)| a == b || *a < 0 || *b < 0)
}
