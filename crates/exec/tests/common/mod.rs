//! Small networks for the tests.
#![allow(dead_code, reason = "each test file uses some of it")]

use regatta_exec::{Scope, run_startup};
use regatta_ir::{Act, Programs};
use regatta_optim::Rule;
use regatta_passes::{Backward, Optimizer, minimize};
use regatta_tensor::{DType, Rng, Tensor, Value};

pub(crate) struct Model {
    pub(crate) programs: Programs,
    pub(crate) loss: String,
    pub(crate) softmax: String,
}

/// Fully connected layers of the given widths with a softmax cross entropy loss.
pub(crate) fn mlp(widths: &[i64], act: Act, optimizer: &Optimizer) -> Model {
    let mut b = regatta_ops::builder(7);
    let x = b.data("x", DType::F32, &[-1, widths[0]]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let mut h = x;
    for (i, &width) in widths[1..].iter().enumerate() {
        let act = if i + 2 == widths.len() { Act::None } else { act };
        h = b.fc(&h, width, act).unwrap();
    }
    let (cost, softmax) = b.softmax_with_cross_entropy(&h, &label).unwrap();
    let loss = b.mean(&cost).unwrap();
    let (loss, softmax) = (loss.name().to_string(), softmax.name().to_string());
    let programs = minimize(&b.finish(), &loss, optimizer, &Backward::default()).unwrap().programs;
    Model { programs, loss, softmax }
}

pub(crate) fn initialised(programs: &Programs) -> Scope {
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    scope
}

pub(crate) fn sgd(lr: f64) -> Optimizer {
    Optimizer::new(Rule::Sgd(regatta_optim::Sgd {}), lr)
}

pub(crate) fn adam(lr: f64) -> Optimizer {
    Optimizer::new(Rule::Adam(regatta_optim::Adam::default()), lr)
}

/// Random inputs and labels that follow from their sign.
pub(crate) fn batch(rows: usize, width: usize, seed: u64) -> (Value, Value) {
    let rng = Rng::new(seed, 1);
    let x: Vec<f32> = (0..(rows * width) as u64).map(|i| rng.unit_f32(i) * 2.0 - 1.0).collect();
    let labels = x.chunks(width).map(|x| i64::from(x.iter().sum::<f32>() > 0.0)).collect();
    (
        Tensor::from_f32(&[rows, width], x).unwrap().into(),
        Tensor::from_i64(&[rows, 1], labels).unwrap().into(),
    )
}
