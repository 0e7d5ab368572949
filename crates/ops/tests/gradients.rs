//! Every registered op with a gradient rule is compared with central differences on its samples;
//! an op without samples and without a reason fails, so a new op cannot be left out.

mod samples;

use regatta_ir::{Op, grad_name};
use regatta_ops::interp::{Cell, Env, eval, type_of};
use regatta_ops::{Grad, GradCtx, OPS, OpDef, Sample, StepCtx};
use regatta_tensor::{DType, Rng, Tensor, Value};

use samples::forward_op;

const STEP: f32 = 1e-2;

#[test]
fn every_op_has_a_gradient_check_or_a_reason() {
    for def in OPS.all() {
        let kind = def.schema.kind;
        match def.grad {
            Grad::None(reason) => assert!(!reason.is_empty(), "{kind}"),
            Grad::Rule(_) => assert!(!(def.samples)().is_empty(), "{kind} has no samples"),
        }
    }
}

#[test]
fn analytic_gradients_equal_differences() {
    let mut checked = 0;
    for def in OPS.all() {
        if let Grad::Rule(rule) = def.grad {
            for sample in (def.samples)() {
                check(def, rule, &sample);
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "only {checked} samples were checked");
}

type GradRule = fn(&GradCtx<'_>) -> Result<Vec<Op>, regatta_ir::Error>;

fn check(def: &OpDef, rule: GradRule, sample: &Sample) {
    let what = format!("{} ({})", def.schema.kind, sample.name);
    let (op, env) = forward_op(def, sample);
    let outputs = loss_outputs(&op, &env, sample);
    assert!(!outputs.is_empty(), "{what}: no output to check");
    let wanted: Vec<String> = op
        .inputs
        .iter()
        .filter(|(slot, _)| !sample.fixed.contains(&slot.as_str()))
        .flat_map(|(_, vars)| vars.clone())
        .filter(|v| matches!(&env[v], Cell::Value(Value::Dense(t)) if t.dtype() == DType::F32))
        .collect();
    assert!(!wanted.is_empty(), "{what}: nothing to differentiate");

    let has_grad = |v: &str| wanted.iter().chain(&outputs).any(|w| w == v);
    let ty = |v: &str| type_of(&env[v]);
    let grad_ops = rule(&GradCtx { op: &op, has_grad: &has_grad, ty: &ty }).expect(&what);
    let mut analytic = env.clone();
    run(&op, &mut analytic, &what);
    for out in &outputs {
        let shape = dense(&analytic[out]).shape().to_vec();
        let weights = out_weights(out, shape.iter().product());
        let grad = Tensor::from_f32(&shape, weights).unwrap();
        analytic.insert(grad_name(out), Cell::Value(grad.into()));
    }
    for op in &grad_ops {
        run(op, &mut analytic, &what);
    }
    for var in &wanted {
        let name = grad_name(var);
        let got = analytic.get(&name).unwrap_or_else(|| panic!("{what}: no {name}")).floats();
        compare(&what, var, &got, &numeric(&op, &env, var, &outputs, &what), sample.tolerance);
    }
}

/// Float outputs that are not updated in place and not ignored: the checked loss is a fixed random
/// combination of their elements.
fn loss_outputs(op: &Op, env: &Env, sample: &Sample) -> Vec<String> {
    let mut after = env.clone();
    run(op, &mut after, &op.kind);
    op.outputs
        .iter()
        .filter(|(slot, _)| !sample.ignored_outputs.contains(&slot.as_str()))
        .flat_map(|(_, vars)| vars.clone())
        .filter(|v| !env.contains_key(v) && dense(&after[v]).dtype() == DType::F32)
        .collect()
}

fn out_weights(name: &str, n: usize) -> Vec<f32> {
    let rng = Rng::named(1, name);
    (0..n as u64).map(|i| rng.unit_f32(i) * 2.0 - 0.5).collect()
}

fn numeric(op: &Op, env: &Env, var: &str, outputs: &[String], what: &str) -> Vec<f64> {
    let loss = |at: usize, delta: f32| -> f64 {
        let mut env = env.clone();
        let Some(Cell::Value(Value::Dense(t))) = env.get_mut(var) else { unreachable!() };
        t.f32_mut()[at] += delta;
        run(op, &mut env, what);
        let terms = outputs.iter().flat_map(|out| {
            let values = env[out].floats();
            let weights = out_weights(out, values.len());
            values.into_iter().zip(weights).map(|(v, w)| f64::from(v) * f64::from(w))
        });
        terms.sum()
    };
    let n = dense(&env[var]).numel();
    (0..n).map(|i| (loss(i, STEP) - loss(i, -STEP)) / (2.0 * f64::from(STEP))).collect()
}

fn compare(what: &str, var: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: gradient of {var} has another size");
    let tolerance = if tolerance > 0.0 { tolerance } else { 2e-3 };
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= tolerance * (1.0 + want.abs()),
            "{what}: d{var}[{i}] is {got}, differences give {want}"
        );
    }
}

fn run(op: &Op, env: &mut Env, what: &str) {
    let mut ctx = StepCtx::default();
    eval(op, env, &mut ctx).unwrap_or_else(|e| panic!("{what}: {e}"));
}

fn dense(cell: &Cell) -> &Tensor {
    match cell {
        Cell::Value(Value::Dense(t)) => t,
        other => panic!("expected a dense value, found {other:?}"),
    }
}
