//! Ops on 16-bit floats: computed in f32 on the rounded inputs, rounded once at the end.

use regatta_ir::Op;
use regatta_kernels::half::{Half, narrow, widen};
use regatta_ops::StepCtx;
use regatta_ops::interp::{Cell, Env, eval};
use regatta_tensor::{DType, Data, Rng, Tensor, Value};

fn floats(shape: &[usize], name: &str) -> Tensor {
    let rng = Rng::named(7, name);
    let n = shape.iter().product::<usize>() as u64;
    Tensor::from_f32(shape, (0..n).map(|i| rng.unit_f32(i) * 2.0 - 1.0).collect()).unwrap()
}

fn rounded(half: Half, t: &Tensor) -> Tensor {
    let mut bits = vec![0; t.numel()];
    narrow(half, t.f32(), &mut bits);
    let data = match half {
        Half::F16 => Data::F16(bits),
        Half::Bf16 => Data::BF16(bits),
    };
    Tensor::new(t.shape(), data).unwrap()
}

fn wide(t: &Tensor) -> Tensor {
    let mut out = vec![0.0; t.numel()];
    match t.data() {
        Data::F16(bits) => widen(Half::F16, bits, &mut out),
        Data::BF16(bits) => widen(Half::Bf16, bits, &mut out),
        _ => return t.clone(),
    }
    Tensor::from_f32(t.shape(), out).unwrap()
}

fn run(op: &Op, inputs: &[(&str, Tensor)]) -> Result<Env, regatta_ir::Error> {
    let cells = inputs.iter().map(|(n, t)| (n.to_string(), Cell::Value(Value::Dense(t.clone()))));
    let mut env: Env = cells.collect();
    eval(op, &mut env, &mut StepCtx::default())?;
    Ok(env)
}

fn dense<'a>(env: &'a Env, name: &str) -> &'a Tensor {
    match &env[name] {
        Cell::Value(Value::Dense(t)) => t,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_op_on_halves_is_the_op_on_rounded_floats_rounded() {
    let fc = Op::new("fc").input("X", "x").input("W", "w").input("Bias", "b").output("Out", "y");
    let fc = fc.attr("act", "tanh");
    let add = Op::new("elementwise_mul").input("X", "x").input("Y", "z").output("Out", "y");
    let soft = Op::new("softmax").input("X", "x").output("Out", "y");
    for half in [Half::F16, Half::Bf16] {
        for op in [&fc, &add, &soft] {
            let all = [("x", [5, 33]), ("w", [33, 7]), ("z", [5, 33])]
                .map(|(name, shape)| (name, rounded(half, &floats(&shape, name))));
            let bias = ("b", rounded(half, &floats(&[7], "b")));
            let inputs: Vec<_> = all.into_iter().chain([bias]).collect();
            let in_f32: Vec<_> = inputs.iter().map(|(n, t)| (*n, wide(t))).collect();
            let got = run(op, &inputs).unwrap();
            let want = rounded(half, dense(&run(op, &in_f32).unwrap(), "y"));
            assert_eq!(dense(&got, "y"), &want, "{} in {half:?}", op.kind);
        }
    }
}

#[test]
fn moves_keep_the_bits() {
    let x = rounded(Half::F16, &floats(&[2, 6], "x"));
    let op = Op::new("reshape").input("X", "x").attr("shape", vec![3i64, 4]).output("Out", "y");
    let env = run(&op, &[("x", x.clone())]).unwrap();
    assert_eq!(dense(&env, "y").data(), x.data());
}

#[test]
fn casts_round_and_come_back_exactly() {
    let x = floats(&[100], "x");
    for (name, half, dtype) in [("f16", Half::F16, DType::F16), ("bf16", Half::Bf16, DType::BF16)] {
        let down = Op::new("cast").attr("dtype", name).input("X", "x").output("Out", "y");
        let env = run(&down, &[("x", x.clone())]).unwrap();
        assert_eq!(dense(&env, "y").dtype(), dtype);
        assert_eq!(dense(&env, "y"), &rounded(half, &x));
        let up = Op::new("cast").attr("dtype", "f32").input("X", "y").output("Out", "z");
        let back = run(&up, &[("y", dense(&env, "y").clone())]).unwrap();
        assert_eq!(dense(&back, "z"), &wide(dense(&env, "y")));
    }
}

#[test]
fn inputs_of_different_precision_are_refused() {
    let op = Op::new("elementwise_add").input("X", "x").input("Y", "y").output("Out", "z");
    let (x, y) = (rounded(Half::Bf16, &floats(&[2, 3], "x")), floats(&[2, 3], "y"));
    let error = run(&op, &[("x", x), ("y", y)]).unwrap_err().to_string();
    assert!(error.contains("'y'") && error.contains("cast it first"), "{error}");
}

#[test]
fn gradients_of_moves_are_added_in_f32() {
    let x = rounded(Half::F16, &floats(&[3, 2], "x"));
    let index = Tensor::from_i64(&[4], vec![2, 0, 2, 2]).unwrap();
    let op = Op::new("gather").input("X", "x").input("Index", "i").output("Out", "y");
    let env = run(&op, &[("x", x.clone()), ("i", index.clone())]).unwrap();
    assert_eq!(dense(&env, "y").dtype(), DType::F16);
    let d = rounded(Half::F16, &floats(&[4, 2], "d"));
    let back = Op::new("gather_grad").input("X", "x").input("Index", "i").input("dOut", "d");
    let back = back.output("dX", "dx");
    let got = run(&back, &[("x", x.clone()), ("i", index.clone()), ("d", d.clone())]).unwrap();
    let want = run(&back, &[("x", wide(&x)), ("i", index), ("d", wide(&d))]).unwrap();
    assert_eq!(dense(&got, "dx"), &rounded(Half::F16, dense(&want, "dx")));
}
