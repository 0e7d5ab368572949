use regatta_ir::Op;
use regatta_tensor::DType::F32;
use regatta_tensor::Tensor;

use crate::case::{case, f32s, i64s, inferred};

const NAN: f32 = f32::NAN;

fn over(kind: &str, x: Tensor, dims: Vec<i64>) -> Tensor {
    case(kind).input("X", x).attr("dims", dims).out()
}

/// Recorded from PaddlePaddle 2.6.2: `max` gives every one of equal elements the whole gradient,
/// `amax` shares it.
#[test]
fn the_gradient_of_an_extreme_goes_to_all_that_are_equal() {
    let gradient = |kind| {
        let x = f32s(&[2, 3], &[0.0, 0.0, -1.0, 1.0, 2.0, 2.0]);
        case(kind).input("X", x).attr("dims", vec![1]).gradients(&["X"]).remove(0)
    };
    assert_eq!(gradient("reduce_max"), [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(gradient("reduce_amax"), [0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
    assert_eq!(gradient("reduce_min"), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(gradient("reduce_amin"), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn integers_are_reduced() {
    let x = || i64s(&[2, 3], &[4, -2, 3, 0, 5, i64::MAX]);
    assert_eq!(over("reduce_max", x(), vec![1]), i64s(&[2], &[4, i64::MAX]));
    assert_eq!(over("reduce_min", x(), vec![0]), i64s(&[3], &[0, -2, 3]));
    assert_eq!(over("reduce_prod", i64s(&[2, 2], &[2, 3, 4, 5]), vec![]), i64s(&[1], &[120]));
    assert_eq!(over("reduce_all", x(), vec![1]), i64s(&[2], &[1, 0]));
    assert_eq!(over("reduce_any", i64s(&[2, 1], &[0, 7]), vec![1]), i64s(&[2], &[0, 1]));
    let none = || f32s(&[0, 2], &[]);
    assert_eq!(over("reduce_all", none(), vec![0]), i64s(&[2], &[1, 1]));
    assert_eq!(over("reduce_any", none(), vec![0]), i64s(&[2], &[0, 0]));
    assert_eq!(over("reduce_any", f32s(&[1], &[NAN]), vec![]), i64s(&[1], &[1]));
}

#[test]
fn positions_of_extremes() {
    let at = |kind: &str, x: Tensor, axis: i64, keep: bool| {
        case(kind).input("X", x).attr("axis", axis).attr("keep_dim", keep).out()
    };
    let x = || f32s(&[2, 3], &[1.0, 5.0, 5.0, NAN, -1.0, 4.0]);
    assert_eq!(at("argmax", x(), 1, false), i64s(&[2], &[1, 2]));
    assert_eq!(at("argmin", x(), -1, true), i64s(&[2, 1], &[0, 1]));
    assert_eq!(at("argmax", x(), 0, false), i64s(&[3], &[0, 0, 0]));
    assert_eq!(at("argmin", i64s(&[3], &[7, -2, -2]), 0, false), i64s(&[1], &[1]));
    let op = Op::new("argmax").attr("axis", 1);
    assert_eq!(inferred(op, &[("X", F32, &[-1, 4, 2])]).unwrap(), "i64[-1, 2]");
}

#[test]
fn sums_of_exponentials_do_not_overflow() {
    let x = f32s(&[2, 2], &[1000.0, 1000.0, f32::NEG_INFINITY, 0.5]);
    let got = over("logsumexp", x, vec![1]);
    assert_eq!(got, f32s(&[2], &[1000.0 + 2f32.ln(), 0.5]));
    let none = f32s(&[1, 2], &[f32::NEG_INFINITY, f32::NEG_INFINITY]);
    assert_eq!(over("logsumexp", none, vec![1]).f32(), [f32::NEG_INFINITY]);
    let all = f32s(&[1, 2], &[f32::INFINITY, 1.0]);
    assert_eq!(over("logsumexp", all, vec![1]).f32(), [f32::INFINITY]);
}

#[test]
fn norms() {
    let norm = |p: f64| {
        let case = case("p_norm").input("X", f32s(&[2, 2], &[3.0, -4.0, 0.0, 0.0]));
        case.attr("p", p).attr("dims", vec![1])
    };
    assert_eq!(norm(2.0).out(), f32s(&[2], &[5.0, 0.0]));
    assert_eq!(norm(1.0).out(), f32s(&[2], &[7.0, 0.0]));
    assert_eq!(norm(0.0).out(), f32s(&[2], &[2.0, 0.0]));
    assert_eq!(norm(f64::INFINITY).out(), f32s(&[2], &[4.0, 0.0]));
    assert_eq!(norm(2.0).gradients(&["X"]), [[0.6, -0.8, 0.0, 0.0]]);
    assert!(norm(-1.0).error().contains("'p' should not be negative"));
}

#[test]
fn cumulated() {
    let x = || i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let sum = |axis: i64, exclusive: bool, reverse: bool| {
        let case = case("cumsum").input("X", x()).attr("axis", axis);
        case.attr("exclusive", exclusive).attr("reverse", reverse).out().i64().to_vec()
    };
    assert_eq!(sum(1, false, false), [1, 3, 6, 4, 9, 15]);
    assert_eq!(sum(0, false, false), [1, 2, 3, 5, 7, 9]);
    assert_eq!(sum(-1, true, true), [5, 3, 0, 11, 6, 0]);
    let prod = |axis: i64| case("cumprod").input("X", x()).attr("axis", axis).out().i64().to_vec();
    assert_eq!(prod(1), [1, 2, 6, 4, 20, 120]);
    assert_eq!(prod(0), [1, 2, 3, 4, 10, 18]);
    let product = case("cumprod").input("X", f32s(&[3], &[2.0, 0.0, 3.0])).attr("axis", 0);
    assert_eq!(product.gradients(&["X"]), [[1.0, 8.0, 0.0]]);
}
