//! `embedding`: rows of a table by id, for one or many inputs at once; its gradient names only the
//! rows that the batch touched.
//!
//! One dense input of shape `[d0, .., dk]` gives `[d0, .., dk, dim]`. Several inputs, ragged ones
//! and a single `u64[batch]` give `[batch, vectors, dim]`: a vector for each id of a dense input
//! `[batch]` or `[batch, n]`, a pooled one for each ragged input. Ids are u64, or i64 that are not
//! negative. The padding id gives zeros and takes no gradient; -1 says that there is none.

use regatta_ir::schema::{AttrKind, any, many, one};
use regatta_ir::{Error, Layout, Op, Schema, VarType};
use regatta_kernels::prefetch_row;
use regatta_kernels::rows::{add_floats, copy_floats};
use regatta_tensor::{DType, Data, Ragged, RowIndex, RowSparse, Tensor};

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
        kernel: |s| backward(s),
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        // The vectors of an example in one row, and what stands beside them behind it: an
        // embedding, a reshape and a concat without the copies.
        schema: Schema {
            kind: "embedding_row",
            inputs: &[one("W"), many("Ids"), any("Beside")],
            outputs: &[one("Out")],
            attrs: ATTRS,
        },
        infer: infer_row,
        grad: Grad::None("embeddings are joined after gradients are made"),
        kernel: forward,
        batch: per_example,
        samples: no_samples,
    },
    OpDef {
        // The gradient of the table from one of whole rows, whose ends are not looked at.
        schema: Schema {
            kind: "embedding_row_grad",
            inputs: &[one("W"), one("dOut"), many("Ids")],
            outputs: &[one("dW")],
            attrs: ATTRS,
        },
        infer: |i| {
            let w = i.ty("W");
            i.floats_of_rank("dOut", 2)?;
            Ok(vec![if i.op.bool("is_sparse")? { w.rows() } else { w.clone() }])
        },
        grad: Grad::None("gradients of gradients are not needed for training"),
        kernel: |s| backward(s),
        batch: per_example,
        samples: no_samples,
    },
];

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let dim = check_table(i)?;
    if let [ids] = i.many("Ids")
        && ids.layout == Layout::Dense
        && (ids.shape.len() > 2 || ids.dtype == DType::I64)
    {
        // A dimension that is known when the program runs will do where the result has it, too.
        let fits = |d: i64| d > 0 || (d == -2 && ids.dtype == DType::I64);
        let known = ids.shape.get(1..).is_some_and(|rest| rest.iter().all(|&d| fits(d)));
        if !known || !is_id(ids.dtype) {
            return Err(wrong_ids(i.op, &i.op.ins("Ids")[0], ids));
        }
        return Ok(vec![VarType::f32([&ids.shape[..], &[dim]].concat())]);
    }
    let (batch, vectors) = vectors(i)?;
    Ok(vec![VarType::f32([batch, vectors, dim])])
}

/// Floats per row of the table.
fn check_table(i: &Infer<'_>) -> Result<i64, Error> {
    pool(i.op)?;
    let padding = i.op.int("padding_idx")?;
    if padding < -1 {
        let reason = format!("is {padding}, but should be an id, or -1 for none");
        return Err(i.bad_attr("padding_idx", reason));
    }
    Ok(i.floats_of_rank("W", 2)?.shape[1])
}

/// The batch, and the vectors of an example.
fn vectors(i: &Infer<'_>) -> Result<(i64, i64), Error> {
    let mut batch = -1;
    let mut vectors = 0;
    for (ty, name) in i.many("Ids").iter().zip(i.op.ins("Ids")) {
        let (rows, n) = match (ty.layout, ty.shape.as_slice()) {
            (Layout::Ragged, [rows]) if ty.dtype == DType::U64 => (*rows, 1),
            (Layout::Dense, [rows]) => (*rows, 1),
            (Layout::Dense, [rows, n]) if *n > 0 => (*rows, *n),
            _ => return Err(wrong_ids(i.op, name, ty)),
        };
        if !is_id(ty.dtype) || (batch != -1 && rows != -1 && rows != batch) {
            return Err(wrong_ids(i.op, name, ty));
        }
        batch = batch.max(rows);
        vectors += n;
    }
    Ok((batch, vectors))
}

fn is_id(dtype: DType) -> bool {
    matches!(dtype, DType::U64 | DType::I64)
}

