//! Recompute changes no bit and takes less memory; mixed precision learns the same with less, and
//! continues after an overflow.

mod common;

use common::{adam, batch, initialised, mlp, sgd};
use regatta_exec::{Executor, MemoryUse, Options, Scope, run_startup};
use regatta_ir::{Act, Embedding, Pool, Programs};
use regatta_optim::LossScaling;
use regatta_passes::{AmpConfig, Backward, LOSS_SCALING, Optimizer, RecomputeConfig, minimize};
use regatta_tensor::{DType, Data, Ragged, Tensor, Value};

const WIDTH: i64 = 64;
const LAYERS: usize = 16;

/// A deep network with dropout, so that random ops are repeated too.
fn deep(optimizer: &Optimizer) -> (Programs, String) {
    let mut b = regatta_ops::builder(7);
    let x = b.data("x", DType::F32, &[-1, 16]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let mut h = x;
    for layer in 0..LAYERS {
        h = b.fc(&h, WIDTH, Act::Relu).unwrap();
        if layer % 4 == 1 {
            h = b.dropout(&h, 0.2, layer as i64).unwrap();
        }
    }
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let what = Backward::default();
    (minimize(&b.finish(), &loss, optimizer, &what).unwrap().programs, loss)
}

/// What a few steps leave behind.
struct Trained {
    losses: Vec<f32>,
    scope: Scope,
    memory: MemoryUse,
}

fn train(optimizer: &Optimizer, threads: usize, rows: usize, steps: u64) -> Trained {
    let (programs, loss) = deep(optimizer);
    let mut scope = initialised(&programs);
    let options = Options { threads, ..Options::default() };
    let mut executor = Executor::new(programs.main, options).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let (x, label) = batch(rows, 16, step % 3);
        let feeds = [("x", &x), ("label", &label)];
        losses.push(executor.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0]);
    }
    Trained { losses, scope, memory: executor.memory().unwrap() }
}

fn assert_same_bits(a: &Trained, b: &Trained, what: &str) {
    assert_eq!(a.losses, b.losses, "{what}");
    assert_eq!(a.scope.names(), b.scope.names(), "{what}");
    for name in a.scope.names() {
        assert_eq!(a.scope.get(name), b.scope.get(name), "{what}: {name}");
    }
}

fn offloaded(checkpoints: &[&str]) -> RecomputeConfig {
    let checkpoints = checkpoints.iter().map(|c| c.to_string()).collect();
    RecomputeConfig { checkpoints, enable_offload: true, checkpoint_shape: vec![] }
}

#[test]
fn recompute_gives_the_same_bits_in_less_memory() {
    let rows = 512;
    for threads in [1, 3] {
        let all = train(&adam(0.001), threads, rows, 4);
        let with = |config| Optimizer { recompute: Some(config), ..adam(0.001) };
        let again = train(&with(RecomputeConfig::default()), threads, rows, 4);
        let named =
            train(&with(offloaded(&["fc_3.tmp_0", "fc_7.tmp_0", "fc_11.tmp_0"])), threads, rows, 4);
        let filed = train(&with(offloaded(&[])), threads, rows, 4);
        assert_same_bits(&all, &again, "recompute");
        assert_same_bits(&all, &named, "named checkpoints in a file");
        assert_same_bits(&all, &filed, "chosen checkpoints in a file");
        println!(
            "{threads} threads, {LAYERS} layers of {WIDTH}, batch {rows}: {} bytes kept, {} \
             recomputed, {} with checkpoints in a file ({} there)",
            all.memory.bytes, again.memory.bytes, filed.memory.bytes, filed.memory.offloaded_bytes
        );
        assert!(again.memory.bytes * 10 < all.memory.bytes * 8, "{:?}", again.memory);
        assert!(filed.memory.bytes < again.memory.bytes, "{:?}", filed.memory);
        assert!(filed.memory.offloaded_bytes > 0 && again.memory.offloaded_bytes == 0);
    }
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let (programs, loss) = deep(&Optimizer { recompute: Some(offloaded(&[])), ..sgd(0.1) });
    let mut scope = initialised(&programs);
    let offload_dir = Some("/no/such/folder".into());
    let options = Options { offload_dir, ..Options::default() };
    let mut executor = Executor::new(programs.main, options).unwrap();
    let (x, label) = batch(8, 16, 0);
    let feeds = [("x", &x), ("label", &label)];
    let error = executor.run(&mut scope, &feeds, &[&loss]).unwrap_err().to_string();
    assert!(error.contains("offload") && error.contains("/no/such/folder"), "{error}");
}

