//! The shortest way from a model and a source to losses.

use regatta_data::{Batch, DataLoader, Dataset, LoaderOptions, Source};
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_ir::Programs;
use regatta_passes::{Backward, Clip, Optimizer, minimize};
use regatta_rec::Hyper;
use regatta_rec::zoo::{Model, Net};
use regatta_tensor::{Tensor, Value};

use crate::cases::Case;

/// A model with the programs that train it.
pub(crate) struct Trainer {
    pub(crate) net: Net,
    /// Before gradients and updates.
    pub(crate) forward: Programs,
    /// With them.
    pub(crate) programs: Programs,
    pub(crate) scope: Scope,
    executor: Executor,
}

impl Trainer {
    pub(crate) fn new(case: &Case, threads: usize) -> Trainer {
        Trainer::with_hyper(case, &case.hyper(), threads)
    }

    pub(crate) fn with_hyper(case: &Case, hyper: &Hyper, threads: usize) -> Trainer {
        let optimizer = Optimizer::new(case.rule, case.learning_rate);
        Trainer::of_model(case.zoo_model(), hyper, optimizer, threads)
    }

    pub(crate) fn of_model(
        model: &Model,
        hyper: &Hyper,
        optimizer: Optimizer,
        threads: usize,
    ) -> Trainer {
        Trainer::seeded(model, hyper, optimizer, threads, 7)
    }

    /// As [`Trainer::of_model`]; `seed` is that of the initial values.
    pub(crate) fn seeded(
        model: &Model,
        hyper: &Hyper,
        mut optimizer: Optimizer,
        threads: usize,
        seed: u64,
    ) -> Trainer {
        let mut b = regatta_ops::builder(seed);
        let net = (model.build)(hyper, &mut b).unwrap();
        let forward = b.finish();
        optimizer.clip = optimizer.clip.or(net.clip_norm.map(Clip::GlobalNorm));
        let all = Backward::default();
        let programs = minimize(&forward, net.loss.name(), &optimizer, &all).unwrap().programs;
        let mut scope = Scope::new();
        run_startup(&programs.startup, &mut scope).unwrap();
        let options = Options { threads, ..Options::default() };
        let executor = Executor::new(programs.main.clone(), options).unwrap();
        Trainer { net, forward, programs, scope, executor }
    }

    /// One step; the loss before it.
    pub(crate) fn step(&mut self, batch: &Batch) -> f32 {
        let loss = self.net.loss.name().to_string();
        self.step_fetching(batch, &[&loss])[0].f32()[0]
    }

    /// One step; some variables as they are before it.
    pub(crate) fn step_fetching(&mut self, batch: &Batch, fetch: &[&str]) -> &[Tensor] {
        let feeds: Vec<(&str, &Value)> = batch.iter().collect();
        self.step_feeding(&feeds, fetch)
    }

    /// One step on inputs that are no batch of a reader.
    pub(crate) fn step_feeding(&mut self, feeds: &[(&str, &Value)], fetch: &[&str]) -> &[Tensor] {
        self.executor.run(&mut self.scope, feeds, fetch).unwrap()
    }

    /// Passes over the training data; the loss of every step.
    pub(crate) fn train(&mut self, case: &Case) -> Vec<f32> {
        let mut losses = Vec::new();
        for epoch in 0..case.epochs {
            for_each_batch(&case.train_url(), case.batch, epoch, |batch| {
                losses.push(self.step(batch));
            });
        }
        losses
    }
}

/// Reads a synthetic source once.
pub(crate) fn for_each_batch(url: &str, size: usize, pass: u64, mut f: impl FnMut(&Batch)) {
    let source = Source::synthetic(url).unwrap();
    let loader = DataLoader::new(source, LoaderOptions::new(size)).unwrap();
    let mut batches = loader.pass(pass).unwrap();
    while let Some(batch) = batches.next().unwrap() {
        f(&batch);
        batches.recycle(batch);
    }
}
