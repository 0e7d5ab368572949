use regatta_ir::Op;
use regatta_ops::StepCtx;
use regatta_ops::interp::{Cell, Env, PreparedOp};
use regatta_tensor::DType::F32;
use regatta_tensor::{Tensor, Value};

use crate::case::{case, f32s, i64s, inferred};

#[test]
fn draws_have_their_moments() {
    let n = 20_000;
    let draw = |kind: &str| case(kind).attr("shape", vec![n]).attr("seed", 5);
    let moments = |x: &[f32]| {
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let spread = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n as f64;
        (mean, spread.sqrt())
    };
    let (mean, std) = moments(draw("gaussian").attr("mean", 2.0).attr("std", 0.5).out().f32());
    assert!((mean - 2.0).abs() < 0.02 && (std - 0.5).abs() < 0.02, "{mean} {std}");
    let x = draw("uniform").attr("low", -1.0).attr("high", 3.0).out();
    assert!(x.f32().iter().all(|x| (-1.0..3.0).contains(x)));
    assert!((moments(x.f32()).0 - 1.0).abs() < 0.05);
    let x = draw("randint").attr("low", -2).attr("high", 2).out();
    for value in -2..2 {
        let share = x.i64().iter().filter(|x| **x == value).count() as f64 / n as f64;
        assert!((share - 0.25).abs() < 0.02, "{value}: {share}");
    }
    let e = case("randint").attr("shape", vec![1]).attr("high", 0).error();
    assert!(e.contains("'high' is 0, but should be above 0"), "{e}");
    let mut order = case("randperm").attr("n", 50).out().i64().to_vec();
    assert_ne!(order, (0..50).collect::<Vec<i64>>());
    order.sort_unstable();
    assert_eq!(order, (0..50).collect::<Vec<i64>>());
    let coins = case("bernoulli").input("X", f32s(&[20_000], &[0.3; 20_000])).out();
    assert!((moments(coins.f32()).0 - 0.3).abs() < 0.02);
    assert!(case("bernoulli").input("X", f32s(&[1], &[1.5])).error().contains("no probability"));
}

#[test]
fn classes_are_drawn_by_their_weights() {
    let draw = |weights: &[f32], n: i64, replacement: bool| {
        let case = case("multinomial").input("X", f32s(&[1, weights.len()], weights));
        case.attr("num_samples", n).attr("replacement", replacement)
    };
    let drawn = draw(&[1.0, 0.0, 3.0], 8000, true).out();
    let share = drawn.i64().iter().filter(|c| **c == 2).count() as f64 / 8000.0;
    assert!((share - 0.75).abs() < 0.02, "{share}");
    assert!(!drawn.i64().contains(&1));
    let mut all = draw(&[1.0, 0.0, 3.0, 0.5], 3, false).out().i64().to_vec();
    all.sort_unstable();
    assert_eq!(all, [0, 2, 3]);
    let e = draw(&[1.0, 0.0, 3.0], 3, false).error();
    assert!(e.contains("row 0 has 2 classes with a weight, but 3 are drawn"), "{e}");
    assert!(draw(&[1.0], 2, false).error().contains("'num_samples' is 2"));
    assert!(draw(&[-1.0, 1.0], 1, true).error().contains("no weight of a class"));
    // Of one weight out of four, the first draw is the share of the weight.
    let rows = f32s(&[4000, 2], &[1.0, 3.0].repeat(4000));
    let first = case("multinomial").input("X", rows).attr("num_samples", 1).out();
    let share = first.i64().iter().sum::<i64>() as f64 / 4000.0;
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

/// Parts of a batch draw what the whole draws, and every step something else.
#[test]
fn draws_belong_to_step_and_example() {
    let op = Op::new("uniform").attr("shape", vec![-1, 3]).input("Like", "like").output("Out", "o");
    let run = |rows: usize, first: usize, step: u64| {
        let like = Cell::Value(Value::Dense(Tensor::zeros(F32, &[rows, 1])));
        let mut env = Env::from([("like".to_string(), like)]);
        let mut ctx =
            StepCtx { step, first_example: first, rows, total_rows: 4, ..StepCtx::default() };
        PreparedOp::new(&op, &mut env, &["like"]).unwrap().run(&mut ctx).unwrap();
        env["o"].floats()
    };
    assert_eq!([run(1, 0, 2), run(3, 1, 2)].concat(), run(4, 0, 2));
    assert_ne!(run(4, 0, 2), run(4, 0, 3));
    let types = [("Like", F32, &[-1, 1][..])];
    let op = || Op::new("randint").attr("high", 5);
    assert_eq!(inferred(op().attr("shape", vec![-1, 2]), &types).unwrap(), "i64[-1, 2]");
    assert_eq!(inferred(Op::new("randperm"), &types).unwrap(), "i64[-1]");
    assert_eq!(case("randperm").input("Like", f32s(&[1], &[0.0])).out(), i64s(&[1], &[0]));
}
