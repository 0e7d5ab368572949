//! A model as files for other programs, and weights back from such files.
//!
//! [`convert`] writes safetensors, npy, Parquet, ONNX or one of Paddle's two text layouts;
//! [`read_weights`] reads both of those.
//!
//! Reading order: this file, `part` and `block` (Paddle's layouts), `lines` (what both share),
//! `sheet` (named columns, for scores).

mod block;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;
mod part;
mod sheet;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use regatta_checkpoint::{
    Metadata, ModelManifest, ModelTable, OpenModel, check_file, check_file_sums, open_model,
    publish_dir, save_tensors, write_file_sums,
};
use regatta_tensor::{Data, Tensor};

pub use sheet::Sheet;

use crate::{Error, onnx};

/// A format of plain files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `weights.safetensors`: parameters by name, tables as `<name>.ids` and `<name>.rows`.
    Safetensors,
    /// One `.npy` file for each of these.
    Npy,
    /// Paddle's layout: `<number of the parameter>/part-<server>-<shard>` with a line for each row
    /// (`id v v ...`), `part-<server>` with a line for each element of a dense parameter, and
    /// `names.txt` with the names of the numbers. All digits that distinguish a float from others
    /// are there.
    Text,
    /// Paddle's older layout: `<table>.shard/<table>.block<server>.txt` with a line for each row
    /// and a `.meta` file beside it; every dense parameter as a file of its name in Paddle's binary
    /// format.
    Block,
    /// `<parameter>.parquet` for each parameter, with the columns `id` and `values`.
    Parquet,
    /// `model.onnx`: the whole model, tables included.
    Onnx {
        /// Most bytes that its tables may take.
        table_limit: u64,
    },
}

/// The rows of a table with their ids, in memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// The ids.
    pub ids: Vec<u64>,
    /// As many floats for each.
    pub values: Vec<f32>,
}

/// A parameter that is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Its name.
    pub name: String,
    /// Its shape; that of a table begins with the rows that are declared.
    pub shape: Vec<usize>,
    /// Whether it is a table, with rows by id.
    pub is_table: bool,
}

/// Weights that were read, by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Weights {
    /// Tables.
    pub tables: BTreeMap<String, Rows>,
    /// All other parameters.
    pub dense: BTreeMap<String, Vec<f32>>,
}

/// Reads parameters from a directory in one of Paddle's layouts, ours or Paddle's own. `columns`
/// says which numbers of a row are its weights, where there are others too; they are counted from
/// 0, after the id.
///
/// # Errors
/// If it is no such directory, a file does not fit the checksum that `convert` wrote down, a
/// parameter is missing (all of them are named), or a line holds something else than it should
/// (named with file and line).
pub fn read_weights(
    dir: &Path,
    wanted: &[ParameterSpec],
    columns: Option<&[usize]>,
) -> Result<Weights, Error> {
    if let (true, Some(_)) = (block::is_here(dir), columns) {
        let reason = "this layout says itself which numbers are weights: name no columns";
        return Err(Error::Input(format!("{}: {reason}", dir.display())));
    }
    // What `convert` wrote; files of Paddle have no checksums.
    check_file_sums(dir)?;
    let mut weights = Weights::default();
    let mut missing = Vec::new();
    let source: Box<dyn Source> = match block::is_here(dir) {
        true => Box::new(block::Reader::new(dir)),
        false => Box::new(part::Reader::open(dir, columns)?),
    };
    for parameter in wanted {
        let ParameterSpec { name, shape, is_table } = parameter;
        if *is_table {
            match source.rows(name, shape[1])? {
                Some(rows) => drop(weights.tables.insert(name.clone(), rows)),
                None => missing.push(name.as_str()),
            }
        } else {
            match source.values(name, shape)? {
                Some(values) => drop(weights.dense.insert(name.clone(), values)),
                None => missing.push(name.as_str()),
            }
        }
    }
    if missing.is_empty() {
        return Ok(weights);
    }
    let reason = format!("it lacks {}", missing.join(", "));
    Err(Error::Input(format!("{}: {reason}", dir.display())))
}

