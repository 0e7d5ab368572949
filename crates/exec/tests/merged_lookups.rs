//! Lookups of one table that are written one by one train as those of one op.

mod common;

use common::{adam, initialised};
use regatta_exec::{Executor, Options, Scope};
use regatta_ir::{Act, Builder, Embedding, ParamAttr, Programs, Var};
use regatta_passes::{Backward, backward, insert_updates, minimize};
use regatta_tensor::{DType, Rng, Tensor, Value};

const SLOTS: usize = 7;
const DIM: i64 = 3;
const ROWS: i64 = 30;
const LOSS: &str = "mean_0.tmp_0";

/// How the lookups are written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// One op for all inputs.
    Together,
    /// One for each, flattened and joined.
    OneByOne,
    /// As before, and a product of two of them, one of which is used only there.
    WithProducts,
}

fn vectors(b: &mut Builder, form: Form) -> Vec<Var> {
    let slots: Vec<Var> =
        (0..SLOTS).map(|i| b.data(&format!("s{i}"), DType::I64, &[-1, 1]).unwrap()).collect();
    let spec = Embedding {
        padding_idx: Some(0),
        table: ParamAttr::weight().named("table"),
        ..Embedding::new(ROWS, DIM)
    };
    if form == Form::Together {
        let all: Vec<&Var> = slots.iter().collect();
        let vectors = b.embedding(&all, &spec).unwrap();
        return vec![b.reshape(&vectors, &[-1, SLOTS as i64 * DIM]).unwrap()];
    }
    let flat = slots.iter().map(|ids| {
        let vector = b.embedding(&[ids], &spec).unwrap();
        b.reshape(&vector, &[-1, DIM]).unwrap()
    });
    let mut flat: Vec<Var> = flat.collect();
    if form == Form::WithProducts {
        let last = flat.pop().unwrap();
        flat.push(b.elementwise_mul(&flat[2], &last).unwrap());
    }
    flat
}

fn forward(form: Form) -> Programs {
    let mut b = regatta_ops::builder(3);
    let vectors = vectors(&mut b, form);
    let dense = b.data("dense", DType::F32, &[-1, 4]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let all: Vec<&Var> = vectors.iter().chain([&dense]).collect();
    let x = b.concat(&all, 1).unwrap();
    let h = b.fc(&x, 16, Act::Relu).unwrap();
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    assert_eq!(b.mean(&cost).unwrap().name(), LOSS);
    b.finish()
}

fn batch(rows: usize, seed: u64) -> Vec<(String, Value)> {
    let rng = Rng::new(seed, 1);
    let id = |slot: usize, row: usize| (rng.u64((slot * rows + row) as u64) % ROWS as u64) as i64;
    let mut batch: Vec<(String, Value)> = (0..SLOTS)
        .map(|slot| {
            let ids = (0..rows).map(|row| id(slot, row)).collect();
            (format!("s{slot}"), Tensor::from_i64(&[rows, 1], ids).unwrap().into())
        })
        .collect();
    let dense = (0..4 * rows as u64).map(|i| rng.unit_f32(7000 + i) - 0.5).collect();
    batch.push(("dense".into(), Tensor::from_f32(&[rows, 4], dense).unwrap().into()));
    let labels = (0..rows).map(|row| id(0, row) % 2).collect();
    batch.push(("label".into(), Tensor::from_i64(&[rows, 1], labels).unwrap().into()));
    batch
}

/// Losses of 25 steps, and the parameters.
fn train(programs: &Programs, threads: usize) -> (Vec<f32>, Scope) {
    let mut scope = initialised(programs);
    let options = Options { threads, ..Options::default() };
    let mut executor = Executor::new(programs.main.clone(), options).unwrap();
    let losses = (0..25).map(|step| {
        let batch = batch(19, step % 5);
        let feeds: Vec<(&str, &Value)> = batch.iter().map(|(name, v)| (name.as_str(), v)).collect();
        executor.run(&mut scope, &feeds, &[LOSS]).unwrap()[0].f32()[0]
    });
    (losses.collect(), scope)
}

fn minimized(form: Form) -> Programs {
    minimize(&forward(form), LOSS, &adam(0.01), &Backward::default()).unwrap().programs
}

/// The same training without merged lookups.
fn unmerged(form: Form) -> Programs {
    let mut programs = forward(form);
    let (main, grads) = backward(&programs.main, LOSS, &Backward::default()).unwrap();
    programs.main = main;
    let adam = adam(0.01);
    insert_updates(&programs, &grads, &adam.rule, 0.01, &adam.schedule).unwrap().0
}

#[test]
fn one_by_one_is_together_to_the_bit() {
    for threads in [1, 3] {
        let (together, one) = train(&minimized(Form::Together), threads);
        let (one_by_one, other) = train(&minimized(Form::OneByOne), threads);
        assert_eq!(together, one_by_one, "{threads} threads");
        assert_eq!(one.get("table"), other.get("table"), "{threads} threads");
        assert!(together[24] < together[0], "{together:?}");
    }
}

#[test]
fn merged_lookups_train_as_single_ones() {
    for form in [Form::OneByOne, Form::WithProducts] {
        let (merged, one) = train(&minimized(form), 1);
        let (single, other) = train(&unmerged(form), 1);
        let count = |programs: Programs| {
            programs.main.block().ops.iter().filter(|op| op.kind == "embedding").count()
        };
        assert_eq!((count(minimized(form)) < SLOTS, count(unmerged(form))), (true, SLOTS));
        for (step, (a, b)) in merged.iter().zip(&single).enumerate() {
            assert!((a - b).abs() < 1e-5, "step {step}: {a} and {b}");
        }
        let (a, b) = (one.get("table").unwrap().f32(), other.get("table").unwrap().f32());
        a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{a} and {b}"));
    }
}

#[test]
fn single_lookups_can_still_be_fetched() {
    let programs = minimized(Form::OneByOne);
    let mut scope = initialised(&programs);
    let mut executor = Executor::new(programs.main.clone(), Options::default()).unwrap();
    let batch = batch(5, 1);
    let feeds: Vec<(&str, &Value)> = batch.iter().map(|(name, v)| (name.as_str(), v)).collect();
    executor.run(&mut scope, &feeds, &[LOSS]).unwrap();
    let table = scope.get("table").unwrap().f32().to_vec();
    let fetched = executor.run(&mut scope, &feeds, &["reshape_4.tmp_0", "embedding_4.tmp_0"]);
    let fetched = fetched.unwrap().to_vec();
    assert_eq!((fetched[0].shape(), fetched[1].shape()), (&[5, 3][..], &[5, 1, 3][..]));
    assert_eq!(fetched[0].f32(), fetched[1].f32());
    let ids = batch[4].1.as_dense().unwrap().i64();
    for (&id, vector) in ids.iter().zip(fetched[0].f32().chunks(3)) {
        let row = &table[id as usize * 3..id as usize * 3 + 3];
        assert_eq!(vector, if id == 0 { &[0.0; 3][..] } else { row }, "id {id}");
    }
}
