//! Parquet files of a model, read back by another reader than the writer's code.
#![cfg(feature = "parquet")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use regatta_checkpoint::save_inference_model;
use regatta_ir::{Act, Embedding};
use regatta_predict::files::{Format, convert};
use regatta_tensor::{DType, Tensor};

/// Rows above the size of a group, so that there are two of them.
const ROWS: usize = 70_000;
const DIM: usize = 3;

fn read(path: &Path) -> Vec<(u64, Vec<f32>)> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| {
        let row = row.unwrap();
        let list = row.get_list(1).unwrap();
        let values = list.elements().iter().map(|x| match x {
            parquet::record::Field::Float(x) => *x,
            other => panic!("{other:?}"),
        });
        (row.get_ulong(0).unwrap(), values.collect())
    });
    rows.collect()
}

#[test]
fn parameters_are_files_of_ids_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let mut b = regatta_ops::builder(1);
    let ids = b.data("ids", DType::U64, &[-1, 1]).unwrap();
    let table = Embedding::new(ROWS as i64, DIM as i64);
    let embedded = b.embedding(&[&ids], &table).unwrap();
    let flat = b.reshape(&embedded, &[-1, DIM as i64]).unwrap();
    let y = b.fc(&flat, 2, Act::None).unwrap();
    let program = regatta_passes::prune(&b.finish().main, &[y.name()]).unwrap();
    let mut values = BTreeMap::new();
    for var in program.persistables() {
        let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d as usize).collect();
        let n: usize = shape.iter().product();
        let drawn = (0..n).map(|i| (i as f32).sin()).collect();
        values.insert(var.name.clone(), Tensor::from_f32(&shape, drawn).unwrap());
    }
    let (model, to) = (dir.path().join("model"), dir.path().join("parquet"));
    save_inference_model(&model, &program, &["ids"], &[y.name()], |name| values.get(name)).unwrap();
    let written = convert(&model, &to, Format::Parquet).unwrap();
    assert_eq!(written.len(), values.len());
    for (name, tensor) in &values {
        let rows = read(&to.join(format!("{name}.parquet")));
        let width = tensor.numel() / tensor.shape()[0];
        let expected = tensor.f32().chunks_exact(width).enumerate();
        assert!(
            rows.iter().map(|(id, row)| (*id, &row[..])).eq(expected.map(|(i, r)| (i as u64, r))),
            "{name}"
        );
    }
    let damaged = to.join("damaged.parquet");
    let name = values.keys().next().unwrap();
    let bytes = std::fs::read(to.join(format!("{name}.parquet"))).unwrap();
    std::fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    assert!(SerializedFileReader::new(File::open(&damaged).unwrap()).is_err());
}
