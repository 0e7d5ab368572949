//! Saved models of servers, written: one file of plain tensors per server.

use std::fs;
use std::path::Path;

use regatta_table::{DensePiece, Receipt, Row, RowBody, SaveMode, SparseTable};
use regatta_tensor::{DType, Tensor};

use super::{
    CONTENT, KIND_BASE, KIND_CANDIDATE, KIND_EXTENDED, NOT_FINITE, SAVE_ID, WEIGHTS, WEIGHTS_ALONE,
    part_of, steps_key,
};
use crate::persistables::has_non_finite;
use crate::spool::Spool;
use crate::tensors::{Column, save_columns};
use crate::{Error, Metadata, save_tensors};

/// Which part of which save a file is.
#[derive(Debug, Clone, Copy)]
pub struct SavePart {
    /// Number of the server.
    pub server: usize,
    /// How many there are.
    pub servers: usize,
    /// The same for all parts of one save.
    pub id: u64,
}

/// Writes a server's part of a saved model; tells the tables once it is on disk.
///
/// # Errors
/// If a table cannot give its rows, or the file cannot be written.
pub fn save_part<'a>(
    dir: &Path,
    part: &SavePart,
    mode: SaveMode,
    tables: impl Iterator<Item = (&'a str, &'a SparseTable)>,
    pieces: &[DensePiece],
) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let out = piece_tensors(dir, pieces)?;
    let mut spooled: Vec<(String, Spool)> = Vec::new();
    let mut not_finite = None;
    let mut stored: Vec<(&str, &SparseTable, Receipt)> = Vec::new();
    let mut counted: Vec<(String, String)> = Vec::new();
    for (name, table) in tables {
        counted.push((steps_key(name), table.steps().to_string()));
        let rows = spool_table(dir, (name, table), mode, &mut spooled)?;
        not_finite = not_finite.or(rows.not_finite.then(|| part_of(name, "rows")));
        let receipts = rows.receipts;
        stored.extend(receipts.into_iter().map(|receipt| (name, table, receipt)));
    }
    let SavePart { server, servers, id } = part;
    let path = dir.join(format!("server-{server}-of-{servers}.safetensors"));
    let mut metadata = Metadata::from([
        ("servers".to_string(), servers.to_string()),
        ("mode".to_string(), mode.to_string()),
        (SAVE_ID.to_string(), format!("{id:016x}")),
    ]);
    metadata.extend(counted);
    // Whoever publishes the whole may refuse it, without reading it again.
    let spoilt = out.iter().find(|(_, tensor)| has_non_finite(tensor));
    let spoilt = spoilt.map(|(name, _)| name.clone()).or(not_finite);
    metadata.extend(spoilt.map(|name| (NOT_FINITE.to_string(), name)));
    let tensors = out.iter().map(|(name, tensor)| (name.as_str(), Column::Memory(tensor)));
    let files = spooled.iter().map(|(name, spool)| (name.as_str(), Column::Spool(spool)));
    save_columns(&path, tensors.chain(files).collect(), &metadata)?;
    let saved = |(name, table, receipt): &(&str, &SparseTable, Receipt)| {
        table.saved(receipt).map_err(Error::table(dir, name))
    };
    stored.iter().try_for_each(saved)
}

/// Rows of a table that come from elsewhere: weights without optimizer state.
#[derive(Debug, Clone, PartialEq)]
pub struct TableWeights {
    /// The table.
    pub name: String,
    /// Floats per row.
    pub dim: usize,
    /// The ids of the rows.
    pub ids: Vec<u64>,
    /// The rows, one after the other.
    pub values: Vec<f32>,
}

