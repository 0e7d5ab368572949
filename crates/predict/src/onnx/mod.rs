//! A model as one ONNX file, tables included: the inference program op by op, with a lookup from
//! ids to rows inside the graph.
//!
//! Inputs carry the names of the model's inputs. Ids are `int64`, the bits of our `u64`. A slot
//! with any number of ids is a matrix with as many columns as the longest example needs, filled up
//! with -1, which therefore is no id. Ids without a row count as rows of zeros, as in [`Session`].
//!
//! Reading order: this file ([`write`]), `ops` (one mapping for each op), `images` (those over
//! images), `lookup` (ids to rows),
//! `graph` (nodes and constants), `proto` (bytes).
//!
//! [`Session`]: crate::Session

mod graph;
mod images;
mod lookup;
mod ops;
mod proto;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use regatta_checkpoint::{ModelTable, OpenModel};
use regatta_ir::{Layout, VarType};
use regatta_ops::OPS;
use regatta_tensor::{DType, Tensor};

use self::graph::{Dim, FLOAT, Graph, INT64, value_info};
use self::proto::Message;
use crate::Error;

/// Name of the file.
pub(crate) const ONNX_FILE: &str = "model.onnx";

/// Versions that onnxruntime 1.14 and later accept: of the format, of its ops, and of the ops for
/// lookups.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 18;
const ML_OPSET: i64 = 3;
const ML_DOMAIN: &str = "ai.onnx.ml";

/// Protobuf messages are shorter than this.
const MOST_BYTES: usize = i32::MAX as usize;

/// What stands for "no id" in a slot with any number of ids.
const NO_ID: i64 = -1;

/// Writes the model, whose files are in the directory `model`, to `path`. Gives the inputs and
/// outputs with their descriptions.
///
/// # Errors
/// If its tables take more than `table_limit` bytes, an op has no counterpart, or the file cannot
/// be written.
pub(crate) fn write(
    model: &Path,
    opened: &OpenModel,
    table_limit: u64,
    path: &Path,
) -> Result<Vec<(String, String)>, Error> {
    check_size(opened, table_limit)?;
    let (message, described) = Mapper::map(model, opened)?;
    if message.len() > MOST_BYTES {
        let reason = format!("it takes {} bytes, and ONNX files end at 2 GiB", message.len());
        return Err(refused(opened, reason));
    }
    let write = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create_new(path)?);
        message.write(&mut file)?;
        file.flush()?;
        file.into_inner().map_err(|e| e.into_error())?.sync_all()
    };
    write().map_err(|source| Error::Write { path: path.to_path_buf(), source })?;
    Ok(described)
}

fn refused(opened: &OpenModel, reason: String) -> Error {
    Error::Onnx { model: opened.manifest.about.name.clone(), reason }
}

/// Bytes of a table within the file: floats and, where there are some, ids.
fn table_bytes(table: &ModelTable) -> u64 {
    let row = 4 * table.dim as u64 + if table.keys.is_some() { 8 } else { 0 };
    table.rows.saturating_mul(row)
}

fn check_size(opened: &OpenModel, limit: u64) -> Result<(), Error> {
    let tables = &opened.manifest.tables;
    let total = tables.iter().map(table_bytes).fold(0, u64::saturating_add);
    if total <= limit {
        return Ok(());
    }
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let each: Vec<String> = tables
        .iter()
        .map(|t| format!("'{}' {} rows of {} floats", t.name, t.rows, t.dim))
        .collect();
    let (total, limit, each) = (mb(total), mb(limit), each.join(", "));
    let reason = format!(
        "its tables take {total:.1} MB ({each}), more than the limit of {limit:.1} MB for tables \
         inside a file; raise it with --table-limit, or export another format"
    );
    Err(refused(opened, reason))
}

/// The graph on its way, with everything that ops may need.
struct Mapper<'m> {
    graph: Graph,
    dir: &'m Path,
    opened: &'m OpenModel,
    params: BTreeMap<&'m str, &'m Tensor>,
    /// Tables that are in the graph already, by parameter.
    tables: BTreeMap<String, lookup::Rows>,
}

impl<'m> Mapper<'m> {
    fn map(
        dir: &'m Path,
        opened: &'m OpenModel,
    ) -> Result<(Message, Vec<(String, String)>), Error> {
        let params = opened.params.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let (graph, tables) = (Graph::default(), BTreeMap::new());
        let mut mapper = Mapper { graph, dir, opened, params, tables };
        let mut described = Vec::new();
        let inputs = mapper.inputs(&mut described)?;
        let mut program = opened.program.clone();
        regatta_ir::complete(&mut program, &OPS)?;
        for op in &program.block().ops {
            mapper.op(op)?;
        }
        let outputs = mapper.outputs(&mut described)?;
        let graph = mapper.graph.finish(&opened.manifest.about.name, inputs, outputs);
        Ok((model_message(opened, graph, &described), described))
    }

