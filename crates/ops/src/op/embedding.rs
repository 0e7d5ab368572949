//! `embedding`: rows of a table by id, for one or many inputs at once; its gradient names only the
//! rows that the batch touched.

use regatta_ir::schema::{AttrKind, many, one};
use regatta_ir::{Error, Layout, Op, Schema, VarType};
use regatta_tensor::{DType, Data, Ragged, RowIndex, Tensor};

use crate::def::{no_samples, per_example, spread};
use crate::{Grad, Infer, Io, Kernel, KernelError, OpDef, Sample, Spec};

const ATTRS: &[regatta_ir::schema::AttrDef] = &[
    ("pool", AttrKind::Str("sum")),
    ("padding_idx", AttrKind::Int(-1)),
    ("is_sparse", AttrKind::Bool(true)),
    ("hash", AttrKind::Bool(false)),
];

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "embedding",
            inputs: &[one("W"), many("Ids")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer,
        grad: Grad::Rule(|g| {
            let (Some(dw), Some(dout)) = (g.din("W"), g.dout("Out")) else { return Ok(vec![]) };
            let ids = g.op.ins("Ids").iter().map(String::as_str);
            Ok(vec![
                g.grad_op()
                    .input("W", &g.op.ins("W")[0])
                    .input("dOut", &dout)
                    .inputs("Ids", ids)
                    .output("dW", &dw),
            ])
        }),
        kernel: forward,
        batch: per_example,
        samples,
    },
    OpDef {
        schema: Schema {
            kind: "embedding_grad",
            inputs: &[one("W"), one("dOut"), many("Ids")],
            outputs: &[one("dW")],
            attrs: ATTRS,
        },
        infer: |i| {
            let w = i.ty("W");
            Ok(vec![if i.op.bool("is_sparse")? { w.rows() } else { w.clone() }])
        },
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: backward,
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let w = i.floats_of_rank("W", 2)?;
    pool(i.op)?;
    let mut batch = -1;
    let mut vectors = 0;
    for (ty, name) in i.many("Ids").iter().zip(i.op.ins("Ids")) {
        let (rows, n) = match (ty.layout, ty.shape.as_slice()) {
            (Layout::Ragged, [rows]) => (*rows, 1),
            (Layout::Dense, [rows]) => (*rows, 1),
            (Layout::Dense, [rows, n]) if *n > 0 => (*rows, *n),
            _ => return Err(wrong_ids(i.op, name, ty)),
        };
        if ty.dtype != DType::U64 || (batch != -1 && rows != -1 && rows != batch) {
            return Err(wrong_ids(i.op, name, ty));
        }
        batch = batch.max(rows);
        vectors += n;
    }
    Ok(vec![VarType::f32([batch, vectors, w.shape[1]])])
}

