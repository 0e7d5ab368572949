//! A network of ops that compare, pick and rearrange trains the same on one thread and on several.

mod common;

use common::{initialised, sgd};
use regatta_exec::{Executor, Options};
use regatta_ir::{Act, Op, ParamAttr, Programs};
use regatta_passes::{Backward, minimize};
use regatta_tensor::{DType, Rng, Tensor, Value};

fn network() -> (Programs, String) {
    let mut b = regatta_ops::builder(3);
    let x = b.data("x", DType::F32, &[-1, 6]).unwrap();
    let ids = b.data("ids", DType::I64, &[-1, 2]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let h = b.fc(&x, 12, Act::None).unwrap();
    let zero = b.emit_one(Op::new("fill_like").input("X", h.name()).attr("value", 0.0)).unwrap();
    let positive = b.greater_than(&h, &zero).unwrap();
    let silu = b.silu(&h).unwrap();
    let h = b.select(&positive, &h, &silu).unwrap();
    // Of a triangle in each example the two largest, rows backwards.
    let cube = b.reshape(&h, &[-1, 3, 4]).unwrap();
    let lower = b.triangle(&cube, 1, true).unwrap();
    let (top, _) = b.topk(&lower, 2, 2).unwrap();
    let turned = Op::new("strided_slice").input("X", top.name()).attr("axes", vec![1]);
    let turned = turned.attr("starts", vec![-1]).attr("ends", vec![-9]).attr("strides", vec![-2]);
    let turned = b.emit_one(turned).unwrap();
    let flat = b.reshape(&turned, &[-1, 4]).unwrap();
    // A table that all examples share.
    let table = b.param("table", &[6, 4], &ParamAttr::weight()).unwrap();
    let table = b.tile(&table, &[1, 1]).unwrap();
    let rows = b.gather(&table, &ids, 0).unwrap();
    let sums = b.cumsum(&rows, 1).unwrap();
    let best = b.reduce_max(&sums, &[1], false).unwrap();
    let both = b.concat(&[&flat, &best], 1).unwrap();
    let padded = b.pad(&both, &[0, 0, 1, 1], 0.5).unwrap();
    let logits = b.fc(&padded, 3, Act::None).unwrap();
    let logs = b.log_softmax(&logits).unwrap();
    let take = Op::new("take_along_axis").attr("axis", 1).input("X", logs.name());
    let taken = b.emit_one(take.input("Index", label.name())).unwrap();
    let cost = b.scale(&taken, -1.0, 0.0).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let programs = minimize(&b.finish(), &loss, &sgd(0.2), &Backward::default()).unwrap();
    (programs.programs, loss)
}

fn batch(rows: usize, seed: u64) -> [(&'static str, Value); 3] {
    let rng = Rng::new(seed, 1);
    let x: Vec<f32> = (0..6 * rows as u64).map(|i| rng.unit_f32(i) * 2.0 - 1.0).collect();
    let ids = (0..2 * rows as u64).map(|i| (rng.u64(900 + i) % 6) as i64).collect();
    let labels = x.chunks(6).map(|x| i64::from(x[0] > 0.0) + i64::from(x[1] > 0.3)).collect();
    [
        ("x", Tensor::from_f32(&[rows, 6], x).unwrap().into()),
        ("ids", Tensor::from_i64(&[rows, 2], ids).unwrap().into()),
        ("label", Tensor::from_i64(&[rows, 1], labels).unwrap().into()),
    ]
}

fn losses(threads: usize) -> Vec<f32> {
    let (programs, loss) = network();
    let mut scope = initialised(&programs);
    let options = Options { threads, ..Options::default() };
    let mut executor = Executor::new(programs.main, options).unwrap();
    let step = |seed: u64| {
        let batch = batch(21, seed % 4);
        let feeds: Vec<(&str, &Value)> = batch.iter().map(|(name, v)| (*name, v)).collect();
        executor.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0]
    };
    (0..60).map(step).collect()
}

#[test]
fn threads_do_not_change_the_training() {
    let one = losses(1);
    assert!(one[59] < 0.8 * one[0], "{} to {}", one[0], one[59]);
    for threads in [2, 3] {
        for (a, b) in one.iter().zip(losses(threads)) {
            assert!((a - b).abs() < 1e-4, "{threads} threads: {a} {b}");
        }
    }
}
