//! Ops that say that they can be run on parts of a batch: the parts together give what the whole
//! batch gives, rows one after the other and everything else added up.

use regatta_ir::{Attr, Op};
use regatta_ops::interp::{Cell, Env, PreparedOp, type_of};
use regatta_ops::{Batch, Infer, OPS, StepCtx};
use regatta_tensor::{Data, Rng, Tensor, Value};

/// An op, and its inputs: variable, slot, shape, and whether the first dimension is the batch.
struct Case<'a> {
    kind: &'a str,
    inputs: &'a [(&'a str, &'a [usize], bool)],
    outputs: &'a [&'a str],
    attrs: Vec<(&'a str, Attr)>,
}

fn value(name: &str, shape: &[usize]) -> Tensor {
    let rng = Rng::named(3, name);
    let n: usize = shape.iter().product();
    let floats = (0..n as u64).map(|i| rng.unit_f32(i) + 0.25).collect();
    Tensor::from_f32(shape, floats).unwrap()
}

fn rows(t: &Tensor, from: usize, to: usize, of: usize) -> Tensor {
    let mut shape = t.shape().to_vec();
    let width = t.numel() / of;
    shape[0] = shape[0] * (to - from) / of;
    Tensor::new(&shape, Data::F32(t.f32()[from * width..to * width].to_vec())).unwrap()
}

fn floats(env: &Env, name: &str) -> Vec<f32> {
    match &env[name] {
        Cell::Value(Value::Dense(t)) => t.f32().to_vec(),
        other => panic!("{other:?}"),
    }
}

fn check(case: &Case<'_>) {
    const EXAMPLES: usize = 6;
    let mut op = Op::new(case.kind);
    let mut whole = Env::new();
    for (slot, shape, _) in case.inputs {
        op = op.input(slot, slot);
        whole.insert(slot.to_string(), Cell::Value(value(slot, shape).into()));
    }
    for slot in case.outputs {
        op = op.output(slot, slot);
    }
    for (name, attr) in &case.attrs {
        op = op.attr(name, attr.clone());
    }
    OPS.def(case.kind).unwrap().schema.complete(&mut op).unwrap();
    assert_ne!((OPS.def(case.kind).unwrap().batch)(&op), Batch::Whole, "{}", case.kind);

    let batched: Vec<&str> = case.inputs.iter().filter(|i| i.2).map(|i| i.0).collect();
    let mut declared: Vec<_> = op.input_vars().map(|v| type_of(&whole[v])).collect();
    for (ty, name) in declared.iter_mut().zip(op.input_vars()) {
        if batched.contains(&name) {
            ty.shape[0] = -1;
        }
    }
    let def = OPS.def(case.kind).unwrap();
    let outs = (def.infer)(&Infer { op: &op, ins: &declared }).unwrap();

    let run = |env: &mut Env, first: usize, rows: usize| {
        let mut ctx = StepCtx {
            step: 4,
            first_example: first,
            rows,
            total_rows: EXAMPLES,
            ..StepCtx::default()
        };
        PreparedOp::new(&op, env, &batched).unwrap().run(&mut ctx).unwrap();
    };
    let mut parts = Vec::new();
    for (from, to) in [(0, 2), (2, 6)] {
        let mut env = Env::new();
        for name in op.input_vars() {
            let Cell::Value(Value::Dense(t)) = &whole[name] else { unreachable!() };
            let part =
                if batched.contains(&name) { rows(t, from, to, EXAMPLES) } else { t.clone() };
            env.insert(name.to_string(), Cell::Value(part.into()));
        }
        run(&mut env, from, to - from);
        parts.push(env);
    }
    run(&mut whole, 0, EXAMPLES);
    for (name, ty) in op.output_vars().zip(&outs) {
        let want = floats(&whole, name);
        let (mut got, second) = (floats(&parts[0], name), floats(&parts[1], name));
        if ty.is_batched() {
            got.extend(second);
        } else {
            got.iter_mut().zip(second).for_each(|(a, b)| *a += b);
        }
        assert_eq!(got.len(), want.len(), "{} {name}", case.kind);
        for (g, w) in got.iter().zip(&want) {
            assert!(
                (g - w).abs() < 1e-5 * (1.0 + w.abs()),
                "{} {name}: {got:?} {want:?}",
                case.kind
            );
        }
    }
}

