//! The files that servers write, and how any number of servers (or one machine) reads them back.
//!
//! A directory holds one `server-<i>-of-<n>.safetensors` per server. Table rows are there as keys,
//! rows of words (weights and optimizer state) and a word of bookkeeping per row; pieces of dense
//! parameters carry their position in their name.

use std::path::{Path, PathBuf};

use regatta_checkpoint::{Metadata, TensorFile, load_tensors, save_tensors};
use regatta_table::{Row, RowBody, SaveMode, SparseTable};
use regatta_tensor::Tensor;

use crate::Error;
use crate::partition::server_of;

/// A piece of a dense parameter to be written.
pub(crate) struct PieceOut<'a> {
    pub(crate) param: &'a str,
    pub(crate) start: usize,
    pub(crate) weights: &'a [f32],
    pub(crate) states: Vec<(&'static str, &'a [f32])>,
}

/// What a row is, beside its words: days unseen, and what kind of body it has.
const KIND_BASE: u64 = 0;
const KIND_EXTENDED: u64 = 1;
const KIND_CANDIDATE: u64 = 2;

fn file_error(e: regatta_checkpoint::Error) -> Error {
    Error::Job(e.to_string())
}

pub(crate) fn save_server<'a>(
    dir: &str,
    server: usize,
    servers: usize,
    tables: impl Iterator<Item = (&'a str, &'a SparseTable)>,
    pieces: &[PieceOut<'_>],
) -> Result<(), Error> {
    let mut out: Vec<(String, Tensor)> = Vec::new();
    for (name, table) in tables {
        table_tensors(name, table, &mut out)?;
    }
    for piece in pieces {
        let mut add = |what: &str, values: &[f32]| {
            let tensor = Tensor::from_f32(&[values.len()], values.to_vec()).map_err(bad)?;
            out.push((format!("dense/{}/{}/{what}", piece.param, piece.start), tensor));
            Ok::<(), Error>(())
        };
        add("weights", piece.weights)?;
        piece.states.iter().try_for_each(|(name, values)| add(name, values))?;
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::Job(format!("cannot create {dir}: {e}")))?;
    let path = Path::new(dir).join(format!("server-{server}-of-{servers}.safetensors"));
    let metadata = Metadata::from([("servers".to_string(), servers.to_string())]);
    let tensors = out.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save_tensors(&path, tensors, &metadata).map_err(file_error)
}

fn bad(e: regatta_tensor::Error) -> Error {
    Error::Job(e.to_string())
}

/// Appends the keys, words and bookkeeping of all rows, shard by shard.
fn table_tensors(
    name: &str,
    table: &SparseTable,
    out: &mut Vec<(String, Tensor)>,
) -> Result<(), Error> {
    let width: usize = table.row_parts().iter().map(|(_, n)| n).sum();
    let (mut keys, mut about, mut words) = (Vec::new(), Vec::new(), Vec::new());
    for shard in 0..table.n_shards() {
        let rows = table
            .export(shard, SaveMode::All)
            .map_err(|e| Error::Job(format!("table '{name}': {e}")))?;
        for row in rows.rows() {
            let (kind, body, extra): (u64, &[f32], u64) = match row.body {
                RowBody::Base(words) => (KIND_BASE, words, 0),
                RowBody::Extended(words) => (KIND_EXTENDED, words, 0),
                RowBody::Candidate { appearances } => {
                    (KIND_CANDIDATE, &[], u64::from(appearances))
                }
            };
            keys.push(row.key);
            let bits = kind | u64::from(row.changed) << 2 | u64::from(row.unseen_days) << 3;
            about.push(bits | extra << 32);
            words.extend_from_slice(body);
            // Rows of several stages take the room of the longest.
            words.resize(keys.len() * width, 0.0);
        }
    }
    let n = keys.len();
    out.push((format!("table/{name}/keys"), Tensor::from_u64(&[n], keys).map_err(bad)?));
    out.push((format!("table/{name}/about"), Tensor::from_u64(&[n], about).map_err(bad)?));
    out.push((format!("table/{name}/rows"), Tensor::from_f32(&[n, width], words).map_err(bad)?));
    Ok(())
}

/// The files of all servers, checked to be complete.
fn server_files(dir: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found: Vec<(usize, usize, PathBuf)> = Vec::new();
    let entries =
        std::fs::read_dir(dir).map_err(|e| Error::Job(format!("cannot read {dir}: {e}")))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbers = name
            .strip_prefix("server-")
            .and_then(|n| n.strip_suffix(".safetensors"))
            .and_then(|n| n.split_once("-of-"))
            .and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        if let Some((i, n)) = numbers {
            found.push((i, n, entry.path()));
        }
    }
    found.sort();
    let Some(&(_, n, _)) = found.first() else {
        return Err(Error::Job(format!("{dir} holds no parts of servers")));
    };
    if let Some((_, other, path)) = found.iter().find(|f| f.1 != n) {
        return Err(Error::Job(format!(
            "{dir} holds parts of jobs with {n} and with {other} servers ({})",
            path.display()
        )));
    }
    let missing: Vec<String> = (0..n)
        .filter(|i| !found.iter().any(|f| f.0 == *i))
        .map(|i| format!("server-{i}-of-{n}.safetensors"))
        .collect();
    if !missing.is_empty() {
        return Err(Error::Job(format!("{dir} is not complete: {} missing", missing.join(", "))));
    }
    Ok(found.into_iter().map(|f| f.2).collect())
}

