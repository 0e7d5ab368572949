use regatta_ir::Op;
use regatta_tensor::DType::F32;

use crate::case::{Case, case, f32s, i64s, inferred};

type Cuts<'a> = &'a [(i64, i64, i64, i64)];

fn cut(op: Case, cuts: Cuts<'_>) -> Case {
    let of = |f: fn(&(i64, i64, i64, i64)) -> i64| cuts.iter().map(f).collect::<Vec<i64>>();
    let op = op.attr("axes", of(|c| c.0)).attr("starts", of(|c| c.1));
    op.attr("ends", of(|c| c.2)).attr("strides", of(|c| c.3))
}

#[test]
fn slices_with_steps() {
    let x = || i64s(&[3, 4], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let slice = |cuts: Cuts<'_>| cut(case("strided_slice").input("X", x()), cuts);
    let whole = i64::from(i32::MAX);
    assert_eq!(slice(&[(1, 0, whole, 2)]).out(), i64s(&[3, 2], &[0, 2, 4, 6, 8, 10]));
    let turned = slice(&[(0, -1, -whole, -1), (1, 1, 3, 1)]).out();
    assert_eq!(turned, i64s(&[3, 2], &[9, 10, 5, 6, 1, 2]));
    assert_eq!(slice(&[(1, 3, 1, 1)]).out(), i64s(&[3, 0], &[]));
    assert!(slice(&[(1, 0, 3, 0)]).error().contains("'strides' has a 0"));
    assert!(slice(&[(1, 0, 3, 1), (-1, 0, 2, 1)]).error().contains("different dimensions"));
    assert!(slice(&[(2, 0, 3, 1)]).error().contains("dimensions of X"));
}

#[test]
fn a_batch_is_sliced_only_as_a_whole() {
    let slice = |end: i64| {
        let op = Op::new("strided_slice").attr("axes", vec![0, 1]).attr("starts", vec![0, 1]);
        let op = op.attr("ends", vec![end, 3]).attr("strides", vec![1, 1]);
        inferred(op, &[("X", F32, &[-1, 4])])
    };
    assert_eq!(slice(i64::MAX).unwrap(), "f32[-1, 2]");
    assert!(slice(2).unwrap_err().contains("a known size of dimension 0"));
}

#[test]
fn values_are_written_into_slices() {
    let x = || i64s(&[3, 2], &[0, 1, 2, 3, 4, 5]);
    let set =
        |cuts: Cuts<'_>, value| cut(case("set_value").input("X", x()).input("Value", value), cuts);
    assert_eq!(set(&[(0, 0, 3, 2)], i64s(&[2], &[7, 8])).out(), i64s(&[3, 2], &[7, 8, 2, 3, 7, 8]));
    let turned = set(&[(0, -1, -9, -1), (1, 0, 1, 1)], i64s(&[3, 1], &[7, 8, 9])).out();
    assert_eq!(turned, i64s(&[3, 2], &[9, 1, 8, 3, 7, 5]));
    let e = set(&[(0, 0, 2, 1)], i64s(&[3, 2], &[0; 6])).error();
    assert!(e.contains("i64 that broadcasts to i64[2, 2]"), "{e}");
    let e = set(&[(0, 0, 2, 1)], f32s(&[1], &[0.0])).error();
    assert!(e.contains("'Value'"), "{e}");
}

#[test]
fn repeated_and_turned() {
    let x = || i64s(&[2, 2], &[1, 2, 3, 4]);
    let tile = |repeats: Vec<i64>| case("tile").input("X", x()).attr("repeats", repeats);
    let want = [1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4];
    assert_eq!(tile(vec![2, 2]).out(), i64s(&[4, 4], &want));
    assert_eq!(tile(vec![2, 1, 1]).out(), i64s(&[2, 2, 2], &[1, 2, 3, 4, 1, 2, 3, 4]));
    assert_eq!(tile(vec![0, 1]).out(), i64s(&[0, 2], &[]));
    assert!(tile(vec![-1]).error().contains("negative"));
    let column = case("expand").input("X", i64s(&[2, 1], &[1, 2])).attr("shape", vec![-1, 3]);
    assert_eq!(column.out(), i64s(&[2, 3], &[1, 1, 1, 2, 2, 2]));
    let e = case("expand").input("X", x()).attr("shape", vec![4, 2]).error();
    assert!(e.contains("broadcasts to [4, 2]"), "{e}");
    let flip = case("flip").input("X", x()).attr("axes", vec![0, 1]).out();
    assert_eq!(flip, i64s(&[2, 2], &[4, 3, 2, 1]));
    let roll = case("roll").input("X", i64s(&[5], &[0, 1, 2, 3, 4])).attr("axes", vec![0]);
    assert_eq!(roll.attr("shifts", vec![-6]).out(), i64s(&[5], &[1, 2, 3, 4, 0]));
    let roll = case("roll").input("X", x()).attr("axes", vec![0, 1]);
    assert_eq!(roll.attr("shifts", vec![1, 1]).out(), i64s(&[2, 2], &[4, 3, 2, 1]));
}

#[test]
fn padded() {
    let pad = |paddings: Vec<i64>| {
        let case = case("pad").input("X", i64s(&[1, 2], &[1, 2]));
        case.attr("paddings", paddings).attr("value", 9.0)
    };
    assert_eq!(pad(vec![1, 0, 0, 1]).out(), i64s(&[2, 3], &[9, 9, 9, 1, 2, 9]));
    assert!(pad(vec![1, 0]).error().contains("two sizes for each dimension"));
    assert!(pad(vec![0, 0, 0, -1]).error().contains("slice X"));
    let op = Op::new("pad").attr("paddings", vec![0, 0, 1, 1]);
    assert_eq!(inferred(op, &[("X", F32, &[-1, 3])]).unwrap(), "f32[-1, 5]");
}

#[test]
fn views_keep_the_batch_first() {
    let tile = |repeats: Vec<i64>| {
        inferred(Op::new("tile").attr("repeats", repeats), &[("X", F32, &[-1, 3])])
    };
    assert_eq!(tile(vec![1, 2]).unwrap(), "f32[-1, 6]");
    assert!(tile(vec![2, 1]).unwrap_err().contains("whose size is not known"));
    assert!(tile(vec![2, 1, 1]).unwrap_err().contains("whose size is not known"));
    let types = [("X", F32, &[1, 3][..]), ("Y", F32, &[-1, 3])];
    assert_eq!(inferred(Op::new("expand_as"), &types).unwrap(), "f32[-1, 3]");
    let op = Op::new("expand").attr("shape", vec![2, -1, 3]);
    let e = inferred(op, &[("X", F32, &[-1, 3])]).unwrap_err();
    assert!(e.contains("stays the first"), "{e}");
}
