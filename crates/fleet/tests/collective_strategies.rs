//! What each strategy promises, against training without it.

mod common;

use common::ranks::*;
use common::*;
use regatta_data::Batch;
use regatta_exec::{Executor, Options, Scope, run_startup};
use regatta_fleet::DistributedStrategy;
use regatta_fleet::collective::{optimizer_for, plan_ranks};
use regatta_ir::{Act, Programs};
use regatta_optim::{Adagrad, Adam, LarsMomentum, Momentum, Rule, Sgd};
use regatta_passes::{Backward, Clip, Optimizer, minimize};
use regatta_tensor::{DType, Value};

fn momentum(lr: f64) -> Optimizer {
    Optimizer::new(Rule::Momentum(Momentum::default()), lr)
}

fn adam(lr: f64) -> Optimizer {
    Optimizer::new(Rule::Adam(Adam::default()), lr)
}

/// From YAML, as users write it.
fn strategy(text: &str) -> DistributedStrategy {
    DistributedStrategy::from_yaml(text).unwrap()
}

/// Batches of `n` examples for each of `ranks` ranks.
fn parts(ranks: u64, n: u64, steps: u64) -> Vec<Vec<Batch>> {
    (0..ranks).map(|r| (0..steps).map(|t| batch((t * ranks + r) * n, n)).collect()).collect()
}

fn merged(n: u64, steps: u64) -> Vec<Batch> {
    (0..steps).map(|t| batch(t * n, n)).collect()
}

fn compare(what: &str, programs: &Programs, a: &Scope, b: &Scope, tolerance: f32) {
    for name in programs.main.param_names() {
        let (a, b) = (a.get(&name).unwrap().f32(), b.get(&name).unwrap().f32());
        assert_close(&format!("{what}: {name}"), a, b, tolerance);
    }
}

fn assert_same_bits(what: &str, programs: &Programs, ranks: &[Rank]) {
    for rank in ranks {
        let (a, b) = (checksum(programs, &ranks[0].scope), checksum(programs, &rank.scope));
        assert!(a == b, "{what}: ranks have other parameters than rank 0");
    }
}

#[test]
fn merged_gradients_equal_a_larger_batch() {
    let text = "gradient_merge: true\ngradient_merge_configs: {k_steps: 3, avg: true}\n";
    let adagrad = Optimizer::new(Rule::Adagrad(Adagrad::default()), 0.05);
    let clipped = Optimizer { clip: Some(Clip::GlobalNorm(0.05)), ..momentum(0.1) };
    for (name, optimizer) in [("adam", adam(0.01)), ("adagrad", adagrad), ("clipped", clipped)] {
        let model = model(&optimizer);
        for ranks in [1, 2] {
            // 7 steps of 3 batches of 4 examples per rank.
            let (_, one) = train_locally(&model, &merged(3 * 4 * ranks, 7));
            let all =
                train_ranks(&model.programs, &model.loss, &strategy(text), &parts(ranks, 4, 21));
            let what = format!("{name}, {ranks} ranks");
            assert_same_bits(&what, &model.programs, &all);
            compare(&what, &model.programs, &one, &all[0].scope, 1e-5);
        }
    }
}

/// Two batches are left at the end of the data pass: they are one smaller step.
#[test]
fn what_is_left_to_merge_is_not_lost() {
    let model = model(&adam(0.01));
    let text = "gradient_merge: true\ngradient_merge_configs: {k_steps: 4}\n";
    let all = train_ranks(&model.programs, &model.loss, &strategy(text), &parts(1, 5, 6));
    let (_, one) = train_locally(&model, &[batch(0, 20), batch(20, 10)]);
    compare("tail", &model.programs, &one, &all[0].scope, 1e-5);
}