#[test]
fn mixed_precision_learns_the_same_in_less_memory() {
    let f32s = train(&adam(0.001), 1, 256, 40);
    for (name, amp) in [("bf16", AmpConfig::bf16()), ("fp16", AmpConfig::fp16())] {
        for pure in [false, true] {
            let optimizer =
                Optimizer { amp: Some(AmpConfig { pure, ..amp.clone() }), ..adam(0.001) };
            let half = train(&optimizer, 1, 256, 40);
            let (a, b) = (mean(&f32s.losses[30..]), mean(&half.losses[30..]));
            assert!((a - b).abs() < 0.1 && b < 0.55, "{name}, pure {pure}: {a} and {b}");
            // Rounding must be visible, or nothing was computed in 16 bits.
            assert_ne!(f32s.losses, half.losses, "{name}");
            assert!(half.memory.bytes < f32s.memory.bytes, "{name}: {:?}", half.memory);
            println!("{name}, pure {pure}: loss {b}, in f32 {a}; {:?}", half.memory);
            // What is saved can be loaded by anyone.
            let halves = |n: &&str| half.scope.get(n).unwrap().dtype().is_half();
            assert_eq!(half.scope.names().into_iter().find(halves), None);
        }
    }
}

fn mean(x: &[f32]) -> f32 {
    x.iter().sum::<f32>() / x.len() as f32
}

#[test]
fn threads_agree_in_mixed_precision() {
    let optimizer = Optimizer { amp: Some(AmpConfig::bf16()), ..sgd(0.01) };
    let one = train(&optimizer, 1, 48, 10);
    let three = train(&optimizer, 3, 48, 10);
    for (a, b) in one.losses.iter().zip(&three.losses) {
        assert!((a - b).abs() < 2e-3, "{a} and {b}");
    }
}

#[test]
fn mixed_precision_and_recompute_together() {
    for amp in [AmpConfig::bf16(), AmpConfig::fp16()] {
        let optimizer = Optimizer { amp: Some(amp), ..adam(0.001) };
        let kept = train(&optimizer, 1, 256, 4);
        let recompute = Some(offloaded(&[]));
        let again = train(&Optimizer { recompute, ..optimizer }, 1, 256, 4);
        assert_same_bits(&kept, &again, "recompute in 16 bits");
        assert!(again.memory.bytes < kept.memory.bytes);
    }
}

fn scale(scope: &Scope) -> f32 {
    scope.get(LOSS_SCALING).unwrap().f32()[0]
}

/// Everything that training changes, but not the state of loss scaling.
fn learned(scope: &Scope) -> Vec<(String, Tensor)> {
    let names = scope.names().into_iter().filter(|name| !name.starts_with('@'));
    names.map(|name| (name.to_string(), scope.get(name).unwrap().clone())).collect()
}

#[test]
fn an_overflow_skips_the_update_and_lowers_the_factor() {
    let scaling = LossScaling { initial: 2f32.powi(30), ..LossScaling::default() };
    let amp = AmpConfig { loss_scaling: Some(scaling), ..AmpConfig::fp16() };
    let model = mlp(&[16, 32, 2], Act::Relu, &Optimizer { amp: Some(amp), ..adam(0.01) });
    let mut scope = initialised(&model.programs);
    let first = learned(&scope);
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    let (mut scales, mut losses, mut skipped) = (vec![scale(&scope)], Vec::new(), 0);
    for step in 0..250 {
        let before = learned(&scope);
        let (x, label) = batch(64, 16, step % 5);
        let feeds = [("x", &x), ("label", &label)];
        losses.push(executor.run(&mut scope, &feeds, &[&model.loss]).unwrap()[0].f32()[0]);
        scales.push(scale(&scope));
        skipped += usize::from(learned(&scope) == before);
    }
    // Two bad steps are waited for, then the factor shrinks; until then nothing moves.
    assert_eq!(scales[1], scales[0]);
    assert_eq!(scales[2], scales[0] * 0.8);
    assert_eq!(scales[4], scales[2] * 0.8);
    assert!(skipped > 20 && skipped < 150, "{skipped} steps were left out");
    assert_ne!(learned(&scope), first);
    assert!(losses[249] < 0.3, "{}", losses[249]);
    assert!(learned(&scope).iter().all(|(_, t)| t.f32().iter().all(|x| x.is_finite())));
}

