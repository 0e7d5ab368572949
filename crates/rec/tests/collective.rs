//! Strategies that exchange less than every gradient, or compute on 16 bits, learn what synchronous
//! ranks learn.

use std::path::Path;

use regatta_collective::Group;
use regatta_rec::run::{Place, train_as};
use regatta_rec::{Config, infer};
use regatta_train::observe::Event;
use regatta_train::report::Report;

/// The first layer has 26 * 9 + 13 rows: with 128 columns it is large enough for DGC.
const TEXT: &str = "
model: dnn
runner:
  train_data_dir: 'synthetic://ctr?slots=26&vocab=40&dense=13&seed=5&examples=8000'
  test_data_dir: 'synthetic://ctr?slots=26&vocab=40&dense=13&seed=5&examples=4000&first=1000000'
  train_batch_size: 32
  infer_batch_size: 500
  epochs: 4
  infer_start_epoch: 3
  infer_end_epoch: 4
hyper_parameters:
  optimizer: {class: Momentum, learning_rate: 0.02}
  sparse_inputs_slots: 27
  sparse_feature_number: 1041
  sparse_feature_dim: 9
  dense_input_dim: 13
  fc_sizes: [128, 16]
";

fn load(folder: &Path, strategy: &str, overrides: &[&str]) -> Config {
    let (config, file) = (folder.join("c.yaml"), folder.join("strategy.yaml"));
    std::fs::write(&config, TEXT).unwrap();
    std::fs::write(&file, strategy).unwrap();
    let save = format!("runner.model_save_path={}", folder.join("model").display());
    let read = format!("runner.infer_load_path={}", folder.join("model").display());
    let mut all = vec![save, read, format!("runner.strategy={}", file.display())];
    all.extend(overrides.iter().map(|o| o.to_string()));
    Config::load(&config, &all).unwrap()
}

/// What rank 0 reports when two ranks have trained.
fn train(config: &Config) -> Report {
    std::thread::scope(|s| {
        let rank = |group| {
            s.spawn(move || {
                train_as(config, Place::Rank(group), &mut |_: &Event<'_>| {}).unwrap().report
            })
        };
        let ranks: Vec<_> = Group::in_memory(2).unwrap().into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).next().unwrap()
    })
}

/// AUC on other examples after two ranks have trained.
fn auc(strategy: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let config = load(folder.path(), strategy, &[]);
    train(&config);
    infer(&config, &mut |_: &Event<'_>| {}).unwrap().epochs[0].auc.unwrap()
}

#[test]
fn rare_or_sparse_exchanges_reach_the_auc_of_synchronous_ranks() {
    let synchronous = auc("fuse_all_reduce_ops: true\n");
    assert!(synchronous > 0.7, "{synchronous}");
    for strategy in [
        "dgc: true\ndgc_configs: {rampup_begin_step: 5, rampup_step: 20, sparsity: [0.75, 0.99]}\n",
        "localsgd: true\nlocalsgd_configs: {k_steps: 4, begin_step: 5}\n",
    ] {
        let own = auc(strategy);
        println!("AUC of synchronous ranks {synchronous:.4}, with {strategy:?} {own:.4}");
        assert!(own > 0.69 && own > synchronous - 0.015, "{strategy}: {own}, not {synchronous}");
    }
}

#[test]
fn mixed_precision_reaches_the_auc_of_f32_ranks() {
    let plain = auc("fuse_all_reduce_ops: true\n");
    for strategy in [
        "amp: true\namp_configs: {dtype: bfloat16}\n",
        "amp: true\namp_configs: {init_loss_scaling: 1024.0}\nfp16_allreduce: true\n",
    ] {
        let half = auc(strategy);
        println!("AUC of f32 ranks {plain:.4}, with {strategy:?} {half:.4}");
        assert!((half - plain).abs() < 0.002, "{strategy}: {half}, in f32 {plain}");
        assert_ne!(half, plain, "{strategy}: nothing was rounded");
    }
}

/// The momentum of a saved epoch is taken up again, although it belongs to the second program.
#[test]
fn merged_gradients_begin_with_all_of_a_saved_model() {
    let folder = tempfile::tempdir().unwrap();
    let strategy = "gradient_merge: true\ngradient_merge_configs: {k_steps: 2}\n";
    let whole = train(&load(folder.path(), strategy, &["runner.epochs=2"]));
    let saved = format!("runner.model_init_path={}", folder.path().join("model/0").display());
    let other = tempfile::tempdir().unwrap();
    let second = train(&load(other.path(), strategy, &["runner.epochs=1", &saved]));
    assert_eq!(whole.epochs[1].loss, second.epochs[0].loss);
    assert_ne!(whole.epochs[0].loss, second.epochs[0].loss);
}