fn wrong_ids(op: &Op, name: &str, ty: &VarType) -> Error {
    Error::Type {
        op: op.kind.clone(),
        slot: "Ids".into(),
        var: name.to_string(),
        expected: "u64[batch, n] or ragged u64[batch], the same batch for all".into(),
        actual: ty.to_string(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Pool {
    Sum,
    Mean,
    Max,
    Sqrtn,
}

fn pool(op: &Op) -> Result<Pool, Error> {
    Ok(match op.str("pool")? {
        "sum" => Pool::Sum,
        "mean" => Pool::Mean,
        "max" => Pool::Max,
        "sqrtn" => Pool::Sqrtn,
        other => {
            return Err(Error::Attr {
                op: op.kind.clone(),
                attr: "pool".into(),
                reason: format!("is '{other}', but should be sum, mean, max or sqrtn"),
            });
        }
    })
}

/// What both directions need to know.
#[derive(Clone)]
struct Lookup {
    height: usize,
    dim: usize,
    /// Vectors per example over all inputs.
    vectors: usize,
    /// Each input: position among the op's inputs, first vector, vectors per example.
    inputs: Vec<(usize, usize, usize)>,
    pool: Pool,
    padding: Option<u64>,
    hash: bool,
    names: Vec<String>,
}

impl Lookup {
    fn new(s: &Spec<'_>) -> Result<Lookup, Error> {
        let w = s.at("W").expect("the schema was checked");
        let (height, dim) = s.matrix(w);
        let first = s.at("Ids").expect("the schema was checked");
        let mut vectors = 0;
        let inputs = (first..first + s.op.ins("Ids").len())
            .map(|i| {
                let n = s.ins[i].shape.get(1).map_or(1, |&n| n as usize);
                vectors += n;
                (i, vectors - n, n)
            })
            .collect();
        let padding = u64::try_from(s.op.int("padding_idx")?).ok();
        let names = s.op.ins("Ids").to_vec();
        let (pool, hash) = (pool(s.op)?, s.op.bool("hash")?);
        Ok(Lookup { height, dim, vectors, inputs, pool, padding, hash, names })
    }

    /// The row of an id; nothing for the padding id.
    #[inline]
    fn row(&self, id: u64, input: usize) -> Result<Option<usize>, KernelError> {
        if self.padding == Some(id) {
            return Ok(None);
        }
        if id < self.height as u64 {
            return Ok(Some(id as usize));
        }
        if self.hash {
            return Ok(Some((id % self.height as u64) as usize));
        }
        let first = self.inputs[0].0;
        Err(KernelError(format!(
            "id {id} of '{}' is beyond the table of {} rows",
            self.names[input - first],
            self.height
        )))
    }

    /// Factor on each vector of a pooled slot with `n` ids (padding not counted).
    fn factor(&self, n: usize) -> f32 {
        match self.pool {
            Pool::Sum | Pool::Max => 1.0,
            Pool::Mean => 1.0 / n.max(1) as f32,
            Pool::Sqrtn => 1.0 / (n.max(1) as f32).sqrt(),
        }
    }

    fn count(&self, ids: &[u64]) -> usize {
        ids.iter().filter(|&&id| self.padding != Some(id)).count()
    }
}

fn forward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let lookup = Lookup::new(s)?;
    let w = s.at("W").expect("the schema was checked");
    Ok(Box::new(move |io, _| {
        let table = io.f32(w);
        let out = io.out_f32(0);
        for &(input, at, n) in &lookup.inputs {
            if io.is_ragged(input) {
                pool_rows(&lookup, io, input, at, table, out)?;
            } else {
                copy_rows(&lookup, io.u64(input), input, at, n, table, out)?;
            }
        }
        Ok(())
    }))
}

fn copy_rows(
    lookup: &Lookup,
    ids: &[u64],
    input: usize,
    at: usize,
    n: usize,
    table: &[f32],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let dim = lookup.dim;
    for (example, ids) in ids.chunks_exact(n).enumerate() {
        for (i, &id) in ids.iter().enumerate() {
            let to = (example * lookup.vectors + at + i) * dim;
            match lookup.row(id, input)? {
                Some(row) => {
                    out[to..to + dim].copy_from_slice(&table[row * dim..(row + 1) * dim]);
                }
                None => out[to..to + dim].fill(0.0),
            }
        }
    }
    Ok(())
}

fn pool_rows(
    lookup: &Lookup,
    io: &Io<'_>,
    input: usize,
    at: usize,
    table: &[f32],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let dim = lookup.dim;
    let (values, offsets) = io.ragged_u64(input);
    for (example, range) in offsets.windows(2).enumerate() {
        let ids = &values[range[0] as usize..range[1] as usize];
        let to = (example * lookup.vectors + at) * dim;
        let out = &mut out[to..to + dim];
        out.fill(0.0);
        let mut first = true;
        for &id in ids {
            let Some(row) = lookup.row(id, input)? else { continue };
            let vector = &table[row * dim..(row + 1) * dim];
            if lookup.pool == Pool::Max && !first {
                out.iter_mut().zip(vector).for_each(|(o, v)| *o = o.max(*v));
            } else {
                out.iter_mut().zip(vector).for_each(|(o, v)| *o += v);
            }
            first = false;
        }
        if matches!(lookup.pool, Pool::Mean | Pool::Sqrtn) {
            let factor = lookup.factor(lookup.count(ids));
            out.iter_mut().for_each(|o| *o *= factor);
        }
    }
    Ok(())
}

fn backward(s: &Spec<'_>) -> Result<Kernel, Error> {
    let lookup = Lookup::new(s)?;
    let (w, dout) = (0, 1);
    let sparse = s.op.bool("is_sparse")?;
    let mut index = RowIndex::default();
    Ok(Box::new(move |io, _| {
        let (table, d) = (io.f32(w), io.f32(dout));
        if sparse {
            let dw = io.out_rows(0);
            dw.clear();
            (dw.width, dw.height) = (lookup.dim, lookup.height);
            let total = lookup.inputs.iter().map(|&(i, ..)| id_count(io, i)).sum();
            index.clear(total);
            scatter(&lookup, io, table, d, |row, factor, d, mask| {
                let (at, new) = index.insert(row as u64);
                if new {
                    dw.rows.push(row as u64);
                    dw.values.resize(dw.values.len() + d.len(), 0.0);
                }
                add(&mut dw.values[at * d.len()..(at + 1) * d.len()], factor, d, mask);
            })
        } else {
            let dw = io.out_f32(0);
            dw.fill(0.0);
            scatter(&lookup, io, table, d, |row, factor, d, mask| {
                add(&mut dw[row * d.len()..(row + 1) * d.len()], factor, d, mask);
            })
        }
    }))
}

fn id_count(io: &Io<'_>, input: usize) -> usize {
    if io.is_ragged(input) {
        let (_, offsets) = io.ragged_u64(input);
        (offsets[offsets.len() - 1] - offsets[0]) as usize
    } else {
        io.u64(input).len()
    }
}

/// The ids of one pooled slot and the table they point into: who was the largest, per dimension.
type Mask<'a> = Option<(&'a [f32], &'a dyn Fn(usize) -> f32)>;

fn add(sums: &mut [f32], factor: f32, d: &[f32], mask: Mask<'_>) {
    match mask {
        None => sums.iter_mut().zip(d).for_each(|(s, d)| *s += factor * d),
        Some((vector, max)) => {
            for (i, (s, d)) in sums.iter_mut().zip(d).enumerate() {
                if vector[i] == max(i) {
                    *s += d;
                }
            }
        }
    }
}

/// Calls `add(row, factor, dout, mask)` for every id that is not padding.
fn scatter(
    lookup: &Lookup,
    io: &Io<'_>,
    table: &[f32],
    d: &[f32],
    mut add: impl FnMut(usize, f32, &[f32], Mask<'_>),
) -> Result<(), KernelError> {
    let dim = lookup.dim;
    let gradient = |example: usize, vector: usize| {
        let at = (example * lookup.vectors + vector) * dim;
        &d[at..at + dim]
    };
    for &(input, at, n) in &lookup.inputs {
        if !io.is_ragged(input) {
            for (i, &id) in io.u64(input).iter().enumerate() {
                if let Some(row) = lookup.row(id, input)? {
                    add(row, 1.0, gradient(i / n, at + i % n), None);
                }
            }
            continue;
        }
        let (values, offsets) = io.ragged_u64(input);
        for (example, range) in offsets.windows(2).enumerate() {
            let ids = &values[range[0] as usize..range[1] as usize];
            let factor = lookup.factor(lookup.count(ids));
            let d = gradient(example, at);
            let max = |i: usize| {
                let rows = ids.iter().filter_map(|&id| lookup.row(id, input).ok().flatten());
                rows.map(|row| table[row * dim + i]).fold(f32::NEG_INFINITY, f32::max)
            };
            for &id in ids {
                let Some(row) = lookup.row(id, input)? else { continue };
                let vector = &table[row * dim..(row + 1) * dim];
                let mask: Mask<'_> =
                    if lookup.pool == Pool::Max { Some((vector, &max)) } else { None };
                add(row, factor, d, mask);
            }
        }
    }
    Ok(())
}

fn samples() -> Vec<Sample> {
    let dense = || Tensor::from_u64(&[3, 2], vec![1, 3, 3, 0, 4, 1]).expect("lengths agree");
    let ragged =
        || Ragged::new(Data::U64(vec![4, 2, 0, 2, 1]), vec![0, 2, 2, 5]).expect("offsets rise");
    let sample = |name, inputs: Vec<regatta_tensor::Value>| Sample {
        name,
        inputs: vec![("W", vec![spread(&[5, 3], -1.0, 1.0)]), ("Ids", inputs)],
        ..Sample::default()
    };
    let mut all = vec![
        sample("dense ids", vec![dense().into()]),
        sample("dense gradient", vec![dense().into()]).attr("is_sparse", false),
        sample("padding", vec![dense().into(), ragged().into()]).attr("padding_idx", 3),
        sample("two inputs", vec![dense().into(), ragged().into()]),
    ];
    for pool in ["mean", "max", "sqrtn"] {
        all.push(sample("pooled", vec![ragged().into()]).attr("pool", pool));
    }
    all
}