/// One of the layouts on disk; nothing for a parameter that is not there.
trait Source {
    fn rows(&self, name: &str, dim: usize) -> Result<Option<Rows>, Error>;
    fn values(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, Error>;
}

/// Writes the weights of the model in `model` into the new directory `to`. Gives what was written:
/// names and descriptions.
///
/// # Errors
/// If the model is not whole, `to` is there already, or something cannot be written.
pub fn convert(model: &Path, to: &Path, format: Format) -> Result<Vec<(String, String)>, Error> {
    let opened = open_model(model)?;
    if to.exists() {
        return Err(write_error(to)(io::ErrorKind::AlreadyExists.into()));
    }
    let mut written = Vec::new();
    publish_dir(to, |to| -> Result<(), Error> {
        written = match format {
            Format::Safetensors => safetensors(model, &opened, to)?,
            Format::Npy => npy(model, &opened, to)?,
            Format::Text => part::write(model, &opened, to)?,
            Format::Block => block::write(model, &opened, to)?,
            Format::Parquet => parquet_files(model, &opened, to)?,
            Format::Onnx { table_limit } => {
                onnx::write(model, &opened, table_limit, &to.join(onnx::ONNX_FILE))?
            }
        };
        Ok(write_file_sums(to)?)
    })?;
    Ok(written)
}

#[cfg(feature = "parquet")]
fn parquet_files(
    model: &Path,
    opened: &OpenModel,
    to: &Path,
) -> Result<Vec<(String, String)>, Error> {
    parquet::write(model, opened, to)
}

#[cfg(not(feature = "parquet"))]
fn parquet_files(_: &Path, _: &OpenModel, _: &Path) -> Result<Vec<(String, String)>, Error> {
    Err(Error::Input("this program was built without the feature 'parquet'".into()))
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_path_buf();
    move |source| Error::Write { path: path.clone(), source }
}

/// The rows of a table, compared with their checksums.
pub(crate) fn read_rows(
    model: &Path,
    manifest: &ModelManifest,
    table: &ModelTable,
) -> Result<Rows, Error> {
    let read = |name: &str| check_file(model, manifest, name);
    let bytes = read(&table.values)?;
    let mut values = vec![0.0; table.rows as usize * table.dim];
    let rows = bytes.chunks_exact(table.encoding.row_bytes(table.dim));
    for (row, to) in rows.zip(values.chunks_exact_mut(table.dim)) {
        table.encoding.read(row, to);
    }
    let ids = match &table.keys {
        None => (0..table.rows).collect(),
        Some(keys) => {
            read(keys)?.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
        }
    };
    Ok(Rows { ids, values })
}

/// Ids and rows as tensors.
fn table_tensors(
    model: &Path,
    manifest: &ModelManifest,
    table: &ModelTable,
) -> Result<[(String, Tensor); 2], Error> {
    let Rows { ids, values } = read_rows(model, manifest, table)?;
    let odd = |e: regatta_tensor::Error| Error::Input(format!("table '{}': {e}", table.name));
    let n = ids.len();
    let ids = Tensor::from_u64(&[n], ids).map_err(odd)?;
    let rows = Tensor::from_f32(&[n, table.dim], values).map_err(odd)?;
    Ok([(format!("{}.ids", table.name), ids), (format!("{}.rows", table.name), rows)])
}

fn shape_text(tensor: &Tensor) -> String {
    format!("{}{:?}", tensor.dtype(), tensor.shape())
}

fn all_tensors(model: &Path, opened: &OpenModel) -> Result<Vec<(String, Tensor)>, Error> {
    let mut all = opened.params.clone();
    for table in &opened.manifest.tables {
        all.extend(table_tensors(model, &opened.manifest, table)?);
    }
    Ok(all)
}

fn safetensors(
    model: &Path,
    opened: &OpenModel,
    to: &Path,
) -> Result<Vec<(String, String)>, Error> {
    let all = all_tensors(model, opened)?;
    let metadata = Metadata::from([("model".to_string(), opened.manifest.about.name.clone())]);
    let named = all.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save_tensors(to.join("weights.safetensors"), named, &metadata)?;
    Ok(all.iter().map(|(name, tensor)| (name.clone(), shape_text(tensor))).collect())
}

fn npy(model: &Path, opened: &OpenModel, to: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut written = Vec::new();
    for (name, tensor) in all_tensors(model, opened)? {
        let file = format!("{}.npy", name.replace(['/', '\\'], "_"));
        let path = to.join(&file);
        write_npy(&path, &tensor).map_err(write_error(&path))?;
        written.push((file, shape_text(&tensor)));
    }
    Ok(written)
}

/// Writes numpy's format, version 1.0: a header of Python syntax, padded to 64 bytes, then the
/// elements.
///
/// # Errors
/// If the file is there already, or cannot be written.
pub fn write_npy(path: &Path, tensor: &Tensor) -> io::Result<()> {
    let (descr, bytes): (&str, &[u8]) = match tensor.data() {
        Data::F32(v) => ("<f4", bytemuck::cast_slice(v)),
        Data::F16(v) => ("<f2", bytemuck::cast_slice(v)),
        // numpy has no such type: the bits.
        Data::BF16(v) => ("<u2", bytemuck::cast_slice(v)),
        Data::I64(v) => ("<i8", bytemuck::cast_slice(v)),
        Data::U64(v) => ("<u8", bytemuck::cast_slice(v)),
    };
    let dims: String = tensor.shape().iter().map(|d| format!("{d}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Magic, version and length take 10 bytes, the line ends with a newline.
    let padding = (header.len() + 11).next_multiple_of(64) - header.len() - 11;
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let mut file = BufWriter::new(File::create_new(path)?);
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(bytes)?;
    file.into_inner().map_err(|e| e.into_error())?.sync_all()
}
