//! An op with its inputs, run once.

use regatta_ir::{Attr, Error, Op, OpSet, VarType, grad_name};
use regatta_ops::interp::{Cell, Env, eval};
use regatta_ops::{Grad, GradCtx, OPS, StepCtx};
use regatta_tensor::{DType, Tensor, Value};

pub(crate) fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(shape, values.to_vec()).unwrap()
}

pub(crate) fn i64s(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_i64(shape, values.to_vec()).unwrap()
}

/// Values between -0.5 and 0.5 that other systems can compute too.
pub(crate) fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 101.0 - 0.5;
    f32s(shape, &(0..n).map(value).collect::<Vec<_>>())
}

/// Compares with values that were written down with six digits.
pub(crate) fn close(what: &str, got: &Tensor, want: &[f32]) {
    assert_eq!(got.numel(), want.len(), "{what}");
    for (i, (got, want)) in got.f32().iter().zip(want).enumerate() {
        assert!((got - want).abs() < 3e-6, "{what}[{i}] is {got}, not {want}");
    }
}

/// An op with its input values, one variable `<slot>` (or `<slot><n>` of several) each; the outputs
/// are named like their slots.
pub(crate) struct Case {
    op: Op,
    env: Env,
}

pub(crate) fn case(kind: &str) -> Case {
    Case { op: Op::new(kind), env: Env::new() }
}

impl Case {
    pub(crate) fn input(mut self, slot: &str, value: Tensor) -> Case {
        self.env.insert(slot.to_string(), Cell::Value(value.into()));
        self.op = self.op.input(slot, slot);
        self
    }

    pub(crate) fn attr(mut self, name: &str, value: impl Into<Attr>) -> Case {
        self.op = self.op.attr(name, value);
        self
    }

    /// All outputs.
    pub(crate) fn run(mut self) -> Result<Env, Error> {
        let def = OPS.def(&self.op.kind)?;
        for slot in def.schema.outputs {
            // What is updated in place has the name of the input.
            let updated = slot.name.strip_suffix("Out").filter(|s| self.env.contains_key(*s));
            self.op = self.op.output(slot.name, updated.unwrap_or(slot.name));
        }
        eval(&self.op, &mut self.env, &mut StepCtx::default())?;
        Ok(self.env)
    }

    pub(crate) fn out(self) -> Tensor {
        dense(&self.run().unwrap(), "Out")
    }

    pub(crate) fn error(self) -> String {
        self.run().unwrap_err().to_string()
    }

    /// Gradients of the inputs in `slots` for ones as the gradient of `Out`.
    pub(crate) fn gradients(self, slots: &[&str]) -> Vec<Vec<f32>> {
        let mut op = self.op.clone();
        let mut env = self.run().unwrap();
        let def = OPS.def(&op.kind).unwrap();
        for slot in def.schema.outputs {
            op = op.output(slot.name, slot.name);
        }
        OPS.known(&op.kind).unwrap().complete(&mut op).unwrap();
        let Grad::Rule(rule) = def.grad else { panic!("{} has no gradient", op.kind) };
        let out = dense(&env, "Out");
        let ones = Tensor::from_f32(out.shape(), vec![1.0; out.numel()]).unwrap();
        env.insert(grad_name("Out"), Cell::Value(ones.into()));
        let types: std::collections::HashMap<String, VarType> = env
            .iter()
            .map(|(name, cell)| (name.clone(), regatta_ops::interp::type_of(cell)))
            .collect();
        let has_grad = |v: &str| v == "Out" || slots.contains(&v);
        let ty = |v: &str| types[v].clone();
        for grad_op in rule(&GradCtx { op: &op, has_grad: &has_grad, ty: &ty }).unwrap() {
            eval(&grad_op, &mut env, &mut StepCtx::default()).unwrap();
        }
        slots.iter().map(|slot| dense(&env, &grad_name(slot)).f32().to_vec()).collect()
    }
}

pub(crate) fn dense(env: &Env, name: &str) -> Tensor {
    match &env[name] {
        Cell::Value(Value::Dense(t)) => t.clone(),
        other => panic!("{other:?}"),
    }
}

/// The types of an op's results for types of its inputs as a program declares them.
pub(crate) fn inferred(op: Op, inputs: &[(&str, DType, &[i64])]) -> Result<String, String> {
    let mut op = op;
    for (slot, ..) in inputs {
        op = op.input(slot, slot);
    }
    let schema = OPS.known(&op.kind).unwrap();
    for slot in schema.outputs {
        op = op.output(slot.name, slot.name);
    }
    schema.complete(&mut op).map_err(|e| e.to_string())?;
    let order = op.input_vars();
    let types: Vec<VarType> = order
        .map(|v| inputs.iter().find(|i| i.0 == v).unwrap())
        .map(|(_, dtype, shape)| VarType::dense(*dtype, shape.to_vec()))
        .collect();
    let outs = OPS.infer(&op, &types).map_err(|e| e.to_string())?;
    Ok(outs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}
