//! Tables of a model: which parameters they are, and their two files.
//!
//! `<table>.values` holds the rows, all of one size. If ids are not simply the numbers of rows,
//! `<table>.keys` holds the id of each row (u64, little-endian), and rows stand in rising order of
//! [`row_order`](regatta_table::row_order), which spreads ids evenly: the place of an id can be
//! guessed. `<file>.sums` beside each of them holds the checksums of its blocks.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use regatta_ir::{Block, Op, Origin, Program};
use regatta_table::row_order;
use regatta_tensor::{DType, Tensor};

use super::manifest::{Encoding, ModelFile, ModelManifest, ModelTable};
use super::sums::BlockWriter;
use crate::Error;
use crate::checksum::Summing;
use crate::manifest::part_name;

/// Calls what it is given for every row, with its id.
pub type EachRow<'a> =
    Box<dyn FnOnce(&mut dyn FnMut(u64, &[f32]) -> Result<(), Error>) -> Result<(), Error> + 'a>;

/// The rows of a table on their way to a file.
pub enum TableRows<'a> {
    /// All of them; the id is the number of the row.
    Whole(&'a Tensor),
    /// One after the other, in rising order of [`row_order`].
    ById(EachRow<'a>),
}

/// The parameters of a program that rows for a batch are enough for: those that are only looked up,
/// by ids that are inputs of the program, or inputs that were padded, joined or moved.
pub fn lookup_tables(program: &Program) -> Vec<String> {
    let block = program.block();
    let params = block.params().filter(|var| var.ty.dtype == DType::F32 && var.ty.shape.len() == 2);
    params.filter(|var| is_table(block, &var.name)).map(|var| var.name.clone()).collect()
}

fn is_table(block: &Block, name: &str) -> bool {
    let readers = || block.ops.iter().filter(|op| op.input_vars().any(|v| v == name));
    let padding = |op: &Op| op.int("padding_idx").unwrap_or(-1);
    let first = readers().next().map(padding);
    let fits = |op: &Op| {
        op.kind == "embedding"
            && op.bool("is_sparse").unwrap_or(false)
            && op.ins("W").iter().all(|w| w == name)
            && Some(padding(op)) == first
            && op.ins("Ids").iter().all(|ids| is_input(block, ids, padding(op)))
    };
    first.is_some() && readers().all(fits)
}

/// Whether ids are inputs, or inputs that were joined or moved, or padded with the id that stands
/// for nothing.
fn is_input(block: &Block, ids: &str, padding: i64) -> bool {
    if block.vars.get(ids).is_some_and(|v| v.origin == Origin::Data) {
        return true;
    }
    let maker = block.ops.iter().find(|op| op.output_vars().any(|v| v == ids));
    maker.is_some_and(|op| {
        let only_moves = match op.kind.as_str() {
            "sequence_pad" => op.int("value").is_ok_and(|value| value == padding),
            "assign" | "concat" | "reshape" | "transpose" => true,
            _ => false,
        };
        only_moves && op.input_vars().all(|source| is_input(block, source, padding))
    })
}

/// Writes the files of a table and lists them.
pub(super) fn write(
    dir: &Path,
    name: &str,
    dim: usize,
    encoding: Encoding,
    rows: TableRows<'_>,
    manifest: &mut ModelManifest,
) -> Result<(), Error> {
    let mut values = Column::create(dir, &part_name(name, "values"))?;
    let mut keys = None;
    let (mut n, mut max_error, mut bytes) = (0_u64, 0.0_f64, Vec::new());
    let mut put = |row: &[f32]| {
        if row.len() != dim {
            let reason = format!("a row of table '{name}' has {} of {dim} floats", row.len());
            return Err(Error::Model { reason });
        }
        bytes.clear();
        max_error = max_error.max(encoding.write(row, &mut bytes));
        n += 1;
        values.write(&bytes)
    };
    match rows {
        TableRows::Whole(tensor) => tensor.f32().chunks_exact(dim).try_for_each(&mut put)?,
        TableRows::ById(each) => {
            let column = keys.insert(Column::create(dir, &part_name(name, "keys"))?);
            let mut last = None;
            each(&mut |key, row| {
                let order = row_order(key);
                if last.replace(order).is_some_and(|last| last >= order) {
                    let reason = format!("rows of table '{name}' are out of order at id {key}");
                    return Err(Error::Model { reason });
                }
                column.write(&key.to_le_bytes())?;
                put(row)
            })?;
        }
    }
    let values = values.finish(dir)?;
    let keys = keys.map(|column| column.finish(dir)).transpose()?;
    manifest.tables.push(ModelTable {
        name: name.to_string(),
        rows: n,
        dim,
        encoding,
        max_error,
        keys: keys.as_ref().map(|[file, _]| file.name.clone()),
        values: values[0].name.clone(),
    });
    manifest.files.extend(keys.into_iter().flatten().chain(values));
    Ok(())
}

/// Reads a table into a tensor of the shape that the program declares.
pub(super) fn read_whole(
    dir: &Path,
    manifest: &ModelManifest,
    table: &ModelTable,
    shape: &[i64],
) -> Result<Tensor, Error> {
    let shape: Vec<usize> = shape.iter().map(|&d| d.max(0) as usize).collect();
    let values = super::check_file(dir, manifest, &table.values)?;
    let keys =
        table.keys.as_ref().map(|keys| super::check_file(dir, manifest, keys)).transpose()?;
    let mut tensor = Tensor::zeros(DType::F32, &shape);
    let rows = values.chunks_exact(table.encoding.row_bytes(table.dim));
    for (i, row) in rows.enumerate() {
        let id = keys.as_ref().map_or(i as u64, |keys| key_at(keys, i));
        let to = usize::try_from(id).ok().filter(|id| *id < shape[0]);
        let Some(at) = to else {
            let (name, n) = (&table.name, shape[0]);
            let reason = format!("table '{name}' holds id {id}, but {n} rows are declared");
            return Err(Error::refused(dir, reason));
        };
        let to = &mut tensor.f32_mut()[at * table.dim..(at + 1) * table.dim];
        table.encoding.read(row, to);
    }
    Ok(tensor)
}

fn key_at(keys: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(keys.as_chunks::<8>().0[at])
}

/// A file that grows by one row at a time.
struct Column {
    name: String,
    path: std::path::PathBuf,
    file: Summing<BufWriter<File>>,
    blocks: BlockWriter,
}

impl Column {
    fn create(dir: &Path, name: &str) -> Result<Column, Error> {
        let path = dir.join(name);
        let file = File::create_new(&path).map_err(Error::io("write", &path))?;
        let file = Summing::new(BufWriter::with_capacity(1 << 20, file));
        Ok(Column { name: name.to_string(), path, file, blocks: BlockWriter::default() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.blocks.add(bytes);
        self.file.write_all(bytes).map_err(Error::io("write", &self.path))
    }

    /// The file and that of its checksums.
    fn finish(self, dir: &Path) -> Result<[ModelFile; 2], Error> {
        let (bytes, checksum) = self.file.sum();
        let end = || -> io::Result<()> {
            self.file.into_inner().into_inner().map_err(|e| e.into_error())?.sync_all()
        };
        end().map_err(Error::io("write", &self.path))?;
        let sums = self.blocks.finish(dir, &self.name)?;
        Ok([ModelFile { name: self.name, bytes, checksum }, sums])
    }
}