#[test]
fn local_sgd_with_one_step_is_synchronous() {
    let model = model(&Optimizer::new(Rule::Sgd(Sgd {}), 0.2));
    // A row's velocity rests while its rank does not touch the row, so that tables with momentum
    // train apart in a way that averages do not undo; dense parameters do not.
    let (dense, dense_loss) = wide(&momentum(0.05));
    let data = parts(3, 6, 40);
    for (what, programs, loss) in
        [("sgd", &model.programs, &model.loss), ("momentum", &dense, &dense_loss)]
    {
        let sync = train_ranks(programs, loss, &strategy(""), &data);
        let text = "localsgd: true\nlocalsgd_configs: {k_steps: 1, begin_step: 1}\n";
        let local = train_ranks(programs, loss, &strategy(text), &data);
        assert_same_bits(what, programs, &local);
        compare(what, programs, &sync[0].scope, &local[0].scope, 1e-5);
    }
}

#[test]
fn local_sgd_averages_every_k_steps() {
    let model = model(&Optimizer::new(Rule::Sgd(Sgd {}), 0.2));
    let data = parts(2, 6, 10);
    // By hand: ten steps apart, then the mean. The first step is averaged too.
    let text = "localsgd: true\nlocalsgd_configs: {k_steps: 9, begin_step: 1}\n";
    let ranks = train_ranks(&model.programs, &model.loss, &strategy(text), &data);
    assert_same_bits("k=9", &model.programs, &ranks);
    let first: Vec<Scope> =
        data.iter().map(|batches| continued(&model, None, &batches[..1])).collect();
    let mean = averaged(&model.programs, &first);
    let second: Vec<Scope> =
        data.iter().map(|batches| continued(&model, Some(&mean), &batches[1..])).collect();
    compare("k=9", &model.programs, &averaged(&model.programs, &second), &ranks[0].scope, 1e-5);
}

fn continued(model: &Model, from: Option<&Scope>, batches: &[Batch]) -> Scope {
    let mut scope = Scope::new();
    run_startup(&model.programs.startup, &mut scope).unwrap();
    for name in from.iter().flat_map(|_| model.programs.main.param_names()) {
        scope.set(&name, from.unwrap().get(&name).unwrap().clone());
    }
    let mut executor = Executor::new(model.programs.main.clone(), Options::default()).unwrap();
    for batch in batches {
        let feeds: Vec<(&str, &Value)> = batch.iter().collect();
        executor.run(&mut scope, &feeds, &[]).unwrap();
    }
    scope
}

fn averaged(programs: &Programs, scopes: &[Scope]) -> Scope {
    let mut mean = Scope::new();
    for name in programs.main.param_names() {
        let mut sum = scopes[0].get(&name).unwrap().clone();
        for scope in &scopes[1..] {
            let other = scope.get(&name).unwrap().f32();
            sum.f32_mut().iter_mut().zip(other).for_each(|(s, x)| *s += x);
        }
        sum.f32_mut().iter_mut().for_each(|x| *x /= scopes.len() as f32);
        mean.set(&name, sum);
    }
    mean
}

#[test]
fn adaptive_local_sgd_ends_with_the_same_parameters_everywhere() {
    let model = model(&Optimizer::new(Rule::Sgd(Sgd {}), 0.2));
    let text = "adaptive_localsgd: true\nadaptive_localsgd_configs: {init_k_steps: 8}\n";
    // Rank 1 has fewer batches and rests at the end.
    let mut data = parts(2, 6, 30);
    data[1].truncate(21);
    let ranks = train_ranks(&model.programs, &model.loss, &strategy(text), &data);
    assert_same_bits("adaptive", &model.programs, &ranks);
    assert_eq!((ranks[0].end.steps, ranks[0].end.idle[1]), (30, 9));
    assert!(mean(&ranks[0].losses[25..]) < mean(&ranks[0].losses[..5]));
}

fn mean(losses: &[f32]) -> f32 {
    losses.iter().sum::<f32>() / losses.len() as f32
}

