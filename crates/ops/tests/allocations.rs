//! Kernels do not allocate once they have run: a training step must not depend on the allocator.
#![allow(unsafe_code, reason = "counts what the system allocator is asked for")]

mod samples;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell as Counter;

use regatta_ir::{Op, grad_name};
use regatta_ops::interp::{Cell, Env, PreparedOp, eval, type_of};
use regatta_ops::{Grad, GradCtx, OPS, StepCtx};
use regatta_tensor::{Tensor, Value};
use samples::forward_op;

struct Counting;

thread_local! {
    static COUNT: Counter<usize> = const { Counter::new(0) };
}

// SAFETY: hands everything to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn check(op: &Op, env: &mut Env, ctx: &mut StepCtx, what: &str) {
    let mut prepared = PreparedOp::new(op, env, &[]).unwrap_or_else(|e| panic!("{what}: {e}"));
    for _ in 0..2 {
        prepared.run(ctx).unwrap();
    }
    let before = COUNT.get();
    prepared.run(ctx).unwrap();
    assert_eq!(COUNT.get(), before, "{what}: op {} allocates", op.kind);
}

#[test]
fn kernels_do_not_allocate() {
    let mut ctx = StepCtx::default();
    for def in OPS.all() {
        let Grad::Rule(rule) = def.grad else { continue };
        for sample in (def.samples)() {
            let what = format!("{} ({})", def.schema.kind, sample.name);
            let (op, mut env) = forward_op(def, &sample);
            check(&op, &mut env, &mut ctx, &what);
            let outputs: Vec<String> = op
                .outputs
                .iter()
                .filter(|(slot, _)| !sample.ignored_outputs.contains(&slot.as_str()))
                .flat_map(|(_, vars)| vars.clone())
                .filter(|v| !op.input_vars().any(|input| input == v))
                .collect();
            for out in &outputs {
                let Cell::Value(Value::Dense(t)) = &env[out] else { continue };
                let grad = Tensor::zeros(t.dtype(), t.shape());
                env.insert(grad_name(out), Cell::Value(grad.into()));
            }
            let fixed = |v: &str| {
                let slot = op.inputs.iter().find(|(_, vars)| vars.iter().any(|var| var == v));
                slot.is_some_and(|(slot, _)| sample.fixed.contains(&slot.as_str()))
            };
            let types: std::collections::HashMap<_, _> =
                env.iter().map(|(name, cell)| (name.clone(), type_of(cell))).collect();
            let has_grad = |v: &str| {
                let input = op.input_vars().any(|input| input == v);
                if input { !fixed(v) } else { outputs.iter().any(|out| out == v) }
            };
            let ctx_of_op = GradCtx { op: &op, has_grad: &has_grad, ty: &|v| types[v].clone() };
            for grad_op in rule(&ctx_of_op).unwrap() {
                check(&grad_op, &mut env, &mut ctx, &what);
            }
        }
    }
}

#[test]
fn ops_without_gradient_do_not_allocate() {
    let ints = |shape: &[usize], values: &[i64]| {
        Cell::Value(Tensor::from_i64(shape, values.to_vec()).unwrap().into())
    };
    let floats = |shape: &[usize], values: &[f32]| {
        Cell::Value(Tensor::from_f32(shape, values.to_vec()).unwrap().into())
    };
    let mut env = Env::from([
        ("scores".to_string(), floats(&[2, 2], &[0.2, 0.8, 0.5, 0.5])),
        ("labels".to_string(), ints(&[2, 1], &[1, 0])),
        ("pos".to_string(), ints(&[11], &[0; 11])),
        ("neg".to_string(), ints(&[11], &[0; 11])),
    ]);
    let mut ctx = StepCtx::default();
    let ops = [
        Op::new("accuracy").input("X", "scores").input("Label", "labels").output("Out", "a"),
        Op::new("auc")
            .input("Predict", "scores")
            .input("Label", "labels")
            .input("StatPos", "pos")
            .input("StatNeg", "neg")
            .output("AUC", "b")
            .output("StatPosOut", "pos")
            .output("StatNegOut", "neg"),
        Op::new("one_hot").input("X", "labels").attr("depth", 4).output("Out", "c"),
        Op::new("sequence_mask").input("Lengths", "labels").attr("maxlen", 4).output("Out", "d"),
        Op::new("cast").input("X", "labels").attr("dtype", "f32").output("Out", "e"),
    ];
    for op in &ops {
        check(op, &mut env, &mut ctx, "without gradient");
        eval(op, &mut env, &mut ctx).unwrap();
    }
}
