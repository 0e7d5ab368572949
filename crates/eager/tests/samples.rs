//! Every op of the registry on its samples: results and gradients of tensors against the reference
//! interpreter, to the bit.

use regatta_eager::{Template, Tensor};
use regatta_ir::{Op, OpSet, grad_name};
use regatta_ops::interp::{Cell, Env, eval, type_of};
use regatta_ops::{Grad, GradCtx, OPS, OpDef, Sample, StepCtx};
use regatta_tensor::{DType, Data, Value};

/// The op of a sample, with names that end with positions.
fn op_of(def: &OpDef, sample: &Sample, env: &mut Env) -> Op {
    let mut op = Op::new(def.schema.kind);
    for (slot, values) in &sample.inputs {
        let names: Vec<String> = (0..values.len()).map(|i| format!("{slot}{i}")).collect();
        for (name, value) in names.iter().zip(values) {
            env.insert(name.clone(), Cell::Value(value.clone()));
        }
        op = op.inputs(slot, names.iter().map(String::as_str));
    }
    for slot in def.schema.outputs {
        let count = sample.out_counts.iter().find(|(name, _)| *name == slot.name);
        let count = count.map_or(1, |(_, count)| *count);
        if let Some(input) = def.schema.updated_input(slot.name) {
            let names = op.ins(input).to_vec();
            op = op.outputs(slot.name, names.iter().map(String::as_str));
            continue;
        }
        let names: Vec<String> = (0..count).map(|i| format!("{}.out{i}", slot.name)).collect();
        op = op.outputs(slot.name, names.iter().map(String::as_str));
    }
    for (name, attr) in &sample.attrs {
        op = op.attr(name, attr.clone());
    }
    OPS.known(&op.kind).unwrap().complete(&mut op).unwrap();
    op
}

fn bits(data: &Data) -> Vec<u64> {
    match data {
        Data::F32(v) => v.iter().map(|x| u64::from(x.to_bits())).collect(),
        Data::F16(v) | Data::BF16(v) => v.iter().map(|x| u64::from(*x)).collect(),
        Data::I64(v) => v.iter().map(|x| *x as u64).collect(),
        Data::U64(v) => v.clone(),
    }
}

fn tensor(value: &Value) -> Tensor {
    match value {
        Value::Dense(t) => Tensor::new(t.shape(), t.data().clone()).unwrap(),
        Value::Ragged(r) => Tensor::ragged(r.clone()),
    }
}

/// Gradients by the interpreter: the rule's ops, from gradients of ones.
fn reference_gradients(def: &OpDef, op: &Op, wanted: &[String], ignored: &[&str], env: &mut Env) {
    let Grad::Rule(rule) = def.grad else { return };
    for name in op.output_vars() {
        if let Some(Cell::Value(Value::Dense(t))) = env.get(name)
            && t.dtype() == DType::F32
            && !ignored.iter().any(|slot| op.outs(slot).iter().any(|var| var == name))
        {
            let ones = vec![1.0; t.numel()];
            let ones = regatta_tensor::Tensor::from_f32(t.shape(), ones).unwrap();
            env.insert(grad_name(name), Cell::Value(ones.into()));
        }
    }
    let has_grad = |name: &str| {
        let is_output = op.output_vars().any(|out| out == name);
        wanted.iter().any(|w| w == name) || (is_output && env.contains_key(&grad_name(name)))
    };
    let ty = |name: &str| type_of(&env[name]);
    let ops = rule(&GradCtx { op, has_grad: &has_grad, ty: &ty }).unwrap();
    for op in ops {
        eval(&op, env, &mut StepCtx::default()).unwrap();
    }
}

fn check(def: &OpDef, sample: &Sample) {
    let what = format!("{} ({})", def.schema.kind, sample.name);
    let mut env = Env::new();
    let op = op_of(def, sample, &mut env);
    let is_random = def.schema.attrs.iter().any(|(name, _)| *name == "seed");
    let differentiable = |slot: &str, value: &Value| {
        !sample.fixed.contains(&slot)
            && matches!(value, Value::Dense(t) if t.dtype() == DType::F32)
            && matches!(def.grad, Grad::Rule(_))
    };
    let (mut slots, mut tensors, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, vars) in &op.inputs {
        slots.push((slot.as_str(), vars.len()));
        for name in vars {
            let Cell::Value(value) = &env[name] else { unreachable!() };
            let made = tensor(value);
            if differentiable(slot, value) {
                made.set_stop_gradient(false);
                wanted.push(name.clone());
            }
            tensors.push((name.clone(), made));
        }
    }
    let attrs: Vec<_> = op.attrs.iter().map(|(n, a)| (n.as_str(), a.clone())).collect();
    let counts: Vec<_> = op.outputs.iter().map(|(s, vars)| (s.as_str(), vars.len())).collect();
    let template = Template::new(&op.kind, &slots, &attrs, &counts).unwrap();
    let given: Vec<&Tensor> = tensors.iter().map(|(_, t)| t).collect();
    let outs = template.call(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut ctx = StepCtx::default();
    eval(&op, &mut env, &mut ctx).unwrap_or_else(|e| panic!("{what}: {e}"));
    if is_random {
        return;
    }
    let is_input = |name: &str| op.input_vars().any(|input| input == name);
    for (name, out) in op.output_vars().filter(|name| !is_input(name)).zip(&outs) {
        let Cell::Value(Value::Dense(expected)) = &env[name] else { continue };
        assert_eq!(bits(&out.to_data()), bits(expected.data()), "{what}: {name}");
        assert_eq!(out.shape(), expected.shape(), "{what}: {name}");
    }
    if wanted.is_empty() {
        return;
    }
    reference_gradients(def, &op, &wanted, &sample.ignored_outputs, &mut env);
    let is_ignored = |name: &str| {
        sample.ignored_outputs.iter().any(|s| op.outs(s).iter().any(|var| var == name))
    };
    let roots: Vec<&Tensor> = op
        .output_vars()
        .filter(|name| !is_input(name))
        .zip(&outs)
        .filter(|(name, out)| !out.stop_gradient() && !is_ignored(name))
        .map(|(_, out)| out)
        .collect();
    let ones: Vec<Tensor> = roots
        .iter()
        .map(|out| Tensor::from_f32(&out.shape(), vec![1.0; out.numel()]).unwrap())
        .collect();
    let ones: Vec<Option<&Tensor>> = ones.iter().map(Some).collect();
    let inputs: Vec<&Tensor> = tensors.iter().map(|(_, t)| t).collect();
    let found = regatta_eager::grad(&roots, &inputs, &ones, false);
    let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    for ((name, _), gradient) in tensors.iter().zip(found) {
        let expected = env.get(&grad_name(name)).filter(|_| wanted.contains(name));
        let expected = expected.map(|cell| bits(&Data::F32(cell.floats())));
        let gradient = gradient.map(|gradient| bits(&gradient.to_data()));
        assert_eq!(gradient, expected, "{what}: gradient of {name}");
    }
}

#[test]
fn every_op_equals_the_interpreter() {
    let mut count = 0;
    for def in OPS.all() {
        for sample in (def.samples)() {
            check(def, &sample);
            count += 1;
        }
    }
    assert!(count > 100, "there are samples: {count}");
}