fn for_each_file(
    dir: &str,
    mut visit: impl FnMut(&TensorFile) -> Result<(), Error>,
) -> Result<(), Error> {
    for path in server_files(dir)? {
        visit(&load_tensors(&path).map_err(file_error)?)?;
    }
    Ok(())
}

/// Takes those rows of a table that belong to this server.
pub(crate) fn load_table(
    dir: &str,
    name: &str,
    table: &SparseTable,
    server: usize,
    servers: usize,
) -> Result<(), Error> {
    for_each_file(dir, |file| {
        let get = |what: &str| file.tensors.get(&format!("table/{name}/{what}"));
        let (Some(keys), Some(about), Some(rows)) = (get("keys"), get("about"), get("rows")) else {
            return Err(Error::Job(format!("{dir} holds no table '{name}'")));
        };
        let width = rows.shape().get(1).copied().unwrap_or(0);
        let base = base_len(table).min(width);
        let all = keys.u64().iter().zip(about.u64()).zip(rows.f32().chunks(width.max(1)));
        let own = all.filter(|((key, _), _)| server_of(**key, servers) == server);
        let rows = own.map(|((&key, &about), words)| row(key, about, words, base));
        table.import(rows).map_err(|e| Error::Job(format!("{dir}, table '{name}': {e}")))?;
        Ok(())
    })
}

/// Words of a row without its second stage.
fn base_len(table: &SparseTable) -> usize {
    let parts = table.row_parts();
    parts.iter().take_while(|(name, _)| !name.starts_with("embedx")).map(|(_, n)| n).sum()
}

fn row(key: u64, about: u64, words: &[f32], base: usize) -> Row<'_> {
    let body = match about & 3 {
        KIND_CANDIDATE => RowBody::Candidate { appearances: (about >> 32) as u32 },
        KIND_EXTENDED => RowBody::Extended(words),
        _ => RowBody::Base(&words[..base]),
    };
    let unseen_days = (about as u32) >> 3;
    Row { key, unseen_days, changed: about & 4 != 0, body }
}

/// Fills a piece of a dense parameter and its state from the pieces that were written.
pub(crate) fn load_piece<'a>(
    dir: &str,
    param: &str,
    start: usize,
    weights: &mut [f32],
    states: impl Iterator<Item = (&'static str, &'a mut [f32])>,
) -> Result<(), Error> {
    let states: Vec<_> = states.collect();
    let n = weights.len();
    let mut covered = 0;
    let mut targets: Vec<(&str, &mut [f32])> = vec![("weights", weights)];
    targets.extend(states);
    for_each_file(dir, |file| {
        for (name, tensor) in &file.tensors {
            let Some((at, what)) = piece_name(name, param) else { continue };
            let Some((_, target)) = targets.iter_mut().find(|(t, _)| *t == what) else { continue };
            let values = tensor.f32();
            if target.len() != n {
                // One number for the whole parameter: the same in every piece.
                target.copy_from_slice(values);
                continue;
            }
            let (from, to) = (at.max(start), (at + values.len()).min(start + n));
            if from < to {
                target[from - start..to - start].copy_from_slice(&values[from - at..to - at]);
                covered += if what == "weights" { to - from } else { 0 };
            }
        }
        Ok(())
    })?;
    if covered != n {
        return Err(Error::Job(format!("{dir} holds {covered} of {n} floats of '{param}'")));
    }
    Ok(())
}

/// Position and content of a piece, if it is one of this parameter.
fn piece_name<'a>(name: &'a str, param: &str) -> Option<(usize, &'a str)> {
    let rest = name.strip_prefix("dense/")?.strip_prefix(param)?.strip_prefix('/')?;
    let (at, what) = rest.split_once('/')?;
    Some((at.parse().ok()?, what))
}

/// A dense parameter of `len` floats as servers have saved it.
///
/// # Errors
/// If the directory is not complete or does not hold the parameter.
pub fn load_dense(dir: &str, param: &str, len: usize) -> Result<Vec<f32>, Error> {
    let mut weights = vec![0.0; len];
    load_piece(dir, param, 0, &mut weights, std::iter::empty())?;
    Ok(weights)
}

/// Calls `row(key, weights)` for every row of a table as servers have saved it.
///
/// # Errors
/// If the directory is not complete or does not hold the table.
pub fn load_rows(
    dir: &str,
    table: &str,
    dim: usize,
    mut row: impl FnMut(u64, &[f32]),
) -> Result<(), Error> {
    for_each_file(dir, |file| {
        let get = |what: &str| file.tensors.get(&format!("table/{table}/{what}"));
        let (Some(keys), Some(about), Some(rows)) = (get("keys"), get("about"), get("rows")) else {
            return Err(Error::Job(format!("{dir} holds no table '{table}'")));
        };
        let width = rows.shape().get(1).copied().unwrap_or(0);
        if width < dim {
            return Err(Error::Job(format!("{dir}, table '{table}': rows of {width} words")));
        }
        for ((&key, &about), words) in
            keys.u64().iter().zip(about.u64()).zip(rows.f32().chunks(width.max(1)))
        {
            if about & 3 != KIND_CANDIDATE {
                row(key, &words[..dim]);
            }
        }
        Ok(())
    })
}