    fn refused(&self, reason: String) -> Error {
        refused(self.opened, reason)
    }

    fn ty(&self, var: &str) -> Result<&'m VarType, Error> {
        Ok(&self.opened.program.block().var(var, "onnx")?.ty)
    }

    fn inputs(&mut self, described: &mut Vec<(String, String)>) -> Result<Vec<Message>, Error> {
        let mut all = Vec::new();
        for name in &self.opened.feeds {
            let ty = self.ty(name)?;
            self.graph.take(name);
            let slot = format!("{name}.ids");
            let (dims, about) = match ty.layout {
                Layout::Ragged => {
                    let about = "any number of ids per example, filled up with -1";
                    (vec![Dim::Named("batch"), Dim::Named(&slot)], about)
                }
                _ => (dims_of(ty, "batch"), if ty.dtype == DType::U64 { "ids" } else { "numbers" }),
            };
            let dtype = self.element(name)?;
            described.push((format!("input {name}"), describe(dtype, &dims, about)));
            all.push(value_info(name, dtype, &dims, about));
        }
        Ok(all)
    }

    fn outputs(&mut self, described: &mut Vec<(String, String)>) -> Result<Vec<Message>, Error> {
        let mut all = Vec::new();
        for name in &self.opened.fetches {
            let dims = dims_of(self.ty(name)?, "batch");
            let dtype = self.element(name)?;
            described.push((format!("output {name}"), describe(dtype, &dims, "scores")));
            all.push(value_info(name, dtype, &dims, "scores"));
        }
        Ok(all)
    }

    /// The type of a variable's elements in the file: ids are the bits of ours.
    fn element(&self, var: &str) -> Result<i64, Error> {
        match self.ty(var)?.dtype {
            DType::F32 => Ok(FLOAT),
            DType::I64 | DType::U64 => Ok(INT64),
            other => {
                Err(self.refused(format!("'{var}' is {other}; programs of f32 can be written")))
            }
        }
    }
}

fn dims_of<'a>(ty: &VarType, batch: &'a str) -> Vec<Dim<'a>> {
    let dim = |&d: &i64| if d < 0 { Dim::Named(batch) } else { Dim::Known(d) };
    ty.shape.iter().map(dim).collect()
}

fn describe(dtype: i64, dims: &[Dim<'_>], about: &str) -> String {
    let dims: Vec<String> = dims
        .iter()
        .map(|dim| match dim {
            Dim::Known(n) => n.to_string(),
            Dim::Named(name) => (*name).to_string(),
        })
        .collect();
    let dtype = if dtype == FLOAT { "float" } else { "int64" };
    format!("{dtype}[{}], {about}", dims.join(", "))
}

/// The whole file, with what a user needs to know to feed it.
fn model_message(opened: &OpenModel, graph: Message, described: &[(String, String)]) -> Message {
    // OperatorSetIdProto: domain 1, version 2; StringStringEntryProto: key 1, value 2.
    let ops = Message::new().text(1, "").int(2, OPSET);
    let lookups = Message::new().text(1, ML_DOMAIN).int(2, ML_OPSET);
    let about = &opened.manifest.about;
    let mut facts = vec![
        ("model".to_string(), about.name.clone()),
        ("no id".to_string(), NO_ID.to_string()),
        ("ids".to_string(), "unsigned 64-bit ids as int64 of the same bits".to_string()),
    ];
    facts.extend(about.step.map(|step| ("step".to_string(), step.to_string())));
    // As in the manifest of the model: what makes its inputs of raw values.
    facts.extend(about.features.iter().map(|json| ("features".to_string(), json.to_string())));
    facts.extend(described.iter().cloned());
    let facts = facts.iter().map(|(key, value)| Message::new().text(1, key).text(2, value));
    // ModelProto: ir_version 1, producer_name 2, producer_version 3, graph 7, opset_import 8,
    // metadata_props 14.
    Message::new()
        .int(1, IR_VERSION)
        .text(2, "regatta")
        .text(3, env!("CARGO_PKG_VERSION"))
        .message(7, graph)
        .messages(8, [ops, lookups])
        .messages(14, facts)
}
