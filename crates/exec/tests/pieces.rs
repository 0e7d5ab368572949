//! Large batches are computed in pieces: less memory, the same results.

mod common;

use common::{adam, batch, initialised, mlp};
use regatta_exec::{Executor, MemoryUse, Options, Scope};
use regatta_ir::{Act, Embedding, Programs};
use regatta_passes::{AmpConfig, Backward, Optimizer, minimize};
use regatta_tensor::{DType, Ragged, Rng, Tensor, Value};

const WIDTHS: [i64; 4] = [16, 600, 600, 2];

struct Trained {
    fetched: Vec<Vec<Tensor>>,
    scope: Scope,
    memory: MemoryUse,
}

fn train(
    programs: &Programs,
    options: Options,
    batches: &[Vec<(&str, Value)>],
    fetch: &[&str],
) -> Trained {
    let mut scope = initialised(programs);
    let mut executor = Executor::new(programs.main.clone(), options).unwrap();
    let mut step = |batch: &Vec<(&str, Value)>| {
        let feeds: Vec<(&str, &Value)> = batch.iter().map(|(name, value)| (*name, value)).collect();
        executor.run(&mut scope, &feeds, fetch).unwrap().to_vec()
    };
    let fetched = batches.iter().map(&mut step).collect();
    Trained { fetched, memory: executor.memory().unwrap(), scope }
}

fn whole(threads: usize) -> Options {
    Options { threads, pieces: false, ..Options::default() }
}

fn in_pieces(threads: usize) -> Options {
    Options { threads, ..Options::default() }
}

fn assert_close(a: &Tensor, b: &Tensor, tolerance: f32, what: &str) {
    assert_eq!(a.shape(), b.shape(), "{what}");
    let apart = a.f32().iter().zip(b.f32()).map(|(a, b)| (a - b).abs());
    let largest = apart.fold(0.0, f32::max);
    assert!(largest <= tolerance, "{what}: {largest}");
}

fn dense_batches(rows: &[usize]) -> Vec<Vec<(&'static str, Value)>> {
    let of = |(seed, &rows): (usize, &usize)| {
        let (x, label) = batch(rows, 16, seed as u64);
        vec![("x", x), ("label", label)]
    };
    rows.iter().enumerate().map(of).collect()
}

#[test]
fn predictions_losses_and_parameters_are_those_of_the_whole_batch() {
    let model = mlp(&WIDTHS, Act::Relu, &adam(0.001));
    let fetch = [model.loss.as_str(), &model.softmax, "x", "fc_0.w_0@GRAD"];
    // Divisible or not, and one that is not cut.
    for rows in [2048, 2053, 1030, 700] {
        let batches = dense_batches(&[rows; 3]);
        for threads in [1, 2] {
            let a = train(&model.programs, whole(threads), &batches, &fetch);
            let b = train(&model.programs, in_pieces(threads), &batches, &fetch);
            for (step, (a, b)) in a.fetched.iter().zip(&b.fetched).enumerate() {
                for ((a, b), name) in a.iter().zip(b).zip(fetch) {
                    let what = format!("{rows} examples, {threads} threads, step {step}, {name}");
                    assert_close(a, b, 2e-4, &what);
                }
            }
            for name in a.scope.names().iter().filter(|name| name.ends_with("_0")) {
                let (a, b) = (a.scope.get(name).unwrap(), b.scope.get(name).unwrap());
                assert_close(a, b, 1e-3, name);
            }
        }
    }
}

#[test]
fn pieces_take_less_memory() {
    let model = mlp(&WIDTHS, Act::Relu, &adam(0.001));
    let batches = dense_batches(&[2048]);
    let of = |options| train(&model.programs, options, &batches, &[&model.loss]).memory.bytes;
    let (a, b) = (of(whole(1)), of(in_pieces(1)));
    assert!(2 * b < a, "{a} bytes, in pieces {b}");
}

