//! Ops that are joined compute the same bits as one after the other.

mod common;

use common::{adam, initialised};
use regatta_exec::{Executor, Options};
use regatta_ir::{Act, Embedding, Programs};
use regatta_passes::{Backward, minimize};
use regatta_tensor::{DType, Data, Ragged, Rng, Tensor, Value};

const SLOTS: usize = 3;
const DIM: usize = 5;

/// Vectors of dense and ragged ids beside dense features, through three layers.
fn click_model() -> (Programs, String) {
    let mut b = regatta_ops::builder(3);
    let ids = b.data("ids", DType::U64, &[-1, SLOTS as i64]).unwrap();
    let clicks = b.sparse_data("clicks").unwrap();
    let dense = b.data("dense", DType::F32, &[-1, 4]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let table = Embedding::new(40, DIM as i64);
    let vectors = b.embedding(&[&ids, &clicks], &table).unwrap();
    let flat = b.reshape(&vectors, &[-1, ((SLOTS + 1) * DIM) as i64]).unwrap();
    let mut h = b.concat(&[&flat, &dense], 1).unwrap();
    for width in [19, 16, 24] {
        h = b.fc(&h, width, Act::Relu).unwrap();
    }
    let logits = b.fc(&h, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let programs = minimize(&b.finish(), &loss, &adam(0.01), &Backward::default()).unwrap();
    (programs.programs, loss)
}

fn batch(rows: usize, seed: u64) -> [(&'static str, Value); 4] {
    let rng = Rng::new(seed, 1);
    let ids: Vec<u64> = (0..(rows * SLOTS) as u64).map(|i| rng.u64(i) % 40).collect();
    let lens: Vec<u32> = (0..rows as u64).map(|i| (rng.u64(5000 + i) % 4) as u32).collect();
    let offsets: Vec<u32> = std::iter::once(0)
        .chain(lens.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }))
        .collect();
    let clicks = (0..lens.iter().sum::<u32>()).map(|i| rng.u64(9000 + u64::from(i)) % 40).collect();
    let dense = (0..4 * rows as u64).map(|i| rng.unit_f32(7000 + i) - 0.5).collect();
    let labels = ids.chunks(SLOTS).map(|ids| (ids[0] % 2) as i64).collect();
    [
        ("ids", Tensor::from_u64(&[rows, SLOTS], ids).unwrap().into()),
        ("clicks", Ragged::new(Data::U64(clicks), offsets).unwrap().into()),
        ("dense", Tensor::from_f32(&[rows, 4], dense).unwrap().into()),
        ("label", Tensor::from_i64(&[rows, 1], labels).unwrap().into()),
    ]
}

fn losses(options: Options) -> Vec<f32> {
    let (programs, loss) = click_model();
    let mut scope = initialised(&programs);
    let mut executor = Executor::new(programs.main, options).unwrap();
    let mut losses = Vec::new();
    for step in 0..30 {
        let batch = batch(37, step % 5);
        let feeds: Vec<(&str, &Value)> = batch.iter().map(|(name, v)| (*name, v)).collect();
        losses.push(executor.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0]);
    }
    losses
}

#[test]
fn joined_ops_change_no_bit() {
    for threads in [1, 3] {
        let options = Options { threads, ..Options::default() };
        let joined = losses(options.clone());
        // Every variable is looked at there, so every op runs by itself.
        let apart = losses(Options { check_nan_inf: true, ..options });
        assert_eq!(joined, apart, "{threads} threads");
        assert!(joined[29] < 0.7 * joined[0], "{joined:?}");
    }
}
