use regatta_ir::Op;
use regatta_tensor::DType::F32;

use crate::case::{case, f32s, i64s, inferred};

#[test]
fn ranges() {
    let range = |start: f64, end: f64, step: f64| {
        case("arange").attr("start", start).attr("end", end).attr("step", step)
    };
    assert_eq!(range(0.0, 4.0, 1.0).out(), i64s(&[4], &[0, 1, 2, 3]));
    assert_eq!(range(5.0, 0.0, -2.0).out(), i64s(&[3], &[5, 3, 1]));
    assert_eq!(range(3.0, 3.0, 1.0).out(), i64s(&[0], &[]));
    assert_eq!(range(0.0, 1.0, 0.25).attr("dtype", "f32").out().f32(), [0.0, 0.25, 0.5, 0.75]);
    assert!(range(0.0, 1.0, 0.0).error().contains("'step' is 0"));
    assert_eq!(
        case("arange").input("Like", f32s(&[3, 2], &[0.0; 6])).out(),
        i64s(&[3], &[0, 1, 2])
    );
    let like = inferred(Op::new("arange"), &[("Like", F32, &[-1, 7])]);
    assert_eq!(like.unwrap(), "i64[-1]");
    let space = |num: i64| case("linspace").attr("start", 1.0).attr("stop", 2.0).attr("num", num);
    assert_eq!(space(5).out(), f32s(&[5], &[1.0, 1.25, 1.5, 1.75, 2.0]));
    assert_eq!(space(1).out(), f32s(&[1], &[1.0]));
    assert!(space(0).error().contains("above 0"));
}

#[test]
fn shapes_and_diagonals() {
    assert_eq!(case("shape").input("X", i64s(&[2, 0, 3], &[])).out(), i64s(&[3], &[2, 0, 3]));
    let eye = case("eye").attr("rows", 2).attr("cols", 3).out();
    assert_eq!(eye, f32s(&[2, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]));
    let eye = case("eye").attr("rows", 3).attr("cols", 1).attr("dtype", "i64").out();
    assert_eq!(eye, i64s(&[3, 1], &[1, 0, 0]));
    let x = || i64s(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let tri = |diagonal: i64, lower: bool| {
        let case = case("tril_triu").input("X", x()).attr("diagonal", diagonal);
        case.attr("lower", lower).out().i64().to_vec()
    };
    assert_eq!(tri(0, true), [1, 0, 3, 4, 5, 0, 7, 8]);
    assert_eq!(tri(1, false), [0, 2, 0, 0, 0, 6, 0, 0]);
    assert_eq!(tri(i64::MIN, true), [0; 8]);
    let op = || Op::new("tril_triu");
    assert_eq!(inferred(op(), &[("X", F32, &[-1, 3, 3])]).unwrap(), "f32[-1, 3, 3]");
    assert!(inferred(op(), &[("X", F32, &[-1, 3])]).unwrap_err().contains("known rows"));
}

#[test]
fn fills_follow_a_batch() {
    let fill = |shape: Vec<i64>| {
        let op = Op::new("fill_constant").attr("shape", shape).attr("value", 2.0);
        inferred(op.attr("dtype", "i64"), &[("Like", F32, &[-1, 7])])
    };
    assert_eq!(fill(vec![-1, 3]).unwrap(), "i64[-1, 3]");
    assert_eq!(fill(vec![2, 3]).unwrap(), "i64[2, 3]");
    assert!(fill(vec![3, -1]).unwrap_err().contains("negative dimension"));
    let like = |dtype: &str| {
        let case = case("fill_like").input("X", i64s(&[2], &[5, 6]));
        case.attr("value", 1.0).attr("dtype", dtype).out()
    };
    assert_eq!(like(""), i64s(&[2], &[1, 1]));
    assert_eq!(like("f32"), f32s(&[2], &[1.0, 1.0]));
}

#[test]
fn integers_are_scaled_by_whole_numbers() {
    let x = || i64s(&[2], &[i64::MAX, -3]);
    let scale = |scale: f64, bias: f64| {
        case("scale").input("X", x()).attr("scale", scale).attr("bias", bias)
    };
    assert_eq!(scale(-1.0, 2.0).out(), i64s(&[2], &[-i64::MAX + 2, 5]));
    assert!(scale(0.5, 0.0).error().contains("whole numbers only"));
    let truth = case("not_zero").input("X", f32s(&[3], &[0.0, -0.5, f32::NAN])).out();
    assert_eq!(truth, i64s(&[3], &[0, 1, 1]));
}

#[test]
fn halves_become_integers_and_back() {
    let cast = |x, to: &str| case("cast").input("X", x).attr("dtype", to).out();
    for half in ["f16", "bf16"] {
        let x = cast(i64s(&[3], &[0, -7, 96]), half);
        assert_eq!(x.dtype().to_string(), half);
        assert_eq!(cast(x, "i64"), i64s(&[3], &[0, -7, 96]));
    }
    let halves = cast(f32s(&[1], &[f32::INFINITY]), "f16");
    let e = case("cast").input("X", halves).attr("dtype", "i64").error();
    assert_eq!(e, "running cast: inf has no counterpart in i64");
}
