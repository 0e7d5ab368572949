//! Mixed precision and recompute by configuration: the same AUC, the same bits.

use std::path::Path;

use regatta_passes::Precision;
use regatta_rec::{Config, infer, train};
use regatta_train::observe::Event;

const TEXT: &str = "
model: dnn
runner:
  train_data_dir: 'synthetic://ctr?slots=8&vocab=100&dense=4&seed=5&examples=16000'
  test_data_dir: 'synthetic://ctr?slots=8&vocab=100&dense=4&seed=5&examples=8000&first=1000000'
  train_batch_size: 128
  infer_batch_size: 500
  epochs: 2
  model_save_path: model_output
  infer_start_epoch: 1
  infer_end_epoch: 2
hyper_parameters:
  optimizer: {class: Adam, learning_rate: 0.003}
  sparse_inputs_slots: 9
  sparse_feature_number: 801
  sparse_feature_dim: 8
  dense_input_dim: 4
  fc_sizes: [64, 32]
";

fn load(folder: &Path, overrides: &[&str]) -> Result<Config, String> {
    let path = folder.join("c.yaml");
    std::fs::write(&path, TEXT).unwrap();
    let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
    Config::load(&path, &overrides).map_err(|e| e.to_string())
}

/// AUC on test data and the losses of the epochs.
fn run(overrides: &[&str]) -> (f64, Vec<Option<f64>>) {
    let folder = tempfile::tempdir().unwrap();
    let config = load(folder.path(), overrides).unwrap();
    let mut quiet = |_: &Event<'_>| {};
    let trained = train(&config, &mut quiet).unwrap();
    // Evaluated in f32, from what was saved in f32.
    let plain = load(folder.path(), &[]).unwrap();
    let judged = infer(&plain, &mut quiet).unwrap();
    (judged.epochs[0].auc.unwrap(), trained.epochs.iter().map(|e| e.loss).collect())
}

#[test]
fn mixed_precision_reaches_the_same_auc() {
    let (auc, losses) = run(&[]);
    assert!(auc > 0.7, "{auc}");
    for amp in [
        &["runner.amp=bf16"][..],
        &["runner.amp=fp16"],
        &["runner.amp=fp16", "runner.amp_configs.use_pure=True"],
        &["runner.amp=bf16", "runner.recompute=True", "runner.thread_num=2"],
    ] {
        let (half, half_losses) = run(amp);
        println!("AUC in f32 {auc:.4}, with {amp:?} {half:.4}");
        assert!((half - auc).abs() < 0.002, "{amp:?}: {half}, in f32 {auc}");
        assert_ne!(losses, half_losses, "{amp:?}: nothing was rounded");
    }
}

#[test]
fn recompute_changes_no_bit() {
    let kept = run(&["runner.epochs=2"]);
    assert_eq!(run(&["runner.recompute=True"]), kept);
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("runner.recompute_configs.offload_dir={}", folder.path().display());
    let offload = "runner.recompute_configs.enable_offload=True";
    let named = "runner.recompute_configs.checkpoints=[fc_0.tmp_0]";
    assert_eq!(run(&["runner.recompute=True", offload, named, &dir]), kept);
}

#[test]
fn keys_become_what_the_passes_take() {
    let folder = tempfile::tempdir().unwrap();
    let plain = load(folder.path(), &[]).unwrap();
    assert!(plain.optimizer.amp.is_none() && plain.optimizer.recompute.is_none());
    let overrides = [
        "runner.amp=fp16",
        "runner.amp_configs.use_pure=True",
        "runner.amp_configs.init_loss_scaling=1024",
        "runner.amp_configs.incr_every_n_steps=7",
        "runner.amp_configs.custom_black_list=[relu]",
        "runner.recompute=True",
        "runner.recompute_configs.checkpoints=[fc_0.tmp_0]",
        "runner.recompute_configs.checkpoint_shape=[128, 64]",
    ];
    let config = load(folder.path(), &overrides).unwrap();
    let amp = config.optimizer.amp.unwrap();
    let scaling = amp.loss_scaling.unwrap();
    assert!(amp.precision == Precision::Fp16 && amp.pure);
    assert_eq!((scaling.initial, scaling.incr_every_n_steps), (1024.0, 7));
    assert_eq!((scaling.decr_every_n_nan_or_inf, scaling.decr_ratio), (2, 0.8));
    assert_eq!(amp.custom_black_list, ["relu"]);
    let recompute = config.optimizer.recompute.unwrap();
    assert_eq!(recompute.checkpoints, ["fc_0.tmp_0"]);
    assert_eq!(recompute.checkpoint_shape, [128, 64]);
    let bf16 = load(folder.path(), &["runner.amp=bf16"]).unwrap().optimizer.amp.unwrap();
    assert!(bf16.loss_scaling.is_none());
}

#[test]
fn what_has_no_effect_is_said_and_what_makes_no_sense_refused() {
    let folder = tempfile::tempdir().unwrap();
    let off = load(folder.path(), &["runner.amp_configs.decr_ratio=0.5"]).unwrap();
    assert_eq!(off.ignored[0].key, "runner.amp_configs.decr_ratio");
    assert_eq!(off.ignored[0].reason, "runner.amp is off");
    let bad = load(folder.path(), &["runner.amp=fp16", "runner.amp_configs.decr_ratio=2"]);
    assert!(bad.err().unwrap().contains("decr_ratio"));
    let unknown =
        load(folder.path(), &["runner.amp=fp16", "runner.amp_configs.custom_white_list=[fcc]"]);
    let error = train(&unknown.unwrap(), &mut |_: &Event<'_>| {}).unwrap_err().to_string();
    assert!(error.contains("no op 'fcc'") && error.contains("'fc'"), "{error}");
}