#[test]
fn parts_add_up_to_the_whole() {
    let dims = |dims: &[i64]| ("dims", Attr::Ints(dims.to_vec()));
    let matrix: &[usize] = &[6, 4];
    let cube: &[usize] = &[6, 3, 4];
    for kind in ["reduce_sum", "reduce_mean"] {
        let grad = format!("{kind}_grad");
        for over in [&[][..], &[0], &[-2], &[1], &[0, 2]] {
            let x: &[_] = &[("X", cube, true)];
            check(&Case { kind, inputs: x, outputs: &["Out"], attrs: vec![dims(over)] });
        }
        // The gradient of something without a batch is the same in each part.
        let inputs: &[_] = &[("X", matrix, true), ("dOut", &[4], false)];
        check(&Case { kind: &grad, inputs, outputs: &["dX"], attrs: vec![dims(&[0])] });
        let inputs: &[_] = &[("X", matrix, true), ("dOut", &[6], true)];
        check(&Case { kind: &grad, inputs, outputs: &["dX"], attrs: vec![dims(&[1])] });
    }
    // Three rows per example, as after a reshape.
    let x: &[_] = &[("X", &[18usize, 4][..], true)];
    check(&Case { kind: "reduce_mean", inputs: x, outputs: &["Out"], attrs: vec![dims(&[0])] });
    let one_for_two: &[_] = &[("X", &[3usize, 4][..], true)];
    check(&Case { kind: "mean", inputs: one_for_two, outputs: &["Out"], attrs: vec![] });
    check(&Case {
        kind: "reduce_max",
        inputs: &[("X", cube, true)],
        outputs: &["Out"],
        attrs: vec![dims(&[1])],
    });
    for shape in [matrix, cube, &[18, 2]] {
        check(&Case {
            kind: "dropout",
            inputs: &[("X", shape, true)],
            outputs: &["Out", "Mask"],
            attrs: vec![],
        });
    }
}

#[test]
fn products_and_norms_of_parts() {
    let product = |x: (&[usize], bool), y: (&[usize], bool), tx: bool, ty: bool| {
        check(&Case {
            kind: "matmul",
            inputs: &[("X", x.0, x.1), ("Y", y.0, y.1)],
            outputs: &["Out"],
            attrs: vec![("trans_x", tx.into()), ("trans_y", ty.into())],
        });
    };
    product((&[6, 4], true), (&[4, 2], false), false, false);
    product((&[6, 4], true), (&[2, 4], false), false, true);
    product((&[6, 4], true), (&[6, 3], true), true, false);
    product((&[6, 2, 4], true), (&[6, 4, 3], true), false, false);
    product((&[6, 2, 4], true), (&[4, 3], false), false, false);
    product((&[6, 4, 2], true), (&[4, 3], false), true, false);
    product((&[6, 2, 3, 4], true), (&[6, 2, 4, 3], true), false, false);
    product((&[6, 2, 3, 4], true), (&[2, 4, 3], false), false, false);
    product((&[6, 4], true), (&[4], false), false, false);
    product((&[6], true), (&[6, 3], true), false, false);
    let gradient = |x: (&[usize], bool), y: (&[usize], bool), d: (&[usize], bool)| {
        check(&Case {
            kind: "matmul_grad",
            inputs: &[("X", x.0, x.1), ("Y", y.0, y.1), ("dOut", d.0, d.1)],
            outputs: &["dX", "dY"],
            attrs: vec![],
        });
    };
    gradient((&[6, 2, 3, 4], true), (&[2, 4, 3], false), (&[6, 2, 3, 3], true));
    gradient((&[6, 1, 3, 4], true), (&[6, 2, 4, 3], true), (&[6, 2, 3, 3], true));
    gradient((&[6, 4], true), (&[4], false), (&[6], true));
    gradient((&[6], true), (&[6, 3], true), (&[3], false));
    let sum = |tx: bool, ty: bool, x: &[usize], y: &[usize]| {
        check(&Case {
            kind: "matmul_sum",
            inputs: &[("X", x, true), ("Y", y, true)],
            outputs: &["Out"],
            attrs: vec![("trans_x", tx.into()), ("trans_y", ty.into())],
        });
    };
    sum(true, false, &[6, 2, 3], &[6, 2, 4]);
    sum(false, true, &[6, 3, 2], &[6, 4, 2]);
    check(&Case {
        kind: "layer_norm_grad",
        inputs: &[
            ("X", &[6, 4], true),
            ("Scale", &[4], false),
            ("Mean", &[6, 1], true),
            ("InvStd", &[6, 1], true),
            ("dY", &[6, 4], true),
        ],
        outputs: &["dX", "dScale", "dBias"],
        attrs: vec![],
    });
    check(&Case {
        kind: "batch_norm",
        inputs: &[
            ("X", &[6, 4], true),
            ("Scale", &[4], false),
            ("Bias", &[4], false),
            ("Mean", &[4], false),
            ("Variance", &[4], false),
        ],
        outputs: &["Y"],
        attrs: vec![("is_test", true.into())],
    });
    check(&Case {
        kind: "transpose",
        inputs: &[("X", &[6, 2, 3], true)],
        outputs: &["Out"],
        attrs: vec![("perm", Attr::Ints(vec![0, 2, 1]))],
    });
    check(&Case {
        kind: "reshape",
        inputs: &[("X", &[6, 2, 3], true)],
        outputs: &["Out"],
        attrs: vec![("shape", Attr::Ints(vec![-1, 3]))],
    });
}

