//! Paddle's `part-` layout: a folder with a number for each parameter. Tables are
//! `part-<server>-<shard>` files with a line for each row, `id v v ..`; dense parameters
//! `part-<server>` files with a line for each element, of which the first number is the weight.
//! `names.txt` says which parameter has which number.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

use regatta_checkpoint::OpenModel;
use regatta_tensor::Data;

use super::lines::{files, id, number, read_lines, write_lines};
use super::{Rows, Source, read_rows, shape_text, write_error};
use crate::Error;

/// Where the names of the numbers of parameters stand.
const NAMES_FILE: &str = "names.txt";

/// Writes a model.
pub(super) fn write(
    model: &Path,
    opened: &OpenModel,
    to: &Path,
) -> Result<Vec<(String, String)>, Error> {
    let (mut written, mut names) = (Vec::new(), String::new());
    let tables = opened.manifest.tables.iter();
    for (number, table) in tables.enumerate() {
        let rows = read_rows(model, &opened.manifest, table)?;
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

/// Such a directory, to be read.
pub(super) struct Reader<'a> {
    folders: BTreeMap<String, PathBuf>,
    columns: Option<&'a [usize]>,
}

impl<'a> Reader<'a> {
    pub(super) fn open(dir: &Path, columns: Option<&'a [usize]>) -> Result<Reader<'a>, Error> {
        let path = dir.join(NAMES_FILE);
        if !path.exists() {
            let reason = format!(
                "there is no {NAMES_FILE}, which tells the folders of parameters by lines such as \
                 '000 SparseFeatFactors', and there are no folders <table>.shard"
            );
            return Err(Error::Input(format!("{}: {reason}", dir.display())));
        }
        let mut folders = BTreeMap::new();
        read_lines(&path, |line| {
            let mut words = line.split_ascii_whitespace();
            let (Some(number), Some(name)) = (words.next(), words.next()) else {
                return Err("expected the number of a folder and the name of a parameter".into());
            };
            match folders.entry(name.to_string()) {
                Entry::Occupied(_) => Err(format!("'{name}' is there twice")),
                Entry::Vacant(free) => {
                    free.insert(dir.join(number));
                    Ok(())
                }
            }
        })?;
        Ok(Reader { folders, columns })
    }
}

/// The parts of a parameter.
fn parts(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let parts = files(folder, "part-", "")?;
    if parts.is_empty() {
        return Err(Error::Input(format!("{} holds no part- files", folder.display())));
    }
    match parts.iter().find(|part| part.extension().is_some_and(|e| e == "gz")) {
        Some(part) => Err(Error::Input(format!("{}: unpack it first", part.display()))),
        None => Ok(parts),
    }
}

impl Source for Reader<'_> {
    fn rows(&self, name: &str, dim: usize) -> Result<Option<Rows>, Error> {
        let Some(folder) = self.folders.get(name) else { return Ok(None) };
        let mut rows = Rows::default();
        let mut seen = std::collections::HashSet::new();
        for path in parts(folder)? {
            read_lines(&path, |line| {
                let mut words = line.split_ascii_whitespace();
                let id = id(words.next().unwrap_or_default())?;
                if !seen.insert(id) {
                    return Err(format!("id {id} is there twice"));
                }
                rows.ids.push(id);
                pick(words, self.columns, dim, &mut rows.values)
            })?;
        }
        Ok(Some(rows))
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, Error> {
        let Some(folder) = self.folders.get(name) else { return Ok(None) };
        let mut values = Vec::new();
        for path in parts(folder)? {
            read_lines(&path, |line| {
                values.push(number(line.split_ascii_whitespace().next().unwrap_or_default())?);
                Ok(())
            })?;
        }
        let expected: usize = shape.iter().product();
        if values.len() == expected {
            return Ok(Some(values));
        }
        let (folder, n) = (folder.display(), values.len());
        Err(Error::Input(format!("{folder}: {n} of {expected} numbers of '{name}' {shape:?}")))
    }
}

/// Appends the weights among the numbers of a row.
fn pick<'w>(
    words: impl Iterator<Item = &'w str>,
    columns: Option<&[usize]>,
    dim: usize,
    values: &mut Vec<f32>,
) -> Result<(), String> {
    let numbers = words.map(number).collect::<Result<Vec<f32>, _>>()?;
    let n = numbers.len();
    match columns {
        None if n == dim => values.extend(numbers),
        None if n > dim => {
            return Err(format!(
                "{n} numbers after the id, of which {dim} are weights: say which with --columns"
            ));
        }
        None => return Err(format!("{n} of {dim} numbers after the id")),
        Some(columns) => {
            for &column in columns {
                let value = numbers.get(column);
                let missing = || format!("{n} numbers after the id: there is no column {column}");
                values.push(*value.ok_or_else(missing)?);
            }
        }
    }
    Ok(())
}
