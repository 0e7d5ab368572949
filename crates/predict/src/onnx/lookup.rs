//! Ids become rows inside the graph.
//!
//! A table is one constant whose last row is zero: that row stands for ids that were never trained,
//! for the padding id, and for positions that hold no id. Where ids are not the numbers of rows, a
//! `LabelEncoder` of the file finds the number.

use regatta_checkpoint::ModelTable;
use regatta_ir::{Layout, Op};
use regatta_tensor::DType;

use super::graph::{Attr, FLOAT, INT64, UINT64};
use super::{ML_DOMAIN, Mapper, NO_ID};
use crate::Error;
use crate::files::read_rows;

/// A table within the graph.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// The constant.
    name: String,
    /// Number of the row of zeros, which is the last.
    zero: i64,
    /// Ids by row, if they are not the numbers of rows.
    ids: Option<Vec<i64>>,
}

impl Mapper<'_> {
    /// `embedding`: inputs with a known number of ids are looked up together, those with any number
    /// each by itself; the vectors of all stand beside each other.
    pub(super) fn embedding(&mut self, op: &Op) -> Result<(), Error> {
        let rows = self.rows(op)?;
        if let [ids] = op.ins("Ids") {
            let ty = self.ty(ids)?;
            let own_shape = ty.shape.len() > 2 || ty.dtype == DType::I64;
            if ty.layout == Layout::Dense && own_shape {
                let at = self.row_numbers(op, &rows, ids)?;
                return self.emit(op, "Out", "Gather", &[&rows.name, &at], &[Attr::Int("axis", 0)]);
            }
        }
        let mut parts = Vec::new();
        let mut fixed: Vec<String> = Vec::new();
        for ids in op.ins("Ids") {
            let ty = self.ty(ids)?;
            if ty.layout != Layout::Ragged {
                fixed.push(if ty.shape.len() == 1 { self.column(ids) } else { ids.clone() });
                continue;
            }
            parts.extend(self.fixed_vectors(op, &rows, &mut fixed)?);
            parts.push(self.pooled_vectors(op, &rows, ids)?);
        }
        parts.extend(self.fixed_vectors(op, &rows, &mut fixed)?);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.emit(op, "Out", "Concat", &parts, &[Attr::Int("axis", 1)])
    }

    /// The table of an op, put into the graph by the first that needs it.
    fn rows(&mut self, op: &Op) -> Result<Rows, Error> {
        let param = op.input_var("W").unwrap_or_default().to_string();
        if let Some(rows) = self.tables.get(&param) {
            return Ok(rows.clone());
        }
        let saved = self.opened.manifest.tables.iter().find(|table| table.name == param);
        let (mut values, dim, ids) = match saved {
            Some(table) => {
                let rows = read_rows(self.dir, &self.opened.manifest, table)?;
                (rows.values, table.dim, by_id(table, &rows.ids))
            }
            None => {
                // A parameter like others, which was not kept apart.
                let Some(tensor) = self.params.get(param.as_str()) else {
                    return Err(self.refused(format!("parameter '{param}' has no value")));
                };
                (tensor.f32().to_vec(), tensor.shape()[1], None)
            }
        };
        let zero = values.len() / dim;
        values.resize(values.len() + dim, 0.0);
        let name = format!("{param}.rows");
        self.graph.take(&name);
        self.graph.floats_to(&name, &[zero + 1, dim], &values);
        let rows = Rows { name, zero: zero as i64, ids };
        self.tables.insert(param, rows.clone());
        Ok(rows)
    }

    /// `[batch]` as `[batch, 1]`.
    fn column(&mut self, ids: &str) -> String {
        let shape = self.graph.ints(&[-1, 1]);
        self.graph.node("Reshape", &[ids, &shape], &[])
    }

    /// The vectors of inputs with known numbers of ids, `[batch, ids, dim]`.
    fn fixed_vectors(
        &mut self,
        op: &Op,
        rows: &Rows,
        ids: &mut Vec<String>,
    ) -> Result<Option<String>, Error> {
        let inputs: Vec<String> = std::mem::take(ids);
        let ids = match &inputs[..] {
            [] => return Ok(None),
            [one] => one.clone(),
            several => {
                let several: Vec<&str> = several.iter().map(String::as_str).collect();
                self.graph.node("Concat", &several, &[Attr::Int("axis", 1)])
            }
        };
        let at = self.row_numbers(op, rows, &ids)?;
        Ok(Some(self.graph.node("Gather", &[&rows.name, &at], &[Attr::Int("axis", 0)])))
    }

    /// The numbers of the rows of ids.
    fn row_numbers(&mut self, op: &Op, rows: &Rows, ids: &str) -> Result<String, Error> {
        let zero = self.graph.int(rows.zero);
        let key = self.key(op, ids)?;
        let mut at = match &rows.ids {
            Some(known) => {
                let found = self.graph.fresh("row");
                let numbers: Vec<i64> = (0..known.len() as i64).collect();
                let attrs = [
                    Attr::Ints("keys_int64s", known),
                    Attr::Ints("values_int64s", &numbers),
                    Attr::Int("default_int64", rows.zero),
                ];
                self.graph.node_of(ML_DOMAIN, "LabelEncoder", &[&key], &[&found], &attrs);
                found
            }
            None => {
                // Large ids are negative here: they are beyond the table as well.
                let first = self.graph.int(0);
                let below = self.graph.node("Less", &[&key, &first], &[]);
                let beyond = self.graph.node("GreaterOrEqual", &[&key, &zero], &[]);
                let outside = self.graph.node("Or", &[&below, &beyond], &[]);
                self.graph.node("Where", &[&outside, &zero, &key], &[])
            }
        };
        if let Some(padding) = padding(op)? {
            let is_padding = self.equals(ids, padding);
            at = self.graph.node("Where", &[&is_padding, &zero, &at], &[]);
        }
        Ok(at)
    }

    /// What an id is looked up by: itself, or what is left of it by the number of rows.
    fn key(&mut self, op: &Op, ids: &str) -> Result<String, Error> {
        if !op.bool("hash")? {
            return Ok(ids.to_string());
        }
        let height = self.ty(op.input_var("W").unwrap_or_default())?.shape[0] as u64;
        let height = self.graph.uint(height);
        let unsigned = self.graph.cast(ids, UINT64);
        let rest = self.graph.node("Mod", &[&unsigned, &height], &[]);
        Ok(self.graph.cast(&rest, INT64))
    }

    fn equals(&mut self, ids: &str, value: i64) -> String {
        let value = self.graph.int(value);
        self.graph.node("Equal", &[ids, &value], &[])
    }

    /// The pooled vector of each example of a slot with any number of ids, `[batch, 1, dim]`.
    fn pooled_vectors(&mut self, op: &Op, rows: &Rows, ids: &str) -> Result<String, Error> {
        let mut absent = self.equals(ids, NO_ID);
        if let Some(padding) = padding(op)? {
            let is_padding = self.equals(ids, padding);
            absent = self.graph.node("Or", &[&absent, &is_padding], &[]);
        }
        let at = self.row_numbers(op, rows, ids)?;
        let zero = self.graph.int(rows.zero);
        let at = self.graph.node("Where", &[&absent, &zero, &at], &[]);
        let vectors = self.graph.node("Gather", &[&rows.name, &at], &[Attr::Int("axis", 0)]);
        let along = self.graph.ints(&[1]);
        let sum = |g: &mut super::Graph, x: &str| {
            g.node("ReduceSum", &[x, &along], &[Attr::Int("keepdims", 1)])
        };
        let pool = op.str("pool")?;
        if pool == "sum" {
            return Ok(sum(&mut self.graph, &vectors));
        }
        let present = self.graph.node("Not", &[&absent], &[]);
        let present = self.graph.cast(&present, FLOAT);
        let last = self.graph.ints(&[2]);
        let present = self.graph.node("Unsqueeze", &[&present, &last], &[]);
        let count = sum(&mut self.graph, &present);
        if pool == "max" {
            return Ok(self.largest(&vectors, &present, &count, &along));
        }
        let one = self.graph.float(1.0);
        let mut share = self.graph.node("Max", &[&count, &one], &[]);
        if pool == "sqrtn" {
            share = self.graph.node("Sqrt", &[&share], &[]);
        }
        let sum = sum(&mut self.graph, &vectors);
        Ok(self.graph.node("Div", &[&sum, &share], &[]))
    }

    /// The largest of the vectors that are there, number by number; zeros where there is none.
    fn largest(&mut self, vectors: &str, present: &str, count: &str, along: &str) -> String {
        let graph = &mut self.graph;
        let (zero, least) = (graph.float(0.0), graph.float(f32::NEG_INFINITY));
        let there = graph.node("Greater", &[present, &zero], &[]);
        let vectors = graph.node("Where", &[&there, vectors, &least], &[]);
        let largest = graph.node("ReduceMax", &[&vectors, along], &[Attr::Int("keepdims", 1)]);
        let any = graph.node("Greater", &[count, &zero], &[]);
        graph.node("Where", &[&any, &largest, &zero], &[])
    }

    /// `sequence_pad`: the last `len` ids of each example from the front, filled up with `value`.
    pub(super) fn sequence_pad(&mut self, op: &Op) -> Result<(), Error> {
        let (len, value) = (op.int("len")?, op.int("value")?);
        let ids = self.input(op, "X")?;
        let graph = &mut self.graph;
        let no_id = graph.int(NO_ID);
        let absent = graph.node("Equal", &[&ids, &no_id], &[]);
        let present = graph.node("Not", &[&absent], &[]);
        let present = graph.cast(&present, INT64);
        let along = graph.ints(&[1]);
        let count = graph.node("ReduceSum", &[&present, &along], &[Attr::Int("keepdims", 1)]);
        let (len_of, zero) = (graph.int(len), graph.int(0));
        let before = graph.node("Sub", &[&count, &len_of], &[]);
        let before = graph.node("Max", &[&before, &zero], &[]);
        let places: Vec<i64> = (0..len).collect();
        let places = graph.ints(&places);
        let from = graph.node("Add", &[&before, &places], &[]);
        // As many more columns as every position needs.
        let room = graph.ints(&[0, 0, 0, len]);
        let wide = graph.node("Pad", &[&ids, &room, &no_id], &[]);
        let kept = graph.node("GatherElements", &[&wide, &from], &[Attr::Int("axis", 1)]);
        let nothing = graph.node("Equal", &[&kept, &no_id], &[]);
        let value = graph.int(value);
        self.emit(op, "Out", "Where", &[&nothing, &value, &kept], &[])
    }
}

/// The bits of ids, where they are not the numbers of rows.
fn by_id(table: &ModelTable, ids: &[u64]) -> Option<Vec<i64>> {
    // A lookup without ids is not valid; by number, nothing is found in no rows either.
    let by_id = table.keys.is_some() && !ids.is_empty();
    by_id.then(|| ids.iter().map(|id| *id as i64).collect())
}

/// The id that stands for nothing, if there is one.
fn padding(op: &Op) -> Result<Option<i64>, Error> {
    Ok(Some(op.int("padding_idx")?).filter(|id| *id >= 0))
}