#[test]
fn a_bad_batch_is_left_out_and_training_goes_on() {
    let scaling = LossScaling { decr_every_n_nan_or_inf: 1, ..LossScaling::default() };
    let amp = AmpConfig { loss_scaling: Some(scaling), ..AmpConfig::fp16() };
    let model = mlp(&[4, 8, 2], Act::Relu, &Optimizer { amp: Some(amp), ..adam(0.01) });
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    let (good, label) = batch(8, 4, 0);
    let mut values = good.as_dense().unwrap().f32().to_vec();
    values[5] = f32::INFINITY;
    let bad: Value = Tensor::from_f32(&[8, 4], values).unwrap().into();
    let mut run = |scope: &mut Scope, x: &Value| {
        let feeds = [("x", x), ("label", &label)];
        executor.run(scope, &feeds, &[&model.loss]).unwrap();
        (learned(scope), scale(scope))
    };
    let (before, first) = run(&mut scope, &good);
    let (during, lowered) = run(&mut scope, &bad);
    assert_eq!(during, before, "an update was made of a bad batch");
    assert_eq!((first, lowered), (32768.0, 32768.0 * 0.8));
    let (after, kept) = run(&mut scope, &good);
    assert_ne!(after, before);
    assert_eq!(kept, lowered);
    assert!(after.iter().all(|(_, t)| t.f32().iter().all(|x| x.is_finite())));
}

/// Row-sparse gradients are scaled, checked and unscaled like dense ones.
#[test]
fn tables_train_in_mixed_precision() {
    let losses = |amp: Option<AmpConfig>| {
        let mut b = regatta_ops::builder(3);
        let clicks = b.sparse_data("clicks").unwrap();
        let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
        let spec = Embedding { pool: Pool::Mean, ..Embedding::new(50, 8) };
        let e = b.embedding(&[&clicks], &spec).unwrap();
        let e = b.reshape(&e, &[-1, 8]).unwrap();
        let h = b.fc(&e, 16, Act::Relu).unwrap();
        let logits = b.fc(&h, 2, Act::None).unwrap();
        let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
        let loss = b.mean(&cost).unwrap().name().to_string();
        let optimizer = Optimizer { amp, ..adam(0.02) };
        let what = Backward::default();
        let programs = minimize(&b.finish(), &loss, &optimizer, &what).unwrap().programs;
        let mut scope = Scope::new();
        run_startup(&programs.startup, &mut scope).unwrap();
        let mut executor = Executor::new(programs.main, Options::default()).unwrap();
        let ids: Vec<u64> = (0..60).map(|i| i * 7 % 50).collect();
        let labels = ids.chunks(3).map(|c| i64::from(c.iter().sum::<u64>() > 75)).collect();
        let offsets = (0..=20).map(|i| i * 3).collect();
        let clicks: Value = Ragged::new(Data::U64(ids), offsets).unwrap().into();
        let label: Value = Tensor::from_i64(&[20, 1], labels).unwrap().into();
        let feeds = [("clicks", &clicks), ("label", &label)];
        let losses: Vec<f32> = (0..40)
            .map(|_| executor.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0])
            .collect();
        losses
    };
    let plain = losses(None);
    for amp in [AmpConfig::bf16(), AmpConfig::fp16(), AmpConfig { pure: true, ..AmpConfig::fp16() }]
    {
        let half = losses(Some(amp));
        assert!(half[39] < 0.5 * half[0], "{half:?}");
        assert!((half[39] - plain[39]).abs() < 0.05, "{} and {}", half[39], plain[39]);
    }
}

/// The check for NaN and infinities sees 16-bit values too, and fetched ones come as f32.
#[test]
fn values_of_16_bits_are_checked_and_fetched() {
    let amp = Some(AmpConfig { loss_scaling: None, ..AmpConfig::fp16() });
    let model = mlp(&[4, 8, 2], Act::Relu, &Optimizer { amp, ..sgd(0.01) });
    let mut scope = initialised(&model.programs);
    let options = Options { check_nan_inf: true, ..Options::default() };
    let mut executor = Executor::new(model.programs.main, options).unwrap();
    let (x, label) = batch(8, 4, 0);
    let fetched = executor.run(&mut scope, &[("x", &x), ("label", &label)], &["fc_0.tmp_0"]);
    let fetched = &fetched.unwrap()[0];
    assert_eq!((fetched.dtype(), fetched.shape()), (DType::F32, &[8, 8][..]));
    let large: Value = Tensor::from_f32(&[8, 4], vec![1e6; 32]).unwrap().into();
    let feeds = [("x", &large), ("label", &label)];
    let error = executor.run(&mut scope, &feeds, &[&model.loss]).unwrap_err().to_string();
    assert!(error.contains("op cast wrote inf to 'x@F16'"), "{error}");
}