#[test]
fn the_same_pieces_give_the_same_bits() {
    let model = mlp(&WIDTHS, Act::Relu, &adam(0.001));
    let batches = dense_batches(&[2048, 1100, 2048]);
    let of = || train(&model.programs, in_pieces(1), &batches, &[&model.loss]).fetched;
    assert_eq!(of(), of());
}

/// Sums in 16 bits are rounded once, so batches with such sums are not cut.
#[test]
fn gradients_in_16_bits_are_those_of_the_whole_batch() {
    let optimizer = Optimizer { amp: Some(AmpConfig::bf16()), ..adam(0.001) };
    let model = mlp(&WIDTHS, Act::Relu, &optimizer);
    let block = model.programs.main.block();
    let half = |name: &&String| name.contains("w_0") && block.vars[*name].ty.dtype.is_half();
    let gradients: Vec<&str> = block
        .vars
        .keys()
        .filter(|n| n.contains("@GRAD"))
        .filter(half)
        .map(String::as_str)
        .collect();
    assert!(!gradients.is_empty(), "{:?}", block.vars.keys());
    let batches = dense_batches(&[2048; 2]);
    let a = train(&model.programs, whole(1), &batches, &gradients);
    let b = train(&model.programs, in_pieces(1), &batches, &gradients);
    assert_eq!(a.fetched, b.fetched);
    let a = train(&model.programs, whole(1), &batches, &[&model.loss]);
    let b = train(&model.programs, in_pieces(1), &batches, &[&model.loss]);
    for (a, b) in a.fetched.iter().zip(&b.fetched) {
        assert_close(&a[0], &b[0], 1e-3, "loss");
    }
}

/// Values may change between the pieces of a batch.
#[test]
fn later_pieces_are_computed_with_what_was_changed_before_them() {
    const ROWS: usize = 1024;
    let model = mlp(&WIDTHS, Act::Relu, &adam(0.001));
    let (x, label) = batch(ROWS, 16, 5);
    let half = |at: usize| {
        let (Value::Dense(x), Value::Dense(label)) = (&x, &label) else { panic!("both are dense") };
        let (from, n) = (at * ROWS / 2, ROWS / 2);
        let x = x.f32()[from * 16..(from + n) * 16].to_vec();
        let label = label.i64()[from..from + n].to_vec();
        let x = Tensor::from_f32(&[n, 16], x).unwrap();
        vec![("x", Value::from(x)), ("label", Tensor::from_i64(&[n, 1], label).unwrap().into())]
    };
    let change = |scope: &mut Scope| {
        scope.get_mut("fc_2.w_0").unwrap().f32_mut().iter_mut().for_each(|w| *w *= -100.0);
    };
    let loss_of = |feeds: &[(&str, Value)], changed: bool| {
        let mut scope = initialised(&model.programs);
        if changed {
            change(&mut scope);
        }
        let mut executor = Executor::new(model.programs.main.clone(), whole(1)).unwrap();
        let feeds: Vec<(&str, &Value)> = feeds.iter().map(|(n, v)| (*n, v)).collect();
        executor.run(&mut scope, &feeds, &[&model.loss]).unwrap()[0].f32()[0]
    };
    let (before, after) = (loss_of(&half(0), false), loss_of(&half(1), true));
    assert!((before - after).abs() > 0.1, "{before} {after}");
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main.clone(), in_pieces(1)).unwrap();
    let (feeds, mut times) = ([("x", &x), ("label", &label)], 0);
    let mut between = |scope: &mut Scope| {
        times += 1;
        change(scope);
    };
    let fetch = [model.loss.as_str()];
    let fetched = executor.run_copying(&mut scope, &feeds, &fetch, 1, &mut between).unwrap();
    let loss = fetched[0].f32()[0];
    assert_eq!(times, 1);
    assert!((loss - (before + after) / 2.0).abs() < 1e-5, "{loss}, {before}, {after}");
}

fn minimized(b: regatta_ir::Builder, loss: &str) -> Programs {
    let optimizer: Optimizer = adam(0.01);
    minimize(&b.finish(), loss, &optimizer, &Backward::default()).unwrap().programs
}