#[test]
fn fp16_on_the_wire_is_near_and_the_same_everywhere() {
    let model = model(&adam(0.01));
    let data = parts(2, 8, 30);
    let full = train_ranks(&model.programs, &model.loss, &strategy(""), &data);
    let half =
        train_ranks(&model.programs, &model.loss, &strategy("fp16_allreduce: true\n"), &data);
    assert_same_bits("fp16", &model.programs, &half);
    assert!(half[0].text.contains("wire: \"f16\""));
    let last = |ranks: &[Rank]| mean(&ranks[0].losses[20..]);
    assert!((last(&full) - last(&half)).abs() < 0.01, "{} {}", last(&full), last(&half));
    assert_ne!(
        checksum(&model.programs, &full[0].scope),
        checksum(&model.programs, &half[0].scope)
    );
}

#[test]
fn hierarchical_all_reduce_equals_the_flat_one() {
    let model = model(&adam(0.01));
    let data = parts(4, 5, 20);
    let text = "use_hierarchical_allreduce: true\nhierarchical_allreduce_inter_nranks: 2\n";
    let flat = train_ranks(&model.programs, &model.loss, &strategy(""), &data);
    let tree = train_ranks(&model.programs, &model.loss, &strategy(text), &data);
    assert_same_bits("hierarchical", &model.programs, &tree);
    compare("hierarchical", &model.programs, &flat[0].scope, &tree[0].scope, 1e-5);
}

#[test]
fn sharding_changes_who_updates_and_nothing_else() {
    let clipped = Optimizer { clip: Some(Clip::Norm(0.1)), ..adam(0.01) };
    for (name, optimizer) in [("adam", adam(0.01)), ("clipped", clipped)] {
        let model = model(&optimizer);
        let data = parts(3, 5, 20);
        let whole = train_ranks(&model.programs, &model.loss, &strategy(""), &data);
        for stage in [1, 2] {
            let text = format!("sharding: true\nsharding_configs: {{stage: {stage}}}\n");
            let ranks = train_ranks(&model.programs, &model.loss, &strategy(&text), &data);
            let what = format!("{name}, stage {stage}");
            assert_same_bits(&what, &model.programs, &ranks);
            compare(&what, &model.programs, &whole[0].scope, &ranks[0].scope, 1e-5);
            // Rank 0 has collected all states, the others keep about a third.
            for var in model.programs.main.persistables() {
                let (a, b) = (&whole[0].scope, &ranks[0].scope);
                let (a, b) = (a.get(&var.name).unwrap(), b.get(&var.name).unwrap());
                assert_close(&format!("{what}: {}", var.name), a.f32(), b.f32(), 1e-5);
            }
            let count = |rank: &Rank| rank.scope.names().len();
            assert!(count(&ranks[1]) < count(&whole[1]), "{what}");
        }
    }
}

#[test]
fn lars_and_lamb_are_the_rules_themselves() {
    let data = parts(2, 5, 15);
    let excluded = "exclude_from_weight_decay: [none]";
    for (text, given, wanted) in [
        (
            format!("lars: true\nlars_configs: {{{excluded}}}\n"),
            momentum(0.5),
            Rule::LarsMomentum(LarsMomentum::default()),
        ),
        (
            format!("lamb: true\nlamb_configs: {{{excluded}}}\n"),
            adam(0.01),
            Rule::Lamb(regatta_optim::Lamb { epsilon: 1e-8, ..regatta_optim::Lamb::default() }),
        ),
    ] {
        let direct = model(&Optimizer { rule: wanted, ..given.clone() });
        let swapped = model(&given);
        let a = train_ranks(&direct.programs, &direct.loss, &strategy(""), &data);
        let b = train_ranks(&swapped.programs, &swapped.loss, &strategy(&text), &data);
        let (a, b) = (&a[0].scope, &b[0].scope);
        assert_eq!(checksum(&direct.programs, a), checksum(&swapped.programs, b), "{text}");
    }
}