fn infer_row(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let dim = check_table(i)?;
    let (batch, vectors) = vectors(i)?;
    let mut width = vectors * dim;
    for (n, ty) in i.many("Beside").iter().enumerate() {
        let fits = ty.layout == Layout::Dense && ty.dtype == DType::F32 && ty.shape.len() == 2;
        if !fits || ty.shape[1] < 0 {
            return Err(i.wrong_nth("Beside", n, "f32[batch, width]"));
        }
        width += ty.shape[1];
    }
    Ok(vec![VarType::f32([batch, width])])
}

fn wrong_ids(op: &Op, name: &str, ty: &VarType) -> Error {
    let expected = if op.ins("Ids").len() == 1 {
        "ids: u64 or i64 of known size but for the batch, or ragged u64[batch]"
    } else {
        "u64 or i64[batch, n] or ragged u64[batch], the same batch for all"
    };
    Error::Type {
        op: op.kind.clone(),
        slot: "Ids".into(),
        var: name.to_string(),
        expected: expected.into(),
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
    /// Floats from one example to the next.
    stride: usize,
    /// Each input: position among the op's inputs, first vector, vectors per example.
    inputs: Vec<(usize, usize, usize)>,
    pool: Pool,
    padding: Option<u64>,
    hash: bool,
    names: Vec<String>,
    /// Whether each input holds signed ids.
    signed: Vec<bool>,
}

impl Lookup {
    fn new(s: &Spec<'_>) -> Result<Lookup, Error> {
        let w = s.at("W").expect("the schema was checked");
        let (height, dim) = s.matrix(w);
        let first = s.at("Ids").expect("the schema was checked");
        let mut vectors = 0;
        let inputs = (first..first + s.op.ins("Ids").len())
            .map(|i| {
                let n = s.dims(i).iter().skip(1).product();
                vectors += n;
                (i, vectors - n, n)
            })
            .collect();
        let padding = u64::try_from(s.op.int("padding_idx")?).ok();
        let names = s.op.ins("Ids").to_vec();
        let signed = s.ins[first..first + names.len()].iter().map(|ty| ty.dtype == DType::I64);
        let signed = signed.collect();
        let (pool, hash) = (pool(s.op)?, s.op.bool("hash")?);
        // Where rows hold more than vectors, the row tells: of the result or of its gradient.
        let row = s.at("dOut").map_or(&s.outs[0], |at| &s.ins[at]);
        let stride = match row.shape.as_slice() {
            [_, width] if row.layout == Layout::Dense => *width as usize,
            _ => vectors * dim,
        };
        Ok(Lookup { height, dim, stride, inputs, pool, padding, hash, names, signed })
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
        let at = input - self.inputs[0].0;
        // A negative id has the bits of one beyond any table.
        let negative = self.signed[at] && (id as i64) < 0;
        if self.hash && !negative {
            return Ok(Some((id % self.height as u64) as usize));
        }
        let (name, height) = (&self.names[at], self.height);
        Err(KernelError(if negative {
            format!("id {} of '{name}' is negative; ids count from 0", id as i64)
        } else {
            format!("id {id} of '{name}' is beyond the table of {height} rows")
        }))
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
    let first = s.at("Beside").unwrap_or(s.ins.len());
    let beside = (first..first + s.op.ins("Beside").len()).map(|i| (i, s.dims(i)[1]));
    let beside: Vec<(usize, usize)> = beside.collect();
    let end = lookup.stride - beside.iter().map(|(_, width)| width).sum::<usize>();
    Ok(Box::new(move |io, _| {
        let table = io.f32(w);
        let out = io.out_f32(0);
        let mut at = end;
        for &(input, width) in &beside {
            let rows = io.f32(input).chunks_exact(width.max(1));
            for (out, row) in out.chunks_exact_mut(lookup.stride).zip(rows) {
                out[at..at + width].copy_from_slice(row);
            }
            at += width;
        }
        for &(input, at, n) in &lookup.inputs {
            if io.is_ragged(input) {
                pool_rows(&lookup, io, input, at, table, out)?;
            } else {
                copy_rows(&lookup, io.ids(input), input, at, n, table, out)?;
            }
        }
        Ok(())
    }))
}

/// What is needed this many ids later is prefetched now: rows lie anywhere in the table, and the
/// vectors of a slot far apart in the batch.
const PREFETCH_IDS: usize = 16;

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
    for (example, of_example) in ids.chunks_exact(n).enumerate() {
        for (i, &id) in of_example.iter().enumerate() {
            if let Some(&soon) = ids.get(example * n + i + PREFETCH_IDS) {
                prefetch_row(table, (soon as usize).wrapping_mul(dim), dim);
            }
            let to = example * lookup.stride + (at + i) * dim;
            prefetch_row(out, to + PREFETCH_IDS / n * lookup.stride, dim);
            match lookup.row(id, input)? {
                Some(row) => {
                    copy_floats(&table[row * dim..(row + 1) * dim], &mut out[to..to + dim])
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
        let to = example * lookup.stride + at * dim;
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
    let (mut index, mut marks) = (RowIndex::default(), Marks::default());
    Ok(Box::new(move |io, _| {
        let (table, d) = (io.f32(w), io.f32(dout));
        if sparse {
            let dw = io.out_rows(0);
            dw.clear();
            (dw.width, dw.height) = (lookup.dim, lookup.height);
            let total: usize = lookup.inputs.iter().map(|&(i, ..)| id_count(io, i)).sum();
            if lookup.height <= total.saturating_mul(2) {
                marks.clear(lookup.height);
                return scatter(&lookup, io, table, d, |row, factor, d, mask| {
                    add_row(dw, marks.insert(row), row, factor, d, mask);
                });
            }
            index.clear(total);
            scatter(&lookup, io, table, d, |row, factor, d, mask| {
                add_row(dw, index.insert(row as u64), row, factor, d, mask);
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

/// Numbers the distinct rows of a small table by first appearance, with a mark per row: such tables
/// are what a worker has pulled for a batch.
#[derive(Default)]
struct Marks {
    /// Generation and number; a mark of an earlier generation does not count.
    of_row: Vec<(u32, u32)>,
    generation: u32,
    len: u32,
}

impl Marks {
    fn clear(&mut self, height: usize) {
        if self.of_row.len() < height || self.generation == u32::MAX {
            self.of_row.clear();
            self.of_row.resize(height, (0, 0));
            self.generation = 0;
        }
        self.generation += 1;
        self.len = 0;
    }

    /// The number of a row, and whether it is new.
    #[inline]
    fn insert(&mut self, row: usize) -> (usize, bool) {
        let mark = &mut self.of_row[row];
        if mark.0 == self.generation {
            return (mark.1 as usize, false);
        }
        *mark = (self.generation, self.len);
        self.len += 1;
        (mark.1 as usize, true)
    }
}

/// Adds to the row of that number, which may be new.
#[inline]
fn add_row(
    dw: &mut RowSparse,
    (at, new): (usize, bool),
    row: usize,
    factor: f32,
    d: &[f32],
    mask: Mask<'_>,
) {
    if new {
        dw.rows.push(row as u64);
        if mask.is_none() && factor == 1.0 {
            return dw.values.extend_from_slice(d);
        }
        dw.values.resize(dw.values.len() + d.len(), 0.0);
    }
    add(&mut dw.values[at * d.len()..(at + 1) * d.len()], factor, d, mask);
}

fn id_count(io: &Io<'_>, input: usize) -> usize {
    if io.is_ragged(input) {
        let (_, offsets) = io.ragged_u64(input);
        (offsets[offsets.len() - 1] - offsets[0]) as usize
    } else {
        io.ids(input).len()
    }
}

/// The ids of one pooled slot and the table they point into: who was the largest, per dimension.
type Mask<'a> = Option<(&'a [f32], &'a dyn Fn(usize) -> f32)>;

fn add(sums: &mut [f32], factor: f32, d: &[f32], mask: Mask<'_>) {
    match mask {
        None => add_floats(factor, d, sums),
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
        let at = example * lookup.stride + vector * dim;
        prefetch_row(d, at + PREFETCH_IDS * lookup.stride, dim);
        &d[at..at + dim]
    };
    for &(input, at, n) in &lookup.inputs {
        if !io.is_ragged(input) {
            for (i, &id) in io.ids(input).iter().enumerate() {
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
    let signed = |shape: &[usize]| {
        let ids = [4, 1, 0, 3, 3, 2, 1, 1][..shape.iter().product()].to_vec();
        Tensor::from_i64(shape, ids).expect("lengths agree").into()
    };
    all.extend([
        sample("signed ids", vec![signed(&[3])]),
        sample("signed ids of rank 3", vec![signed(&[2, 2, 2])]).attr("padding_idx", 3),
        sample("signed and unsigned ids", vec![signed(&[3, 1]), dense().into(), signed(&[3, 2])]),
    ]);
    for pool in ["mean", "max", "sqrtn"] {
        all.push(sample("pooled", vec![ragged().into()]).attr("pool", pool));
    }
    all
}
