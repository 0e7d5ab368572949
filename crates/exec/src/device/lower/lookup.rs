//! Lookups of rows, and the gradient of each row.

use regatta_ir::Layout;

use super::shape::Strided;
use super::{Lower, Rule};
use crate::Error;
use crate::device::batch::Part;
use crate::device::codes::POOLS;
use crate::device::launch::{Arg, Count, Place};
use crate::device::lookups::Source;
use crate::device::refused;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("embedding", forward),
    ("embedding_row", forward),
    ("embedding_grad", backward),
    ("embedding_row_grad", backward),
];

/// What both directions need.
struct Found {
    pool: Arg,
    ragged: Arg,
    vectors: u32,
    dim: u32,
    rows: Place,
    stride: Arg,
    ids: Place,
    starts: Place,
    table: Option<usize>,
    at: usize,
}

impl Lower<'_, '_> {
    fn part(&self, part: Part) -> Result<Place, Error> {
        let missing = || refused(self.op, format!("the batch has no {part:?}"));
        self.to.part(&part).ok_or_else(missing)
    }

    fn lookups(&mut self) -> Result<Found, Error> {
        let (w, ids) = (&self.op.ins("W")[0], self.op.ins("Ids"));
        let padding = u64::try_from(self.op.int("padding_idx")?).ok();
        let fits = |l: &super::super::lookups::Lookups| l.is_of(w, ids, padding);
        let at = self.to.lookups.iter().position(fits);
        let at = at.ok_or_else(|| refused(self.op, format!("'{w}' is no table")))?;
        let lookups = &self.to.lookups[at];
        let (vectors, ragged) = (lookups.vectors as u32, lookups.ragged);
        let table = lookups.table();
        let dim = self.dims("W")[1];
        let (rows, stride) = match (&lookups.source, table) {
            (Source::Pulled(_), Some(table)) => (Place::Arena(table), Arg::Stride(table)),
            _ => (self.floats("W")?, Arg::U64(u64::from(dim))),
        };
        let name = self.op.str("pool")?;
        let pool = POOLS.iter().find(|pool| pool.0 == name);
        let pool = pool.ok_or_else(|| refused(self.op, format!("pool '{name}'")))?.1;
        let ids = self.part(Part::Ids(at))?;
        let starts = if ragged { self.part(Part::Starts(at))? } else { ids };
        let (pool, ragged) = (Arg::I32(pool), Arg::I32(i32::from(ragged)));
        Ok(Found { pool, ragged, vectors, dim, rows, stride, ids, starts, table, at })
    }
}

fn forward(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let found = to.lookups()?;
    let Found { pool, ragged, vectors, dim, rows, stride, ids, starts, .. } = found;
    let (out, examples) = (to.out("Out")?, to.len("Out"));
    let out_dims = to.dims("Out");
    let beside: u32 = to.op.ins("Beside").iter().map(|var| to.ty_of(var).shape[1] as u32).sum();
    let width = vectors * dim + beside;
    let examples = examples / width.max(1);
    debug_assert!(out_dims.first().is_none_or(|&n| n == examples), "{out_dims:?}");
    let segments = examples * vectors;
    let args = vec![
        pool,
        ragged,
        Arg::U32(segments),
        Arg::U32(vectors),
        Arg::U32(dim),
        Arg::U32(width),
        Arg::At(rows),
        stride,
        Arg::At(ids),
        Arg::At(starts),
        Arg::At(out),
    ];
    to.each("lookup", Count::fixed(segments * dim), args);
    let mut at = vectors * dim;
    for var in to.op.ins("Beside") {
        let (place, n) = (to.floats_of(var)?, to.ty_of(var).shape[1] as u32);
        let from = Strided { place, first: 0, stride: n };
        to.copy_rows(examples, n, from, Strided { place: out, first: at, stride: width });
        at += n;
    }
    Ok(())
}

fn backward(to: &mut Lower<'_, '_>) -> Result<(), Error> {
    let found = to.lookups()?;
    let Found { pool, ragged, vectors, dim, rows, stride, ids, starts, table, at } = found;
    let d = to.floats("dOut")?;
    let d_stride = match (to.op.kind.as_str(), to.dims("dOut").as_slice()) {
        ("embedding_row_grad", [_, width]) => *width,
        _ => vectors * dim,
    };
    let is_sparse = to.ty("dW").layout == Layout::Rows;
    let height = to.dims("W")[0];
    let var = to.op.outs("dW")[0].as_str();
    to.to.set_table(var, table.filter(|_| is_sparse));
    let dw = to.out("dW")?;
    let distinct = Count { each: 1, table };
    let n_rows = if table.is_some() { distinct } else { Count::fixed(height) };
    let slots = match table {
        Some(table) => to.part(Part::Slots(table))?,
        None => to.to.sizes((0..height).collect()),
    };
    let args = vec![
        pool,
        ragged,
        Arg::Count(n_rows),
        Arg::U32(vectors),
        Arg::U32(dim),
        Arg::U32(d_stride),
        Arg::At(to.part(Part::RowStarts(at))?),
        Arg::At(to.part(Part::Positions(at))?),
        Arg::At(d),
        Arg::At(rows),
        stride,
        Arg::At(slots),
        Arg::At(ids),
        Arg::At(starts),
        Arg::At(dw),
    ];
    to.each("lookup_grad", Count { each: n_rows.each * dim, ..n_rows }, args);
    Ok(())
}