/// Writes weights that come from elsewhere into a directory, as if one server had saved them.
/// Servers that load them begin with a fresh optimizer state.
///
/// # Errors
/// If the numbers of a table do not fit together, or the file cannot be written.
pub fn save_weights(
    dir: &Path,
    tables: Vec<TableWeights>,
    dense: &[(String, Vec<f32>)],
) -> Result<(), Error> {
    let pieces = dense.iter().map(|(name, weights)| {
        let (name, weights) = (name.clone(), weights.clone());
        DensePiece { name, offset: 0, weights, states: vec![] }
    });
    let mut out = piece_tensors(dir, &pieces.collect::<Vec<_>>())?;
    for TableWeights { name, dim, ids, values } in tables {
        let n = ids.len();
        let about = vec![KIND_BASE; n];
        out.push((part_of(&name, "keys"), Tensor::from_u64(&[n], ids).map_err(unfit(dir))?));
        out.push((part_of(&name, "about"), Tensor::from_u64(&[n], about).map_err(unfit(dir))?));
        let rows = Tensor::from_f32(&[n, dim], values).map_err(unfit(dir))?;
        out.push((part_of(&name, "rows"), rows));
    }
    let metadata = Metadata::from([
        ("servers".to_string(), "1".to_string()),
        ("mode".to_string(), SaveMode::All.to_string()),
        (CONTENT.to_string(), WEIGHTS_ALONE.to_string()),
    ]);
    let tensors = out.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let path = dir.join("server-0-of-1.safetensors");
    save_tensors(&path, tensors, &metadata)
}

/// Pieces of dense parameters as tensors, with their positions in their names.
pub(super) fn piece_tensors(
    dir: &Path,
    pieces: &[DensePiece],
) -> Result<Vec<(String, Tensor)>, Error> {
    let mut out: Vec<(String, Tensor)> = Vec::new();
    for piece in pieces {
        let mut add = |what: &str, values: &[f32]| {
            let tensor = Tensor::from_f32(&[values.len()], values.to_vec()).map_err(unfit(dir))?;
            out.push((format!("dense/{}/{}/{what}", piece.name, piece.offset), tensor));
            Ok::<(), Error>(())
        };
        add(WEIGHTS, &piece.weights)?;
        piece.states.iter().try_for_each(|(name, values)| add(name, values))?;
    }
    Ok(out)
}

/// What was saved of a table by way of files.
struct SpooledRows {
    receipts: Vec<Receipt>,
    /// A number is NaN or infinite.
    not_finite: bool,
}

/// The keys, words and bookkeeping of all rows, shard by shard. The number of rows is known at the
/// end only, and all of them may be more than there is memory for: they go through files.
fn spool_table(
    dir: &Path,
    (name, table): (&str, &SparseTable),
    mode: SaveMode,
    out: &mut Vec<(String, Spool)>,
) -> Result<SpooledRows, Error> {
    let width: usize = table.row_parts().iter().map(|(_, n)| n).sum();
    let mut keys = Spool::new(dir, DType::U64, None)?;
    let mut about = Spool::new(dir, DType::U64, None)?;
    let mut words = Spool::new(dir, DType::F32, Some(width))?;
    let write =
        |spool: &mut Spool, bytes: &[u8]| spool.push(bytes).map_err(Error::io("write", dir));
    let (mut receipts, mut not_finite) = (Vec::new(), false);
    let mut padded = vec![0.0f32; width];
    for shard in 0..table.n_shards() {
        let rows = table.export(shard, mode).map_err(Error::table(dir, name))?;
        for row in rows.rows() {
            let (bits, body) = about_row(&row);
            // Rows of several stages take the room of the longest.
            padded.fill(0.0);
            padded[..body.len()].copy_from_slice(body);
            not_finite |= body.iter().any(|x| !x.is_finite());
            write(&mut keys, &row.key.to_le_bytes())?;
            write(&mut about, &bits.to_le_bytes())?;
            write(&mut words, bytemuck::cast_slice(&padded))?;
        }
        receipts.push(rows.receipt());
    }
    for (what, mut spool) in [("keys", keys), ("about", about), ("rows", words)] {
        spool.finish().map_err(Error::io("write", dir))?;
        out.push((part_of(name, what), spool));
    }
    Ok(SpooledRows { receipts, not_finite })
}

/// The bookkeeping of a row as files hold it, and its words.
fn about_row<'a>(row: &Row<'a>) -> (u64, &'a [f32]) {
    let (kind, body, extra): (u64, &[f32], u64) = match row.body {
        RowBody::Base(words) => (KIND_BASE, words, 0),
        RowBody::Extended(words) => (KIND_EXTENDED, words, 0),
        RowBody::Candidate { appearances } => (KIND_CANDIDATE, &[], u64::from(appearances)),
    };
    let bits = kind | u64::from(row.changed) << 2 | u64::from(row.unseen_days) << 3;
    (bits | extra << 32, body)
}

/// Values that do not fill the shape that they should have.
fn unfit(dir: &Path) -> impl Fn(regatta_tensor::Error) -> Error {
    move |e| Error::refused(dir, e.to_string())
}
