//! What several tests need.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};

use regatta_data::{Batch, Batches, Dataset, Error, Schema, Slot};
use regatta_tensor::Value;

/// A label and any number of ids.
pub(crate) fn schema() -> Schema {
    Schema::new(vec![Slot::label("y"), Slot::ids("a")]).unwrap()
}

/// MultiSlot lines of that schema with labels `range`; the ids are the label, 1 to 3 times.
pub(crate) fn lines(range: std::ops::Range<usize>) -> String {
    let line = |i: usize| format!("1 {i} {}{}\n", 1 + i % 3, format!(" {i}").repeat(1 + i % 3));
    range.map(line).collect()
}

pub(crate) fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Files with the records `0..n`, `sizes[i]` in the i-th.
pub(crate) fn files(dir: &Path, sizes: &[usize]) -> Vec<PathBuf> {
    let mut start = 0;
    let file = |(i, n): (usize, &usize)| {
        let text = lines(start..start + n);
        start += n;
        write(dir, &format!("part-{i}"), text)
    };
    sizes.iter().enumerate().map(file).collect()
}

/// The labels of a batch of [`schema`], after checking the ids.
pub(crate) fn labels(batch: &Batch) -> Vec<i64> {
    let labels = batch.get("y").unwrap().as_dense().unwrap().i64().to_vec();
    let Some(Value::Ragged(ids)) = batch.get("a") else { panic!("ids are ragged") };
    for (row, label) in labels.iter().enumerate() {
        let ids = &ids.u64()[ids.offsets()[row] as usize..ids.offsets()[row + 1] as usize];
        assert_eq!(ids, vec![*label as u64; 1 + *label as usize % 3]);
    }
    labels
}

/// The labels of all batches.
pub(crate) fn drain(mut batches: Batches) -> Result<Vec<Vec<i64>>, Error> {
    let mut all = Vec::new();
    while let Some(batch) = batches.next()? {
        all.push(labels(&batch));
        batches.recycle(batch);
    }
    Ok(all)
}

pub(crate) fn read(dataset: &dyn Dataset) -> Result<Vec<Vec<i64>>, Error> {
    drain(dataset.pass(0)?)
}

pub(crate) fn sorted(batches: &[Vec<i64>]) -> Vec<i64> {
    let mut all = batches.concat();
    all.sort();
    all
}
