//! The weights of a model as plain files for other programs, and back from text.
//!
//! [`convert`] writes safetensors, npy or Paddle's text; [`read_text`] reads such text again.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use regatta_checkpoint::{Metadata, ModelTable, OpenModel, open_model, save_tensors};
use regatta_tensor::{Data, Tensor};

use crate::Error;

/// A format of plain files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `weights.safetensors`: parameters by name, tables as `<name>.ids` and `<name>.rows`.
    Safetensors,
    /// One `.npy` file for each of these.
    Npy,
    /// Paddle's layout: `<number of the parameter>/part-<server>-<shard>` with a line for each row
    /// (`id v v ...`), `part-<server>` with a line for each element of a dense parameter, and
    /// `names.txt` with the names of the numbers. All digits that tell a float from others are there.
    Text,
}

/// The rows of a table with their ids, in memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    /// The ids.
    pub ids: Vec<u64>,
    /// As many floats for each.
    pub values: Vec<f32>,
}

/// Writes the weights of the model in `model` into the new directory `to`. Gives what was written:
/// names and descriptions.
///
/// # Errors
/// If the model is not whole, `to` is there already, or something cannot be written.
pub fn convert(model: &Path, to: &Path, format: Format) -> Result<Vec<(String, String)>, Error> {
    let opened = open_model(model)?;
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(write_error(parent))?;
    }
    fs::create_dir(to).map_err(write_error(to))?;
    let done = match format {
        Format::Safetensors => safetensors(model, &opened, to),
        Format::Npy => npy(model, &opened, to),
        Format::Text => text(model, &opened, to),
    };
    done.inspect_err(|_| {
        // Half of a model must not look like one.
        let _ = fs::remove_dir_all(to);
    })
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_path_buf();
    move |source| Error::Write { path: path.clone(), source }
}

fn read_rows(model: &Path, table: &ModelTable) -> Result<Rows, Error> {
    let read = |name: &str| {
        let path = model.join(name);
        fs::read(&path).map_err(|source| Error::Map { path, source })
    };
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
fn table_tensors(model: &Path, table: &ModelTable) -> Result<[(String, Tensor); 2], Error> {
    let Rows { ids, values } = read_rows(model, table)?;
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
        all.extend(table_tensors(model, table)?);
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

/// Version 1.0 of numpy's format: a header of Python syntax, padded to 64 bytes, then the elements.
fn write_npy(path: &Path, tensor: &Tensor) -> io::Result<()> {
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

/// Where the names of the numbers of parameters stand.
const NAMES_FILE: &str = "names.txt";

fn text(model: &Path, opened: &OpenModel, to: &Path) -> Result<Vec<(String, String)>, Error> {
    let (mut written, mut names) = (Vec::new(), String::new());
    let tables = opened.manifest.tables.iter();
    for (number, table) in tables.enumerate() {
        let rows = read_rows(model, table)?;
        let path = folder(to, number)?.join("part-000-00000");
        let lines = rows.ids.iter().zip(rows.values.chunks_exact(table.dim));
        write_lines(
            &path,
            lines.map(|(id, row)| {
                row.iter().fold(id.to_string(), |line, x| line + &format!(" {x}"))
            }),
        )?;
        names.push_str(&format!("{number:03} {} {}\n", table.name, table.dim));
        let what = format!("{} rows of {} floats", rows.ids.len(), table.dim);
        written.push((format!("{number:03} {}", table.name), what));
    }
    let first = opened.manifest.tables.len();
    for (number, (name, tensor)) in opened.params.iter().enumerate() {
        let number = first + number;
        let Data::F32(values) = tensor.data() else {
            let reason = format!("'{name}' is {}, but text holds f32 only", tensor.dtype());
            return Err(Error::Input(reason));
        };
        let path = folder(to, number)?.join("part-000");
        write_lines(&path, values.iter().map(ToString::to_string))?;
        let dims: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
        names.push_str(&format!("{number:03} {name} {}\n", dims.join("x")));
        written.push((format!("{number:03} {name}"), shape_text(tensor)));
    }
    let path = to.join(NAMES_FILE);
    fs::write(&path, names).map_err(write_error(&path))?;
    Ok(written)
}

fn folder(to: &Path, number: usize) -> Result<PathBuf, Error> {
    let folder = to.join(format!("{number:03}"));
    fs::create_dir(&folder).map_err(write_error(&folder))?;
    Ok(folder)
}

fn write_lines(path: &Path, lines: impl Iterator<Item = String>) -> Result<(), Error> {
    let write = || {
        let mut file = BufWriter::new(File::create_new(path)?);
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.into_inner().map_err(|e| e.into_error())?.sync_all()
    };
    write().map_err(write_error(path))
}

/// Reads the rows of a table from the folder of its `part-` files, ours or Paddle's: the first `dim`
/// numbers after `skip` others of each line.
///
/// # Errors
/// If there are no such files, or a line holds something else (named with its place).
pub fn read_text(folder: &Path, skip: usize, dim: usize) -> Result<Rows, Error> {
    let read_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Map { path, source }
    };
    let entries = fs::read_dir(folder).map_err(read_error(folder))?;
    let paths = entries.map(|entry| entry.map(|e| e.path()));
    let mut parts: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(read_error(folder))?;
    parts.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("part-")));
    parts.sort();
    if parts.is_empty() {
        return Err(Error::Input(format!("{} holds no part- files", folder.display())));
    }
    let mut rows = Rows::default();
    for path in parts {
        let file = BufReader::new(File::open(&path).map_err(read_error(&path))?);
        for (i, line) in file.lines().enumerate() {
            let line = line.map_err(read_error(&path))?;
            let row = parse_row(&line, skip, dim);
            let (id, values) = row.map_err(|reason| {
                Error::Input(format!("{}:{}: {reason}", path.display(), i + 1))
            })?;
            rows.ids.push(id);
            rows.values.extend(values);
        }
    }
    Ok(rows)
}

fn parse_row(line: &str, skip: usize, dim: usize) -> Result<(u64, Vec<f32>), String> {
    let mut words = line.split_ascii_whitespace();
    let id = words.next().unwrap_or_default();
    let id = id.parse().map_err(|_| format!("'{id}' is no id"))?;
    let number = |word: &str| word.parse::<f32>().map_err(|_| format!("'{word}' is no number"));
    let values: Vec<f32> = words.skip(skip).take(dim).map(number).collect::<Result<_, _>>()?;
    match values.len() == dim {
        true => Ok((id, values)),
        false => Err(format!("{} of {dim} numbers after the id and {skip} others", values.len())),
    }
}
