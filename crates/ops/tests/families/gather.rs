use regatta_ir::Op;
use regatta_tensor::DType::{F32, I64};

use crate::case::{case, f32s, i64s, inferred};

#[test]
fn slices_are_gathered_along_any_dimension() {
    let x = || i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let of =
        |axis: i64, index| case("gather").input("X", x()).input("Index", index).attr("axis", axis);
    assert_eq!(of(0, i64s(&[3], &[1, 0, -1])).out(), i64s(&[3, 3], &[4, 5, 6, 1, 2, 3, 4, 5, 6]));
    assert_eq!(of(-1, i64s(&[1], &[2])).out(), i64s(&[2, 1], &[3, 6]));
    assert_eq!(of(1, i64s(&[], &[0])).out(), i64s(&[2], &[1, 4]));
    assert_eq!(of(0, i64s(&[0], &[])).out(), i64s(&[0, 3], &[]));
    let e = of(1, i64s(&[2], &[0, 3])).error();
    assert_eq!(e, "running gather: index 3 is not in dimension 1, which has the size 3");
    let e = of(1, i64s(&[1], &[-4])).error();
    assert_eq!(e, "running gather: index -4 is not in dimension 1, which has the size 3");
    assert!(of(2, i64s(&[1], &[0])).error().contains("there are 2 dimensions"));
}

#[test]
fn positions_are_gathered_and_added_to() {
    let x = || f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let index = || i64s(&[3, 2], &[1, 0, 0, 1, 1, 0]);
    let got = case("gather_nd").input("X", x()).input("Index", index()).out();
    assert_eq!(got, f32s(&[3], &[3.0, 2.0, 3.0]));
    let sum = case("scatter_nd_add").input("X", x()).input("Index", index());
    let sum = sum.input("Updates", f32s(&[3], &[0.5, 1.0, 0.25])).out();
    assert_eq!(sum, f32s(&[2, 2], &[1.0, 3.0, 3.75, 4.0]));
    let e = case("gather_nd").input("X", x()).input("Index", i64s(&[1, 3], &[0, 0, 0])).error();
    assert!(e.contains("a depth of at most 2"), "{e}");
    let e = case("gather_nd").input("X", x()).input("Index", i64s(&[1, 2], &[0, 2])).error();
    assert_eq!(e, "running gather_nd: index 2 is not in dimension 1, which has the size 2");
}

/// Recorded from PaddlePaddle 2.6.2.
#[test]
fn rows_are_scattered() {
    let of = |overwrite: bool| {
        let case = case("scatter").input("X", f32s(&[3, 2], &[1.0; 6]));
        let case = case.input("Ids", i64s(&[4], &[2, 1, 0, 1]));
        let updates = f32s(&[4, 2], &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
        case.input("Updates", updates).attr("overwrite", overwrite).out()
    };
    assert_eq!(of(true), f32s(&[3, 2], &[3.0, 3.0, 4.0, 4.0, 1.0, 1.0]));
    assert_eq!(of(false), f32s(&[3, 2], &[3.0, 3.0, 6.0, 6.0, 1.0, 1.0]));
    let e = case("scatter").input("X", f32s(&[3, 2], &[0.0; 6])).input("Ids", i64s(&[1], &[3]));
    let e = e.input("Updates", f32s(&[1, 2], &[0.0; 2])).error();
    assert_eq!(e, "running scatter: index 3 is not in dimension 0, which has the size 3");
}

#[test]
fn elements_along_a_dimension() {
    let x = || i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let take = case("take_along_axis").input("X", x()).attr("axis", 1);
    let got = take.input("Index", i64s(&[2, 2], &[0, 2, 1, 1])).out();
    assert_eq!(got, i64s(&[2, 2], &[1, 3, 5, 5]));
    let put = |reduce: &str, index, value| {
        let case = case("put_along_axis").input("X", x()).input("Index", index);
        case.input("Value", value).attr("axis", 0).attr("reduce", reduce)
    };
    let got = put("assign", i64s(&[1, 3], &[1, 0, 1]), i64s(&[1], &[9])).out();
    assert_eq!(got, i64s(&[2, 3], &[1, 9, 3, 9, 5, 9]));
    let twice = || i64s(&[2, 3], &[1, 1, 0, 1, 0, 0]);
    assert_eq!(put("add", twice(), i64s(&[1], &[9])).out(), i64s(&[2, 3], &[1, 11, 21, 22, 14, 6]));
    let e = put("assign", i64s(&[1, 3], &[1, 2, 0]), i64s(&[1], &[9])).error();
    assert!(e.contains("index 2 is not in dimension 0, which has the size 2"), "{e}");
    let e = put("mul", twice(), i64s(&[1], &[9])).error();
    assert!(e.contains("'reduce' is \"mul\""), "{e}");
}

#[test]
fn types_with_an_unknown_batch() {
    let gather = |axis: i64, x: &[i64], index: &[i64]| {
        let op = Op::new("gather").attr("axis", axis);
        inferred(op, &[("X", F32, x), ("Index", I64, index)])
    };
    assert_eq!(gather(0, &[10, 4], &[-1, 2]).unwrap(), "f32[-1, 2, 4]");
    assert_eq!(gather(1, &[-1, 10, 4], &[3]).unwrap(), "f32[-1, 3, 4]");
    assert_eq!(gather(0, &[-1, 4], &[3]).unwrap(), "f32[3, 4]");
    assert!(gather(1, &[-1, 10], &[-1]).unwrap_err().contains("the batch must stay first"));
    assert!(gather(-2, &[-1, 10], &[3]).unwrap_err().contains("write 0"));
    let take = Op::new("take_along_axis").attr("axis", 1);
    let types = [("X", F32, &[-1, 5][..]), ("Index", I64, &[-1, 2])];
    assert_eq!(inferred(take, &types).unwrap(), "f32[-1, 2]");
}

/// Recorded from PaddlePaddle 2.6.2.
#[test]
fn rows_are_sent_along_edges() {
    let send = |reduce: &str| {
        let x = f32s(&[3, 3], &[0.0, 2.0, 3.0, 1.0, 4.0, 5.0, 2.0, 6.0, 7.0]);
        let case = case("graph_send_recv").input("X", x).input("Src", i64s(&[4], &[0, 1, 2, 0]));
        let case = case.input("Dst", i64s(&[4], &[1, 2, 1, 0]));
        case.attr("reduce", reduce).attr("out_size", 4)
    };
    let rows = |reduce| send(reduce).out().f32()[3..6].to_vec();
    assert_eq!(rows("sum"), [2.0, 8.0, 10.0]);
    assert_eq!(rows("mean"), [1.0, 4.0, 5.0]);
    assert_eq!(rows("max"), [2.0, 6.0, 7.0]);
    assert_eq!(rows("min"), [0.0, 2.0, 3.0]);
    assert_eq!(send("max").out().f32()[9..], [0.0; 3]);
    let slopes = |reduce| send(reduce).gradients(&["X"]).remove(0);
    assert_eq!(slopes("sum"), [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(slopes("mean"), [1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]);
    assert_eq!(slopes("min"), [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    assert!(send("prod").error().contains("\"sum\", \"mean\", \"max\" or \"min\""));
}