/// A model with a parameter that is large enough to compress.
fn wide(optimizer: &Optimizer) -> (Programs, String) {
    let mut b = regatta_ops::builder(3);
    let dense = b.data("dense", DType::F32, &[-1, 4]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let h = b.fc(&dense, 128, Act::Tanh).unwrap();
    let h = b.fc(&h, 128, Act::Tanh).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let programs = minimize(&b.finish(), &loss, optimizer, &Backward::default()).unwrap().programs;
    (programs, loss)
}

#[test]
fn dgc_without_sparsity_is_momentum_and_with_it_converges() {
    let (programs, loss) = wide(&momentum(0.05));
    let data = parts(2, 16, 60);
    let plain = train_ranks(&programs, &loss, &strategy(""), &data);
    let all = "dgc: true\ndgc_configs: {sparsity: [0.0]}\n";
    let all = train_ranks(&programs, &loss, &strategy(all), &data);
    assert_same_bits("all entries", &programs, &all);
    // Entries that travel take their momentum along, so only the first step is the same; before the
    // ramp everything is.
    let later = "dgc: true\ndgc_configs: {rampup_begin_step: 1000}\n";
    let later = train_ranks(&programs, &loss, &strategy(later), &data);
    assert_same_bits("later", &programs, &later);
    compare("later", &programs, &plain[0].scope, &later[0].scope, 1e-5);
    let sparse = "dgc: true\n\
                  dgc_configs: {rampup_begin_step: 5, rampup_step: 20, sparsity: [0.75, 0.9, 0.99]}\n";
    let sparse = train_ranks(&programs, &loss, &strategy(sparse), &data);
    assert_same_bits("sparse", &programs, &sparse);
    let last = |ranks: &[Rank]| mean(&ranks[0].losses[50..]);
    let first = mean(&plain[0].losses[..5]);
    assert!(last(&sparse) < first - 0.02, "{first} {}", last(&sparse));
    assert!(last(&sparse) < last(&plain) + 0.1, "{} {}", last(&plain), last(&sparse));
}

/// Layers with batch norm: the statistics of all ranks together, whose batches differ in size.
#[test]
fn sync_batch_norm_equals_one_process() {
    let mut b = regatta_ops::builder(3);
    let dense = b.data("dense", DType::F32, &[-1, 4]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let h = b.fc(&dense, 8, Act::None).unwrap();
    let h = b.batch_norm(&h, 0.9, 1e-5).unwrap();
    let h = b.relu(&h).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    let programs = minimize(&b.finish(), &loss, &sgd, &Backward::default()).unwrap().programs;
    let sizes = [[0, 9], [9, 5], [14, 7]];
    let data: Vec<Vec<Batch>> = sizes
        .iter()
        .map(|[first, n]| (0..30).map(|t| batch(t * 21 + first, *n)).collect())
        .collect();
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    let mut executor = Executor::new(programs.main.clone(), Options::default()).unwrap();
    for batch in merged(21, 30) {
        let feeds: Vec<(&str, &Value)> =
            batch.iter().filter(|(n, _)| ["dense", "label"].contains(n)).collect();
        executor.run(&mut scope, &feeds, &[]).unwrap();
    }
    let synced = train_ranks(&programs, &loss, &strategy("sync_batch_norm: true\n"), &data);
    assert_same_bits("sync", &programs, &synced);
    compare("sync", &programs, &scope, &synced[0].scope, 1e-5);
    for var in programs.main.persistables() {
        let (a, b) = (scope.get(&var.name).unwrap(), synced[1].scope.get(&var.name).unwrap());
        assert_close(&var.name, a.f32(), b.f32(), 1e-5);
    }
    let apart = train_ranks(&programs, &loss, &strategy(""), &data);
    let (a, b) = (checksum(&programs, &apart[0].scope), checksum(&programs, &synced[0].scope));
    assert_ne!(a, b, "without it, ranks normalise by themselves");
}

#[test]
fn strategies_that_make_sense_work_together() {
    let model = model(&adam(0.01));
    let data = parts(4, 4, 12);
    let merge = "gradient_merge: true\ngradient_merge_configs: {k_steps: 2}\n";
    let plain = train_ranks(&model.programs, &model.loss, &strategy(merge), &data);
    let hierarchical = "use_hierarchical_allreduce: true\nhierarchical_allreduce_inter_nranks: 2\n";
    for text in [
        "sharding: true\n".to_string(),
        "sharding: true\nsharding_configs: {stage: 2}\n".to_string(),
        hierarchical.to_string(),
        format!("sharding: true\nlast_comm_group_size_MB: 0.00001\n{hierarchical}"),
        "fuse_all_reduce_ops: false\n".to_string(),
        "fuse_grad_size_in_num: 2\n".to_string(),
    ] {
        let text = format!("{merge}{text}");
        let ranks = train_ranks(&model.programs, &model.loss, &strategy(&text), &data);
        assert_same_bits(&text, &model.programs, &ranks);
        compare(&text, &model.programs, &plain[0].scope, &ranks[0].scope, 1e-5);
    }
}

/// Mixed precision, activations computed again, merged gradients and buckets, all at once.
#[test]
fn precision_and_memory_options_work_with_the_others() {
    let merge = "gradient_merge: true\ngradient_merge_configs: {k_steps: 2}\n";
    let data = parts(2, 16, 40);
    let train = |text: &str| {
        let strategy = strategy(text);
        let optimizer = optimizer_for(&momentum(0.05), &strategy).unwrap();
        let (programs, loss) = wide(&optimizer);
        let ranks = train_ranks(&programs, &loss, &strategy, &data);
        assert_same_bits(text, &programs, &ranks);
        (checksum(&programs, &ranks[0].scope), mean(&ranks[0].losses[30..]))
    };
    let (plain, loss) = train(merge);
    let (again, _) = train(&format!("{merge}recompute: true\n"));
    assert!(plain == again, "computing activations again changes no bit");
    for amp in ["{dtype: bfloat16}", "{use_pure_bf16: true}", "{init_loss_scaling: 1024.0}"] {
        let text = format!("{merge}recompute: true\namp: true\namp_configs: {amp}\n");
        let (bits, near) = train(&text);
        assert!(bits != plain, "{amp}");
        assert!((near - loss).abs() < 0.02, "{amp}: {loss} and {near}");
    }
}

#[test]
fn strategies_that_exclude_each_other_are_named() {
    let programs = model(&momentum(0.1)).programs;
    let refused = |text: &str, ranks: usize| {
        plan_ranks(&programs, &strategy(text), 0, ranks).unwrap_err().to_string()
    };
    for (text, names) in [
        ("localsgd: true\nsync_batch_norm: true\n", ["localsgd", "sync_batch_norm"]),
        (
            "adaptive_localsgd: true\nsync_batch_norm: true\n",
            ["adaptive_localsgd", "sync_batch_norm"],
        ),
        ("localsgd: true\ndgc: true\n", ["localsgd", "dgc"]),
        ("dgc: true\namp: true\n", ["dgc", "amp"]),
        (
            "sharding: true\nsharding_configs: {stage: 2}\nfp16_allreduce: true\n",
            ["sharding_configs.stage 2", "fp16_allreduce"],
        ),
        (
            "sharding: true\nsharding_configs: {sharding_degree: 3}\n",
            ["sharding_degree is 3", "2 ranks"],
        ),
        (
            "use_hierarchical_allreduce: true\nhierarchical_allreduce_inter_nranks: 3\n",
            ["hierarchical_allreduce_inter_nranks", "2 ranks"],
        ),
        ("lamb: true\n", ["lamb needs adam", "momentum"]),
        ("dgc: true\n", ["dgc", "16384"]),
    ] {
        let error = refused(text, 2);
        assert!(names.iter().all(|name| error.contains(name)), "{text}: {error}");
    }
}
