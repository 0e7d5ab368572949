use regatta_ir::Op;
use regatta_tensor::DType::{F32, I64};

use crate::case::{case, dense, f32s, i64s, inferred};

const NAN: f32 = f32::NAN;

#[test]
fn sorted_with_positions() {
    let sort = |descending: bool| {
        let case = case("argsort").input("X", f32s(&[5], &[2.0, NAN, -1.0, 2.0, 0.5]));
        let env = case.attr("descending", descending).run().unwrap();
        (dense(&env, "Out").f32().to_vec(), dense(&env, "Indices").i64().to_vec())
    };
    let (values, indices) = sort(false);
    assert_eq!((&values[..4], indices), (&[-1.0, 0.5, 2.0, 2.0][..], vec![2, 4, 0, 3, 1]));
    let (values, indices) = sort(true);
    assert_eq!((&values[1..], indices), (&[2.0, 2.0, 0.5, -1.0][..], vec![1, 0, 3, 4, 2]));
    let ints = case("argsort").input("X", i64s(&[3, 1], &[3, 1, 2])).attr("axis", 0).out();
    assert_eq!(ints, i64s(&[3, 1], &[1, 2, 3]));
}

#[test]
fn the_first_few() {
    let top = |k: i64, largest: bool| {
        let case = case("topk").input("X", i64s(&[2, 4], &[4, 9, 9, 1, 0, 7, 3, 5]));
        case.attr("k", k).attr("largest", largest)
    };
    let env = top(2, true).run().unwrap();
    assert_eq!(dense(&env, "Out"), i64s(&[2, 2], &[9, 9, 7, 5]));
    assert_eq!(dense(&env, "Indices"), i64s(&[2, 2], &[1, 2, 1, 3]));
    assert_eq!(top(1, false).out(), i64s(&[2, 1], &[1, 0]));
    assert!(top(5, true).error().contains("dimension 1 of i64[2, 4] has 4 elements"));
    let op = Op::new("topk").attr("k", 3);
    assert_eq!(inferred(op, &[("X", F32, &[-1, 9])]).unwrap(), "f32[-1, 3], i64[-1, 3]");
}

#[test]
fn masks_select_as_many_as_they_say() {
    let select = |mask: &[i64], attr: &str, n: i64| {
        let case = case("masked_select").input("X", f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
        case.input("Mask", i64s(&[2, 2], mask)).attr(attr, n)
    };
    assert_eq!(select(&[0, 1, 1, 1], "count", 3).out(), f32s(&[3], &[2.0, 3.0, 4.0]));
    assert_eq!(select(&[0, 1, 1, 0], "per_row", 1).out(), f32s(&[2], &[2.0, 3.0]));
    let e = select(&[0, 1, 1, 1], "per_row", 1).error();
    assert_eq!(e, "running masked_select: the mask selects 2 elements of row 1, not 1");
    let types = [("X", F32, &[-1, 3][..]), ("Mask", I64, &[-1, 3])];
    let e = inferred(Op::new("masked_select"), &types).unwrap_err();
    assert!(e.contains("cannot have a shape that depends on values"), "{e}");
    let op = Op::new("masked_select").attr("per_row", 2);
    assert_eq!(inferred(op, &types).unwrap(), "f32[-1]");
}
