//! Ranks that exchange gradients equal one process on the merged batch.

mod common;

use common::ranks::*;
use common::*;
use regatta_data::Batch;
use regatta_exec::{Options, Scope};
use regatta_fleet::DistributedStrategy;
use regatta_fleet::collective::plan_ranks;
use regatta_ir::Programs;
use regatta_optim::{Adagrad, Adam, Momentum, Rule, Sgd};
use regatta_passes::{Clip, Optimizer};

const STEPS: u64 = 50;

fn optimizers() -> Vec<(&'static str, Optimizer)> {
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.2);
    vec![
        ("sgd", sgd.clone()),
        ("clipped", Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..sgd }),
        ("momentum", Optimizer::new(Rule::Momentum(Momentum::default()), 0.05)),
        ("adagrad", Optimizer::new(Rule::Adagrad(Adagrad::default()), 0.05)),
        ("adam", Optimizer::new(Rule::Adam(Adam::default()), 0.01)),
    ]
}

/// `steps` batches of all ranks together, and those of each rank; rank `r` has `sizes[r]` examples.
fn divided(sizes: &[u64], steps: u64) -> (Vec<Batch>, Vec<Vec<Batch>>) {
    let total: u64 = sizes.iter().sum();
    let merged = (0..steps).map(|t| batch(t * total, total)).collect();
    let part = |r: usize| {
        let before: u64 = sizes[..r].iter().sum();
        (0..steps).map(|t| batch(t * total + before, sizes[r])).collect()
    };
    (merged, (0..sizes.len()).map(part).collect())
}

fn compare(what: &str, programs: &Programs, one: &Scope, rank: &Scope, tolerance: f32) {
    for name in programs.main.param_names() {
        let (a, b) = (one.get(&name).unwrap().f32(), rank.get(&name).unwrap().f32());
        assert_close(&format!("{what}: {name}"), a, b, tolerance);
    }
}

fn assert_same_bits(what: &str, programs: &Programs, ranks: &[Rank]) {
    for (r, rank) in ranks.iter().enumerate() {
        let (a, b) = (checksum(programs, &ranks[0].scope), checksum(programs, &rank.scope));
        assert!(a == b, "{what}: rank {r} has other parameters than rank 0");
    }
}

#[test]
fn ranks_equal_one_process_on_the_merged_batch() {
    for (name, optimizer) in optimizers() {
        let model = model(&optimizer);
        for n in 1..=4 {
            let what = format!("{name}, {n} ranks");
            // Unequal batches: the mean is over examples, not over ranks.
            let sizes: Vec<u64> = (0..n).map(|r| 5 + r).collect();
            let (merged, parts) = divided(&sizes, STEPS);
            let (local, scope) = train_locally(&model, &merged);
            let strategy = DistributedStrategy::default();
            let ranks = train_ranks(&model.programs, &model.loss, &strategy, &parts);
            assert_same_bits(&what, &model.programs, &ranks);
            compare(&what, &model.programs, &scope, &ranks[0].scope, 1e-5);
            let total: u64 = sizes.iter().sum();
            for (step, local) in local.iter().enumerate() {
                let parts = ranks.iter().zip(&sizes);
                let mean: f32 = parts.map(|(r, n)| r.losses[step] * *n as f32).sum();
                let difference = (mean / total as f32 - local).abs();
                assert!(difference < 1e-5, "{what}, step {step}: off by {difference}");
            }
            assert_eq!(ranks[0].end.steps, STEPS);
        }
    }
}

#[test]
fn threads_and_fusion_do_not_change_what_is_learned() {
    let model = model(&optimizers()[4].1);
    let (merged, parts) = divided(&[8, 6], 20);
    let (_, scope) = train_locally(&model, &merged);
    for (threads, fuse) in [(1, false), (2, true), (2, false)] {
        let strategy =
            DistributedStrategy { fuse_all_reduce_ops: fuse, ..DistributedStrategy::default() };
        let options = Options { threads, ..Options::default() };
        let ranks = try_ranks(&model.programs, &model.loss, &strategy, &parts, options);
        let ranks: Vec<Rank> = ranks.into_iter().map(|r| r.unwrap()).collect();
        let what = format!("{threads} threads, fused: {fuse}");
        assert_same_bits(&what, &model.programs, &ranks);
        compare(&what, &model.programs, &scope, &ranks[0].scope, 1e-5);
        let n = ranks[0].text.matches("all_reduce_start(").count();
        assert_eq!(n, if fuse { 1 } else { 4 }, "{what}");
    }
}

/// Rank 1 has fewer batches, and its last one is short. Nobody waits for ever, no example counts
/// twice, and rows that only a repeated batch names are not touched.
#[test]
fn ranks_with_fewer_batches_take_part_without_weight() {
    for (name, optimizer) in optimizers() {
        let model = model(&optimizer);
        let sizes: [&[u64]; 3] = [&[6, 6, 6, 6, 6], &[6, 6, 2], &[6]];
        let mut first = 0;
        let mut take = |n: u64| {
            first += n;
            (first - n, n)
        };
        let ranges: Vec<Vec<(u64, u64)>> =
            sizes.iter().map(|list| list.iter().map(|&n| take(n)).collect()).collect();
        let parts: Vec<Vec<Batch>> = ranges
            .iter()
            .map(|list| list.iter().map(|&(first, n)| batch(first, n)).collect())
            .collect();
        let merged: Vec<Batch> = (0..5)
            .map(|t| {
                let of_step: Vec<(u64, u64)> =
                    ranges.iter().filter_map(|list| list.get(t).copied()).collect();
                batch_of(&of_step)
            })
            .collect();
        let (_, scope) = train_locally(&model, &merged);
        let strategy = DistributedStrategy::default();
        let ranks = train_ranks(&model.programs, &model.loss, &strategy, &parts);
        assert_same_bits(name, &model.programs, &ranks);
        compare(name, &model.programs, &scope, &ranks[0].scope, 1e-5);
        assert_eq!((ranks[2].end.steps, ranks[2].end.idle.as_slice()), (5, &[0, 2, 4][..]));
        assert_eq!(ranks[1].losses.len(), 3);
    }
}

#[test]
fn a_rank_without_any_batch_is_named_on_all() {
    let model = model(&optimizers()[0].1);
    let parts = vec![vec![batch(0, 4)], vec![]];
    let strategy = DistributedStrategy::default();
    let ranks = try_ranks(&model.programs, &model.loss, &strategy, &parts, Options::default());
    for rank in ranks {
        let error = rank.err().unwrap().to_string();
        assert!(error.starts_with("rank 1 has no batch in this data pass"), "{error}");
    }
}

#[test]
fn a_rank_with_another_program_is_named_on_all() {
    let models = [model(&optimizers()[0].1), model(&optimizers()[2].1)];
    let groups = regatta_collective::Group::in_memory(3).unwrap();
    std::thread::scope(|s| {
        for (i, group) in groups.into_iter().enumerate() {
            let model = &models[usize::from(i == 2)];
            s.spawn(move || {
                use regatta_train::{Backend, Ranks};
                let strategy = DistributedStrategy::default();
                let options = Options::default();
                let loss = model.loss.as_str();
                let (programs, yaml) = (&model.programs, strategy.to_yaml());
                let plan = plan_ranks(programs, &strategy, i, 3).unwrap();
                let mut ranks = Ranks::new(programs, plan, group, options, loss, &yaml).unwrap();
                let error = ranks.start(&mut Scope::new(), false).unwrap_err().to_string();
                let want = "rank 2 and rank 0 do not have the same program, settings and strategy";
                assert_eq!(error, want);
            });
        }
    });
}