/// Ids of several lengths per example, over a table that all pieces use.
#[test]
fn rows_of_tables_are_added_up() {
    const ROWS: u64 = 1500;
    let mut b = regatta_ops::builder(3);
    let clicks = b.sparse_data("clicks").unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let e = b.embedding(&[&clicks], &Embedding { sparse: true, ..Embedding::new(99, 8) }).unwrap();
    let e = b.reshape(&e, &[-1, 8]).unwrap();
    let h = b.fc(&e, 900, Act::Relu).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let programs = minimized(b, &loss);
    let rng = Rng::new(1, 9);
    let batches: Vec<Vec<(&str, Value)>> = (0..4u64)
        .map(|step| {
            let (mut ids, mut offsets) = (Vec::new(), vec![0u32]);
            for row in 0..ROWS {
                ids.extend((0..row % 4).map(|i| rng.u64(step << 20 | row << 3 | i) % 99));
                offsets.push(ids.len() as u32);
            }
            let labels = (0..ROWS).map(|r| (rng.u64(step << 30 | r) % 2) as i64).collect();
            let clicks = Ragged::new(regatta_tensor::Data::U64(ids), offsets).unwrap();
            let label = Tensor::from_i64(&[ROWS as usize, 1], labels).unwrap();
            vec![("clicks", clicks.into()), ("label", label.into())]
        })
        .collect();
    let a = train(&programs, whole(1), &batches, &[&loss]);
    let b = train(&programs, in_pieces(1), &batches, &[&loss]);
    assert!(b.memory.bytes < a.memory.bytes, "{:?} {:?}", a.memory, b.memory);
    for name in a.scope.names().iter().filter(|name| name.ends_with("_0")) {
        assert_close(a.scope.get(name).unwrap(), b.scope.get(name).unwrap(), 1e-4, name);
    }
}

/// Random numbers follow from the place of an example in the batch.
#[test]
fn dropout_drops_the_same() {
    let mut b = regatta_ops::builder(3);
    let x = b.data("x", DType::F32, &[-1, 16]).unwrap();
    let h = b.fc(&x, 1000, Act::Relu).unwrap();
    let h = b.dropout(&h, 0.5, 7).unwrap();
    let y = b.fc(&h, 900, Act::Relu).unwrap();
    let loss = b.mean(&y).unwrap().name().to_string();
    let (h, programs) = (h.name().to_string(), minimized(b, &loss));
    let batches: Vec<_> =
        dense_batches(&[1024]).into_iter().map(|b| b.into_iter().take(1).collect()).collect();
    let a = train(&programs, whole(1), &batches, &[&h]);
    let b = train(&programs, in_pieces(1), &batches, &[&h]);
    assert!(b.memory.bytes < a.memory.bytes, "{:?} {:?}", a.memory, b.memory);
    assert_eq!(a.fetched, b.fetched);
}

/// Statistics of the batch are those of the whole batch, so it is not cut: the same bits.
#[test]
fn what_needs_the_whole_batch_gets_it() {
    let mut b = regatta_ops::builder(3);
    let x = b.data("x", DType::F32, &[-1, 16]).unwrap();
    let h = b.fc(&x, 1000, Act::None).unwrap();
    let h = b.batch_norm(&h, 0.9, 1e-5).unwrap();
    let y = b.fc(&h, 900, Act::Relu).unwrap();
    let loss = b.mean(&y).unwrap().name().to_string();
    let programs = minimized(b, &loss);
    let batches: Vec<_> =
        dense_batches(&[1024; 2]).into_iter().map(|b| b.into_iter().take(1).collect()).collect();
    let a = train(&programs, whole(1), &batches, &[&loss]);
    let b = train(&programs, in_pieces(1), &batches, &[&loss]);
    assert_eq!(a.fetched, b.fetched);
    assert_eq!(a.memory, b.memory);
}
