//! The same parameters and batches give the losses that PyTorch and PaddlePaddle give, within 1e-5
//! over 100 steps. The reference and the generator are described in bench/reference/README.md.

mod common;

use common::{initialised, mlp};
use regatta_exec::{Executor, Options, Scope};
use regatta_ir::Act;
use regatta_optim::{Adagrad, Adam, Momentum, Rule, Sgd};
use regatta_passes::Optimizer;
use regatta_tensor::{Tensor, Value};

/// splitmix64, as the reference uses it.
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> i32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (regatta_tensor::rng::mix(self.0) >> 40) as i32 - (1 << 23)
    }
}

#[test]
fn losses_equal_the_reference() {
    let reference = include_str!("../../../bench/reference/losses.json");
    let reference: serde_json::Value = serde_json::from_str(reference).unwrap();
    let momentum = Momentum { mu: 0.9, nesterov: false };
    let adagrad = Adagrad { epsilon: 1e-6, initial_accumulator: 0.0 };
    let optimizers = [
        ("sgd", Optimizer::new(Rule::Sgd(Sgd {}), 0.1)),
        ("momentum", Optimizer::new(Rule::Momentum(momentum), 0.05)),
        ("adagrad", Optimizer::new(Rule::Adagrad(adagrad), 0.05)),
        ("adagrad_small_lr", Optimizer::new(Rule::Adagrad(adagrad), 0.01)),
        ("adam", Optimizer::new(Rule::Adam(Adam::default()), 0.001)),
    ];
    for (model, widths, act) in
        [("tanh", [32, 128, 128, 2], Act::Tanh), ("relu", [32, 64, 64, 2], Act::Relu)]
    {
        for (name, optimizer) in &optimizers {
            if (model, *name) == ("tanh", "adagrad") {
                // The references themselves differ by 1.4e-5 there; see the README beside them.
                continue;
            }
            let losses = train(&widths, act, optimizer);
            for system in ["torch", "paddle"] {
                let want = reference["losses"][model][name][system].as_array().unwrap();
                assert_eq!(want.len(), 100);
                for (step, (got, want)) in losses.iter().zip(want).enumerate() {
                    let want = want.as_f64().unwrap();
                    let difference = (f64::from(*got) - want).abs();
                    assert!(
                        difference < 1e-5,
                        "{model} {name} step {step}: {got}, {system} has {want}"
                    );
                }
            }
        }
    }
}

fn train(widths: &[i64], act: Act, optimizer: &Optimizer) -> Vec<f32> {
    let model = mlp(widths, act, optimizer);
    let mut scope = initialised(&model.programs);
    set_parameters(&mut scope, widths);
    let batches = batches();
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    (0..100)
        .map(|step| {
            let (x, label) = &batches[step % 10];
            let feeds = [("x", x), ("label", label)];
            executor.run(&mut scope, &feeds, &[&model.loss]).unwrap()[0].f32()[0]
        })
        .collect()
}

fn set_parameters(scope: &mut Scope, widths: &[i64]) {
    let mut draw = Uniform(1);
    let mut values = |shape: &[usize]| {
        let n = shape.iter().product();
        let values = (0..n).map(|_| draw.next() as f32 / (1 << 26) as f32).collect();
        Tensor::from_f32(shape, values).unwrap()
    };
    for (i, w) in widths.windows(2).enumerate() {
        let (fan_in, fan_out) = (w[0] as usize, w[1] as usize);
        scope.set(&format!("fc_{i}.w_0"), values(&[fan_in, fan_out]));
        scope.set(&format!("fc_{i}.b_0"), values(&[fan_out]));
    }
}

fn batches() -> Vec<(Value, Value)> {
    let mut draw = Uniform(2);
    (0..10)
        .map(|_| {
            let (mut x, mut labels) = (Vec::new(), Vec::new());
            for _ in 0..16 {
                let k: Vec<i32> = (0..32).map(|_| draw.next()).collect();
                x.extend(k.iter().map(|&k| k as f32 / (1 << 23) as f32));
                let sign = |j: usize| if j.is_multiple_of(2) { 1 } else { -1 };
                let sum: i64 = k.iter().enumerate().map(|(j, &k)| sign(j) * i64::from(k)).sum();
                labels.push(i64::from(sum > 0));
            }
            (
                Tensor::from_f32(&[16, 32], x).unwrap().into(),
                Tensor::from_i64(&[16, 1], labels).unwrap().into(),
            )
        })
        .collect()
}
