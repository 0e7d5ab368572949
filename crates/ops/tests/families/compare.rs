use regatta_ir::Op;
use regatta_tensor::DType::{F32, I64};

use crate::case::{case, f32s, i64s, inferred};

const NAN: f32 = f32::NAN;

#[test]
fn floats_and_integers_are_compared() {
    let floats = |kind| {
        let case = case(kind).input("X", f32s(&[2, 3], &[1.0, 2.0, NAN, -0.0, 3.0, 5.0]));
        case.input("Y", f32s(&[3], &[0.0, 2.0, 4.0])).out().i64().to_vec()
    };
    let ints = |kind| {
        let case = case(kind).input("X", i64s(&[2, 1], &[1, i64::MAX]));
        case.input("Y", i64s(&[2], &[1, i64::MAX - 1])).out()
    };
    assert_eq!(floats("equal"), [0, 1, 0, 1, 0, 0]);
    assert_eq!(floats("not_equal"), [1, 0, 1, 0, 1, 1]);
    assert_eq!(floats("less_than"), [0, 0, 0, 0, 0, 0]);
    assert_eq!(floats("less_equal"), [0, 1, 0, 1, 0, 0]);
    assert_eq!(floats("greater_than"), [1, 0, 0, 0, 1, 1]);
    assert_eq!(floats("greater_equal"), [1, 1, 0, 1, 1, 1]);
    assert_eq!(ints("less_than"), i64s(&[2, 2], &[0, 1, 0, 0]));
    assert_eq!(ints("equal"), i64s(&[2, 2], &[1, 0, 0, 0]));
}

#[test]
fn logic_takes_everything_but_zero_for_true() {
    let of = |kind| {
        let case = case(kind).input("X", i64s(&[4], &[0, 0, -3, 1]));
        case.input("Y", i64s(&[4], &[0, 1, 0, 7])).out().i64().to_vec()
    };
    assert_eq!(of("logical_and"), [0, 0, 0, 1]);
    assert_eq!(of("logical_or"), [0, 1, 1, 1]);
    assert_eq!(of("logical_xor"), [0, 1, 1, 0]);
    assert_eq!(of("bitwise_and"), [0, 0, 0, 1]);
    assert_eq!(of("bitwise_or"), [0, 1, -3, 7]);
    assert_eq!(of("bitwise_xor"), [0, 1, -3, 6]);
    let x = || f32s(&[4], &[0.0, NAN, f32::INFINITY, 1.0]);
    let one = |kind| case(kind).input("X", x()).out().i64().to_vec();
    assert_eq!(one("logical_not"), [1, 0, 0, 0]);
    assert_eq!(one("isnan"), [0, 1, 0, 0]);
    assert_eq!(one("isinf"), [0, 0, 1, 0]);
    assert_eq!(one("isfinite"), [1, 0, 0, 1]);
    assert_eq!(case("isfinite").input("X", i64s(&[2], &[0, 9])).out(), i64s(&[2], &[1, 1]));
    assert_eq!(case("bitwise_not").input("X", i64s(&[2], &[0, 9])).out(), i64s(&[2], &[-1, -10]));
}

#[test]
fn operands_have_one_type_and_fit() {
    let less = || Op::new("less_than");
    let got = inferred(less(), &[("X", F32, &[-1, 3]), ("Y", F32, &[1])]);
    assert_eq!(got.unwrap(), "i64[-1, 3]");
    let e = inferred(less(), &[("X", F32, &[-1, 3]), ("Y", I64, &[1])]).unwrap_err();
    assert!(e.contains("f32 that broadcasts with [-1, 3]"), "{e}");
    let e = inferred(less(), &[("X", F32, &[2, 3]), ("Y", F32, &[2])]).unwrap_err();
    assert!(e.contains("'Y'"), "{e}");
    let e = case("bitwise_not").input("X", f32s(&[1], &[1.0])).error();
    assert!(e.contains("dense i64"), "{e}");
}

#[test]
fn where_takes_integers_and_broadcasts() {
    let case = |condition| case("where").input("Condition", condition);
    let out = case(i64s(&[2, 1], &[1, 0])).input("X", i64s(&[2], &[1, 2]));
    assert_eq!(out.input("Y", i64s(&[1], &[9])).out(), i64s(&[2, 2], &[1, 2, 9, 9]));
    let e = case(f32s(&[1], &[1.0])).input("X", i64s(&[1], &[1])).input("Y", i64s(&[1], &[9]));
    assert!(e.error().contains("dense i64 (0 or 1)"));
    let types = [("Condition", I64, &[-1, 1][..]), ("X", F32, &[3]), ("Y", F32, &[-1, 3])];
    assert_eq!(inferred(Op::new("where"), &types).unwrap(), "f32[-1, 3]");
}

#[test]
fn integers_divide() {
    let of = |kind: &str, x: &[i64], y: &[i64]| {
        case(kind).input("X", i64s(&[x.len()], x)).input("Y", i64s(&[y.len()], y))
    };
    let (x, y) = ([-7, 7, -7, 7], [2, -2, -2, 2]);
    assert_eq!(of("elementwise_div", &x, &y).out().i64(), [-3, -3, 3, 3]);
    assert_eq!(of("elementwise_floordiv", &x, &y).out().i64(), [-4, -4, 3, 3]);
    assert_eq!(of("elementwise_mod", &x, &y).out().i64(), [1, -1, -1, 1]);
    assert_eq!(of("elementwise_pow", &x, &[2]).out().i64(), [49, 49, 49, 49]);
    let e = of("elementwise_mod", &x, &[1, 2, 0, 4]).error();
    assert_eq!(e, "running elementwise_mod: element 2 of the divisor is 0");
}

/// Recorded from PaddlePaddle 2.6.2.
#[test]
fn nothing_passes_clip_at_its_bounds() {
    let x = f32s(&[5], &[-1.0, 0.0, 0.5, 1.0, 2.0]);
    let clip = case("clip").input("X", x).attr("min", 0.0).attr("max", 1.0);
    assert_eq!(clip.gradients(&["X"]), [[0.0, 0.0, 1.0, 0.0, 0.0]]);
}