#[test]
fn images_and_sequences_of_parts() {
    let pads = || vec![("paddings", Attr::Ints(vec![1, 1]))];
    let images: (&str, &[usize], bool) = ("X", &[6, 2, 4, 4], true);
    let weights: (&str, &[usize], bool) = ("W", &[3, 2, 3, 3], false);
    let inputs: &[_] = &[images, weights, ("Bias", &[3], false)];
    check(&Case { kind: "conv2d", inputs, outputs: &["Out"], attrs: pads() });
    let inputs: &[_] = &[images, weights, ("dOut", &[6, 3, 4, 4], true)];
    let outputs: &[_] = &["dX", "dW", "dBias"];
    check(&Case { kind: "conv2d_grad", inputs, outputs, attrs: pads() });
    let pool = || vec![("pooling_type", "avg".into()), ("ksize", Attr::Ints(vec![2, 2]))];
    check(&Case { kind: "pool2d", inputs: &[images], outputs: &["Out"], attrs: pool() });
    let groups = vec![("groups", 2.into())];
    let outputs: &[_] = &["Y", "Mean", "InvStd"];
    check(&Case { kind: "group_norm", inputs: &[images], outputs, attrs: groups });
    let recurrent: &[(&str, &[usize], bool)] = &[
        ("X", &[6, 3, 2], true),
        ("WeightIh", &[9, 2], false),
        ("WeightHh", &[9, 3], false),
        ("InitH", &[6, 3], true),
    ];
    let outputs: &[_] = &["Out", "LastH", "Reserve"];
    check(&Case { kind: "gru", inputs: recurrent, outputs, attrs: vec![] });
    let more: &[(&str, &[usize], bool)] =
        &[("Out", &[6, 3, 3], true), ("Reserve", &[6, 3, 12], true), ("dOut", &[6, 3, 3], true)];
    let inputs = [recurrent, more].concat();
    let outputs: &[_] = &["dX", "dWeightIh", "dWeightHh", "dBiasIh", "dBiasHh", "dInitH"];
    check(&Case { kind: "gru_grad", inputs: &inputs, outputs, attrs: vec![] });
}

#[test]
fn what_needs_all_examples_says_so() {
    let batch = |op: Op| {
        let mut op = op;
        let def = OPS.def(&op.kind).unwrap();
        // Slots do not matter for the answer.
        for (name, attr) in [("dims", Attr::Ints(vec![])), ("is_test", false.into())] {
            if def.schema.attrs.iter().any(|(known, _)| *known == name) {
                op.attrs.entry(name.to_string()).or_insert(attr);
            }
        }
        (def.batch)(&op)
    };
    assert_eq!(batch(Op::new("batch_norm")), Batch::Whole);
    assert_eq!(batch(Op::new("batch_norm").attr("is_test", true)), Batch::PerExample);
    assert_eq!(batch(Op::new("reduce_max")), Batch::Whole);
    assert_eq!(batch(Op::new("reduce_max").attr("dims", vec![1, 0])), Batch::Whole);
    assert_eq!(batch(Op::new("reduce_max").attr("dims", vec![1])), Batch::PerExample);
    assert_eq!(batch(Op::new("concat").attr("axis", 0)), Batch::Whole);
    assert_eq!(batch(Op::new("concat").attr("axis", 1)), Batch::Linear);
    assert_eq!(batch(Op::new("transpose").attr("perm", vec![1, 0])), Batch::Whole);
    assert_eq!(batch(Op::new("transpose").attr("perm", vec![0, 2, 1])), Batch::Linear);
    assert_eq!(batch(Op::new("accuracy")), Batch::Whole);
    assert_eq!(batch(Op::new("auc")), Batch::Whole);
}
