//! How good a trained model is on test data, by its own way of being judged.

use regatta_data::Synthetic;
use regatta_exec::{Executor, Options};
use regatta_ir::Origin;
use regatta_ops::metrics::{accuracy, exact_auc, rmse};
use regatta_passes::prune;
use regatta_rec::zoo::{Evaluation, Head, Metric, Model};
use regatta_tensor::{Tensor, Value};

use crate::train::{Trainer, for_each_batch};

/// Names and values of all metrics.
pub(crate) fn evaluate(model: &Model, url: &str, t: &mut Trainer) -> Vec<(&'static str, f64)> {
    match model.evaluation {
        Evaluation::Heads => {
            let heads = 0..t.net.heads.len();
            heads.map(|i| (t.net.heads[i].metric, head_metric(url, t, i))).collect()
        }
        Evaluation::Ranking { k } => vec![("hit rate", hit_rate(url, t, k))],
        Evaluation::Analogy => vec![("analogies", analogies(url, t))],
    }
}

/// Predictions and labels of all test examples, by the pruned program.
fn predictions(url: &str, trainer: &mut Trainer, head: usize) -> (Vec<f32>, usize, Labels) {
    let Head { predict, label, .. } = &trainer.net.heads[head];
    let program = prune(&trainer.programs.main, &[predict.name(), label.name()]).unwrap();
    let vars = program.block().vars.values();
    let wanted: Vec<String> =
        vars.filter(|v| v.origin == Origin::Data).map(|v| v.name.clone()).collect();
    let fetch = [predict.name(), label.name()];
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let (mut scores, mut width, mut labels) = (Vec::new(), 0, Labels::default());
    for_each_batch(url, 500, 0, |batch| {
        let feeds: Vec<(&str, &Value)> =
            batch.iter().filter(|(name, _)| wanted.iter().any(|w| w == name)).collect();
        let fetched = executor.run(&mut trainer.scope, &feeds, &fetch).unwrap();
        scores.extend_from_slice(fetched[0].f32());
        width = *fetched[0].shape().last().unwrap();
        labels.extend(&fetched[1]);
    });
    (scores, width, labels)
}

#[derive(Default)]
struct Labels {
    ints: Vec<i64>,
    floats: Vec<f32>,
}

impl Labels {
    fn extend(&mut self, t: &Tensor) {
        match t.data() {
            regatta_tensor::Data::F32(v) => self.floats.extend(v),
            _ => self.ints.extend(t.i64()),
        }
    }
}

fn head_metric(url: &str, trainer: &mut Trainer, head: usize) -> f64 {
    let kind = trainer.net.heads[head].kind;
    let (scores, width, labels) = predictions(url, trainer, head);
    match kind {
        Metric::Auc => exact_auc(&last_column(&scores, width), &labels.ints),
        Metric::Accuracy => accuracy(&scores, width, &labels.ints),
        Metric::Rmse => rmse(&scores, &labels.floats),
        Metric::Mean => scores.iter().map(|x| f64::from(*x)).sum::<f64>() / scores.len() as f64,
    }
}

fn last_column(scores: &[f32], width: usize) -> Vec<f32> {
    scores.chunks_exact(width).map(|row| row[width - 1]).collect()
}

/// Share of groups of 100 whose first item is among the `k` best.
fn hit_rate(url: &str, trainer: &mut Trainer, k: usize) -> f64 {
    let (scores, width, _) = predictions(url, trainer, 0);
    let scores = last_column(&scores, width);
    let hit = |group: &&[f32]| group.iter().filter(|s| **s >= group[0]).count() <= k;
    let groups = scores.chunks_exact(100);
    let n = groups.len();
    groups.filter(hit).count() as f64 / n as f64
}

/// Share of questions `a : b = c : d` with d among the four words nearest to `b - a + c`.
fn analogies(url: &str, trainer: &Trainer) -> f64 {
    let source = Synthetic::parse(url).unwrap();
    let words = source.dictionary().unwrap().len();
    let table = trainer.scope.get("emb").unwrap();
    let dim = table.shape()[1];
    let rows: Vec<Vec<f32>> = table.f32().chunks_exact(dim).take(words).map(normalised).collect();
    let questions = source.analogies().unwrap();
    let right = questions.iter().filter(|q| {
        let [a, b, c, d] = q.map(|w| w as usize);
        let wanted: Vec<f32> = (0..dim).map(|i| rows[b][i] - rows[a][i] + rows[c][i]).collect();
        let mut others: Vec<usize> = (0..words).filter(|w| ![a, b, c].contains(w)).collect();
        let score = |w: usize| dot(&rows[w], &wanted);
        others.sort_by(|&x, &y| score(y).total_cmp(&score(x)));
        others[..4].contains(&d)
    });
    right.count() as f64 / questions.len() as f64
}

fn normalised(row: &[f32]) -> Vec<f32> {
    let norm = dot(row, row).sqrt().max(1e-12);
    row.iter().map(|x| x / norm).collect()
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
