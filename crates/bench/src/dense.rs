//! Training steps of fully connected networks: the dense part of a click model (`w1`) and a small
//! network (`w2`).

use anyhow::{Context, Result};
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_ir::{Act, Programs};
use regatta_optim::{Adam, Rule, Sgd};
use regatta_passes::{Backward, Optimizer, minimize};
use regatta_tensor::{DType, Tensor, Value, rng::mix};

/// Different batches that a run goes round.
pub const BATCHES: usize = 8;

/// A network and how it is trained.
pub struct Workload {
    /// Name in requests and reports.
    pub name: &'static str,
    /// Widths of the layers, input first.
    pub widths: &'static [usize],
    /// Multiplications and additions of the matrix products, in millions per example.
    pub mflop: f64,
    act: Act,
    optimizer: fn() -> Optimizer,
    input_gradient: bool,
}

/// The dense layers of a click model: gradients of the input too, because embeddings need them.
pub const W1: Workload = Workload {
    name: "w1",
    widths: &[247, 400, 400, 400, 2],
    mflop: 2.5176,
    act: Act::Relu,
    optimizer: || Optimizer::new(Rule::Adam(Adam::default()), 0.001),
    input_gradient: true,
};

/// A small network, where the cost of everything but the arithmetic shows.
pub const W2: Workload = Workload {
    name: "w2",
    widths: &[32, 128, 128, 2],
    mflop: 0.1162,
    act: Act::Tanh,
    optimizer: || Optimizer::new(Rule::Sgd(Sgd {}), 0.1),
    input_gradient: false,
};

/// Splitmix64, of which the top 24 bits are used; described in `bench/reference/README.md`.
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> i32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (mix(self.0) >> 40) as i32 - (1 << 23)
    }
}

/// A workload at one batch size, ready to step.
pub struct Runner {
    workload: &'static Workload,
    executor: Executor,
    scope: Scope,
    programs: Programs,
    batches: Vec<(Value, Value)>,
    loss: String,
}

impl Runner {
    /// Builds the program and the batches.
    ///
    /// # Errors
    /// If the options make no sense.
    pub fn new(workload: &'static Workload, batch: usize, options: Options) -> Result<Runner> {
        let (programs, loss) = build(workload)?;
        let executor = Executor::new(programs.main.clone(), options)?;
        let batches = batches(workload.widths[0], batch);
        let mut runner =
            Runner { workload, executor, scope: Scope::new(), programs, batches, loss };
        runner.reset()?;
        Ok(runner)
    }

    /// Returns to the initial parameters.
    ///
    /// # Errors
    /// If the startup program fails.
    pub fn reset(&mut self) -> Result<()> {
        run_startup(&self.programs.startup, &mut self.scope)?;
        let mut draw = Uniform(1);
        let mut values = |shape: &[usize]| {
            let values = (0..shape.iter().product()).map(|_| draw.next() as f32 / (1 << 26) as f32);
            Tensor::from_f32(shape, values.collect())
        };
        for (i, w) in self.workload.widths.windows(2).enumerate() {
            self.scope.set(&format!("fc_{i}.w_0"), values(&[w[0], w[1]])?);
            self.scope.set(&format!("fc_{i}.b_0"), values(&[w[1]])?);
        }
        Ok(())
    }

    /// One training step on a batch; returns its loss.
    ///
    /// # Errors
    /// If the step fails.
    pub fn step(&mut self, batch: usize) -> Result<f32> {
        let (x, label) = &self.batches[batch % BATCHES];
        let feeds = [("x", x), ("label", label)];
        let fetched = self.executor.run(&mut self.scope, &feeds, &[&self.loss])?;
        fetched[0].f32().first().copied().context("the loss is one number")
    }
}

fn build(workload: &Workload) -> Result<(Programs, String)> {
    let mut b = regatta_ops::builder(0);
    let x = b.data("x", DType::F32, &[-1, workload.widths[0] as i64])?;
    let label = b.data("label", DType::I64, &[-1, 1])?;
    if workload.input_gradient {
        b.require_gradient(&x)?;
    }
    let mut h = x;
    for (i, &width) in workload.widths[1..].iter().enumerate() {
        let last = i + 2 == workload.widths.len();
        h = b.fc(&h, width as i64, if last { Act::None } else { workload.act })?;
    }
    let (cost, _) = b.softmax_with_cross_entropy(&h, &label)?;
    let loss = b.mean(&cost)?.name().to_string();
    let made = minimize(&b.finish(), &loss, &(workload.optimizer)(), &Backward::default())?;
    Ok((made.programs, loss))
}

fn batches(features: usize, batch: usize) -> Vec<(Value, Value)> {
    let mut draw = Uniform(2);
    let mut one = || {
        let (mut x, mut labels) = (Vec::with_capacity(batch * features), Vec::new());
        for _ in 0..batch {
            let mut sum = 0i64;
            for j in 0..features {
                let k = draw.next();
                x.push(k as f32 / (1 << 23) as f32);
                sum += if j.is_multiple_of(2) { i64::from(k) } else { -i64::from(k) };
            }
            labels.push(i64::from(sum > 0));
        }
        let x = Tensor::from_f32(&[batch, features], x).expect("lengths agree");
        let labels = Tensor::from_i64(&[batch, 1], labels).expect("lengths agree");
        (x.into(), labels.into())
    };
    (0..BATCHES).map(|_| one()).collect()
}
