//! Values of the ops that turn sequences and matrices into rows.

use regatta_ir::{Error, Op};
use regatta_ops::StepCtx;
use regatta_ops::interp::{Cell, Env, eval};
use regatta_tensor::{Data, Ragged, Tensor, Value};

fn run(op: Op, x: Value) -> Result<Value, Error> {
    let mut env = Env::new();
    env.insert("x".into(), Cell::Value(x));
    eval(&op.input("X", "x").output("Out", "out"), &mut env, &mut StepCtx::default())?;
    match env.remove("out") {
        Some(Cell::Value(value)) => Ok(value),
        other => panic!("{other:?}"),
    }
}

fn histories() -> Value {
    Ragged::new(Data::U64(vec![7, 8, 1, 2, 3, 4]), vec![0, 2, 2, 6]).unwrap().into()
}

#[test]
fn short_sequences_are_filled_and_long_ones_keep_their_end() {
    let pad = |op: Op| run(op, histories()).unwrap();
    let padded = pad(Op::new("sequence_pad").attr("len", 3));
    let padded = padded.as_dense().unwrap();
    assert_eq!((padded.shape(), padded.u64()), (&[3, 3][..], &[7, 8, 0, 0, 0, 0, 2, 3, 4][..]));
    let padded = pad(Op::new("sequence_pad").attr("len", 1).attr("value", 9));
    assert_eq!(padded.as_dense().unwrap().u64(), [8, 9, 4]);
}

#[test]
fn padding_to_nothing_is_refused() {
    let e = run(Op::new("sequence_pad").attr("len", 0), histories()).unwrap_err().to_string();
    assert!(e.contains("is 0, but should be at least 1"), "{e}");
    let dense = Tensor::from_u64(&[1, 1], vec![1]).unwrap();
    let e = run(Op::new("sequence_pad").attr("len", 2), dense.into()).unwrap_err().to_string();
    assert!(e.contains("ragged u64[batch]"), "{e}");
}

#[test]
fn every_pair_once() {
    let x = Tensor::from_f32(&[2, 3, 3], (0..18).map(|i| i as f32).collect()).unwrap();
    let pairs = run(Op::new("lower_triangle"), x.into()).unwrap();
    let pairs = pairs.as_dense().unwrap();
    assert_eq!((pairs.shape(), pairs.f32()), (&[2, 3][..], &[3.0, 6.0, 7.0, 12.0, 15.0, 16.0][..]));
    let flat = Tensor::from_f32(&[2, 3], vec![0.0; 6]).unwrap();
    assert!(run(Op::new("lower_triangle"), flat.into()).is_err());
}
