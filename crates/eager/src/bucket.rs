//! Gradients that travel together, as one list of floats or as rows of a table.

use std::sync::Arc;

use regatta_ops::comm::{Exchange, Reply, Wire, encode_rows, merge_rows};
use regatta_tensor::{DType, Data, RowIndex, RowSparse};

use crate::global::lock;
use crate::grad::Kept;
use crate::{Error, Result, Room, Tensor};

/// A parameter that all ranks train.
#[derive(Debug, Clone)]
pub struct Replica {
    /// Its name, for messages.
    pub name: String,
    /// It.
    pub tensor: Tensor,
    /// Whether its gradient travels as rows: that of a large table of which few rows are used.
    pub by_rows: bool,
}

/// Parameters whose gradients travel together.
pub(crate) struct Bucket {
    /// What all ranks call the exchange.
    pub(crate) name: Arc<str>,
    /// Positions among all parameters.
    pub(crate) members: Vec<usize>,
    by_rows: bool,
    /// Whether ranks say which of the gradients they have.
    flags: bool,
}

/// Divides parameters into buckets, in the order in which their gradients will be complete: the
/// last parameters first. The bucket of the first parameters, which is complete last and which
/// nothing is left to hide, has `last_bytes`; the others have `bytes`. A table is alone.
pub(crate) fn divide(
    params: &[Replica],
    name: &str,
    bytes: usize,
    last_bytes: usize,
    flags: bool,
) -> Vec<Bucket> {
    let mut groups: Vec<(bool, Vec<usize>)> = Vec::new();
    let (mut open, mut size, mut limit) = (None, 0, last_bytes);
    for (at, param) in params.iter().enumerate() {
        if param.by_rows {
            groups.push((true, vec![at]));
            continue;
        }
        let n = 4 * param.tensor.numel();
        match open {
            Some(group) if size + n <= limit => {
                let (_, members): &mut (bool, Vec<usize>) = &mut groups[group];
                members.push(at);
                size += n;
            }
            _ => {
                if open.is_some() {
                    limit = bytes;
                }
                open = Some(groups.len());
                size = n;
                groups.push((false, vec![at]));
            }
        }
    }
    let named = |(i, (by_rows, members)): (usize, (bool, Vec<usize>))| {
        // The name is compared between ranks and shown in messages: it begins with a parameter.
        let more = match members.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let name = format!("{name}.{i}: {}{more}", params[members[0]].name).into();
        Bucket { name, members, by_rows, flags }
    };
    groups.into_iter().rev().enumerate().map(named).collect()
}

impl Bucket {
    /// What this rank gives. `values` is a buffer that was used before.
    pub(crate) fn collect(&self, params: &[Replica], mut values: Vec<f32>) -> Result<Exchange> {
        if self.by_rows {
            return rows_of(&params[self.members[0]].tensor).map(Exchange::gather);
        }
        values.clear();
        let mut present = Vec::with_capacity(self.members.len());
        for &at in &self.members {
            let has = append(&params[at].tensor, &mut values)?;
            present.push(if has { 1.0 } else { 0.0 });
        }
        if self.flags {
            values.extend(present);
        }
        Ok(Exchange::AllReduce { values, wire: Wire::F32, node_ranks: 0 })
    }

    /// Replaces the gradients of this rank by the means of all. Returns the buffer.
    pub(crate) fn apply(
        &self,
        params: &[Replica],
        arrived: &[bool],
        reply: Reply,
        ranks: usize,
    ) -> Result<Vec<f32>> {
        match reply {
            Reply::Gathered(parts) => {
                let param = &params[self.members[0]].tensor;
                if let Some(rows) = mean_rows(param, parts, ranks)? {
                    param.set_grad(Some(&Tensor::rows(rows)))?;
                }
                Ok(Vec::new())
            }
            Reply::Floats(values) => {
                let mut rest = &values[..];
                let total: usize = self.members.iter().map(|at| params[*at].tensor.numel()).sum();
                let present = &values[total..];
                for (i, &at) in self.members.iter().enumerate() {
                    let tensor = &params[at].tensor;
                    let (sums, later) = rest.split_at(tensor.numel());
                    rest = later;
                    if if self.flags { present[i] > 0.0 } else { arrived[at] } {
                        tensor.set_grad(Some(&mean(tensor, sums, ranks)?))?;
                    }
                }
                Ok(values)
            }
        }
    }
}

/// Appends the gradient of a tensor, or zeros. Returns whether there is one.
fn append(tensor: &Tensor, values: &mut Vec<f32>) -> Result<bool> {
    if !tensor.has_grad() || is_zero(tensor) {
        values.resize(values.len() + tensor.numel(), 0.0);
        return Ok(tensor.has_grad());
    }
    let gradient = tensor.grad().expect("it was just seen");
    if let Some(rows) = gradient.to_rows() {
        values.extend(rows.to_dense());
        return Ok(true);
    }
    let gradient = match gradient.dtype() {
        DType::F32 => gradient,
        _ => gradient.op("cast", &[("dtype", DType::F32.to_string().into())])?,
    };
    gradient.with_data(|data, range| {
        if let Data::F32(floats) = data {
            values.extend_from_slice(&floats[range]);
        }
    });
    Ok(true)
}

/// Whether the gradient is zero without having been computed.
fn is_zero(tensor: &Tensor) -> bool {
    matches!(*lock(&tensor.leaf().kept), Kept::Zero)
}

/// The gradient of a table as bytes: no bytes if there is none.
fn rows_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let (height, width) = dims(tensor);
    let mut bytes = Vec::new();
    if !tensor.has_grad() {
        return Ok(bytes);
    }
    if is_zero(tensor) {
        encode_rows(&RowSparse { width, height, ..RowSparse::default() }, 0, &mut bytes);
        return Ok(bytes);
    }
    match tensor.grad().expect("it was just seen").to_rows() {
        Some(rows) => encode_rows(&rows, rows.rows.len(), &mut bytes),
        None => {
            let mut values = Vec::with_capacity(height * width);
            append(tensor, &mut values)?;
            let rows = RowSparse { rows: (0..height as u64).collect(), values, width, height };
            encode_rows(&rows, height, &mut bytes);
        }
    }
    Ok(bytes)
}

fn dims(table: &Tensor) -> (usize, usize) {
    let shape = table.shape();
    (shape[0], shape[1])
}

/// The mean of all ranks' rows, in the order of ranks; nothing if no rank has a gradient.
fn mean_rows(table: &Tensor, mut parts: Vec<Vec<u8>>, ranks: usize) -> Result<Option<RowSparse>> {
    if parts.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let (height, width) = dims(table);
    let mut rows = RowSparse { width, height, ..RowSparse::default() };
    for part in parts.iter_mut().filter(|part| part.is_empty()) {
        encode_rows(&rows, 0, part);
    }
    merge_rows(&parts, &mut rows, &mut RowIndex::default())
        .map_err(|e| Error::Mismatch(e.to_string()))?;
    let n = ranks as f32;
    rows.values.iter_mut().for_each(|value| *value /= n);
    Ok(Some(rows))
}

fn mean(like: &Tensor, sums: &[f32], ranks: usize) -> Result<Tensor> {
    let n = ranks as f32;
    let mean = Tensor::filled(DType::F32, &like.shape(), |room| {
        if let Room::F32(to) = room {
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum / n);
        }
    });
    match like.dtype() {
        DType::F32 => Ok(mean),
        half => mean.op("cast", &[("dtype", half.to_string().into())]),
    }
}
