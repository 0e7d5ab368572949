//! A classifier with two hidden layers, 32-128-128-2, as in Paddle's Fleet guide.

use regatta_exec::{Executor, Options as ExecOptions, Scope, run_startup};
use regatta_ir::{Act, Programs};
use regatta_passes::{Backward, Optimizer, clone_for_test, minimize};
use regatta_tensor::{DType, Data, Rng, Tensor, Value};

use super::Model;

/// Features of an example.
pub const FEATURES: usize = 32;
/// Width of both hidden layers.
pub const HIDDEN: usize = 128;
/// Number of classes.
pub const CLASSES: usize = 2;

/// Two layers of `tanh`, a softmax, and the mean cross entropy.
///
/// # Errors
/// None, unless this file is wrong.
pub fn model(seed: u64) -> Result<Model, regatta_ir::Error> {
    let mut b = regatta_ops::builder(seed);
    let x = b.data("x", DType::F32, &[-1, FEATURES as i64])?;
    let y = b.data("y", DType::I64, &[-1, 1])?;
    let fc_1 = b.fc(&x, HIDDEN as i64, Act::Tanh)?;
    let fc_2 = b.fc(&fc_1, HIDDEN as i64, Act::Tanh)?;
    let prediction = b.fc(&fc_2, CLASSES as i64, Act::Softmax)?;
    let cost = b.cross_entropy(&prediction, &y, false)?;
    let loss = b.mean(&cost)?;
    let (loss, prediction) = (loss.name().into(), prediction.name().into());
    Ok(Model { programs: b.finish(), loss, prediction })
}

/// Random examples whose class follows from a hidden line through them, without end.
#[derive(Debug, Clone)]
pub struct Examples {
    seed: u64,
    line: Vec<f32>,
}

impl Examples {
    /// The examples of a seed.
    pub fn new(seed: u64) -> Examples {
        let rng = Rng::named(seed, "line");
        Examples { seed, line: (0..FEATURES as u64).map(|i| rng.normal(i) as f32).collect() }
    }

    /// Fills a batch with the examples of number `batch`: features in `[0, 1)`, and class 1 above
    /// the hidden line.
    pub fn fill(&self, batch: u64, x: &mut [f32], y: &mut [i64]) {
        let rng = Rng::new(self.seed, batch);
        for ((row, features), class) in (0u64..).zip(x.chunks_exact_mut(FEATURES)).zip(y) {
            let mut side = 0.0;
            for ((i, feature), weight) in (0u64..).zip(features).zip(&self.line) {
                *feature = rng.unit_f32(row * FEATURES as u64 + i);
                side += weight * (*feature - 0.5);
            }
            *class = i64::from(side > 0.0);
        }
    }
}

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Examples per step.
    pub batch_size: usize,
    /// Rule and learning rate.
    pub optimizer: Optimizer,
    /// Threads that share a batch.
    pub threads: usize,
    /// Decides the initial weights and the examples.
    pub seed: u64,
}

/// A model in training.
pub struct Mlp {
    model: Model,
    programs: Programs,
    train: Executor,
    test: Executor,
    scope: Scope,
    examples: Examples,
    /// Reused by every step.
    x: Value,
    y: Value,
}

/// Batches from here on are for tests only.
const FIRST_TEST_BATCH: u64 = 1 << 60;

impl Mlp {
    /// A model with its initial weights.
    ///
    /// # Errors
    /// If the options make no sense.
    pub fn new(options: &Options) -> Result<Mlp, regatta_exec::Error> {
        let model = model(options.seed)?;
        let what = Backward::default();
        let programs = minimize(&model.programs, &model.loss, &options.optimizer, &what)?.programs;
        let mut scope = Scope::new();
        run_startup(&programs.startup, &mut scope)?;
        let threads = ExecOptions { threads: options.threads, ..ExecOptions::default() };
        let train = Executor::new(programs.main.clone(), threads)?;
        let test = Executor::new(clone_for_test(&programs.main)?, ExecOptions::default())?;
        let (x, y) = empty_batch(options.batch_size);
        let examples = Examples::new(options.seed);
        Ok(Mlp { model, programs, train, test, scope, examples, x, y })
    }

    /// One step on the batch of that number; returns its cost before the step.
    ///
    /// # Errors
    /// If the batch is empty.
    pub fn step(&mut self, step: u64) -> Result<f32, regatta_exec::Error> {
        fill(&self.examples, step, &mut self.x, &mut self.y);
        let feeds = [("x", &self.x), ("y", &self.y)];
        Ok(self.train.run(&mut self.scope, &feeds, &[&self.model.loss])?[0].f32()[0])
    }

    /// Cost, and share of right answers, over 4096 examples that no step has seen.
    ///
    /// # Errors
    /// None.
    pub fn test(&mut self) -> Result<(f32, f32), regatta_exec::Error> {
        const EXAMPLES: usize = 4096;
        let (mut x, mut y) = empty_batch(EXAMPLES);
        fill(&self.examples, FIRST_TEST_BATCH, &mut x, &mut y);
        let fetch = [self.model.loss.as_str(), &self.model.prediction];
        let fetched = self.test.run(&mut self.scope, &[("x", &x), ("y", &y)], &fetch)?;
        let labels = y.as_dense().expect("labels are dense").i64();
        let scores = fetched[1].f32().chunks_exact(CLASSES);
        let right = scores.zip(labels).filter(|(p, label)| i64::from(p[1] > p[0]) == **label);
        Ok((fetched[0].f32()[0], right.count() as f32 / EXAMPLES as f32))
    }

    /// The training program and its startup program.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The parameters and everything else that is kept between steps.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

fn empty_batch(n: usize) -> (Value, Value) {
    let x = Tensor::zeros(DType::F32, &[n, FEATURES]);
    (x.into(), Tensor::zeros(DType::I64, &[n, 1]).into())
}

fn fill(examples: &Examples, batch: u64, x: &mut Value, y: &mut Value) {
    if let (Value::Dense(x), Value::Dense(y)) = (x, y)
        && let (Data::F32(x), Data::I64(y)) = (x.data_mut(), y.data_mut())
    {
        examples.fill(batch, x, y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_balanced_and_repeatable() {
        let examples = Examples::new(1);
        let (mut x, mut y) = (vec![0.0; 1000 * FEATURES], vec![0; 1000]);
        examples.fill(5, &mut x, &mut y);
        let ones: i64 = y.iter().sum();
        assert!((300..700).contains(&ones), "{ones}");
        assert!(x.iter().all(|x| (0.0..1.0).contains(x)));
        let (first, mut again) = (x.clone(), vec![0.0; 1000 * FEATURES]);
        examples.fill(5, &mut again, &mut y);
        assert_eq!(first, again);
        examples.fill(6, &mut again, &mut y);
        assert_ne!(first, again);
    }
}
