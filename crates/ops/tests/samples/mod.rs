//! Turns the samples of an op into an op and values.

use regatta_ir::Op;
use regatta_ir::schema::Arity;
use regatta_ops::interp::{Cell, Env};
use regatta_ops::{OpDef, Sample};

pub(crate) fn forward_op(def: &OpDef, sample: &Sample) -> (Op, Env) {
    let mut op = Op::new(def.schema.kind);
    let mut env = Env::new();
    for (slot, values) in &sample.inputs {
        let names: Vec<String> = (0..values.len()).map(|i| format!("{slot}_{i}")).collect();
        for (name, value) in names.iter().zip(values) {
            env.insert(name.clone(), Cell::Value(value.clone()));
        }
        op = op.inputs(slot, names.iter().map(String::as_str));
    }
    for (name, value) in &sample.attrs {
        op = op.attr(name, value.clone());
    }
    for slot in def.schema.outputs {
        let given = sample.out_counts.iter().find(|(s, _)| *s == slot.name).map(|(_, n)| *n);
        let default = if slot.arity == Arity::Optional { 0 } else { 1 };
        // An output that is named like an input is updated in place, as running statistics are.
        let updated = slot.name.strip_suffix("Out").filter(|s| !s.is_empty());
        let names: Vec<String> = match updated.filter(|s| !op.ins(s).is_empty()) {
            Some(input) => op.ins(input).to_vec(),
            None => (0..given.unwrap_or(default)).map(|i| format!("{}_{i}", slot.name)).collect(),
        };
        if !names.is_empty() {
            op = op.outputs(slot.name, names.iter().map(String::as_str));
        }
    }
    (op, env)
}
