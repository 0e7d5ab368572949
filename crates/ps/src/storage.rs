//! The files that servers write, and how any number of servers (or one machine) reads them back.
//!
//! Checkpoints have the format of `regatta_checkpoint`: [`Moment`] is a server's part of one. Saved
//! models are plain tensors: a directory holds one `server-<i>-of-<n>.safetensors` per server. Table rows are there as keys,
//! rows of words (weights and optimizer state) and a word of bookkeeping per row; pieces of dense
//! parameters carry their position in their name.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use regatta_checkpoint::{
    Checkpoint, Metadata, OpenTensors, part_name, save_table, save_tensors, write_tensors,
};
use regatta_table::{Cut, DensePiece, Receipt, Row, RowBody, SaveMode, Scope, SparseTable};
use regatta_tensor::{DType, Tensor};

use crate::Error;
use crate::cut::CutScope;
use crate::partition::server_of;

/// Threads that load a table.
const LOAD_THREADS: usize = 4;
/// Where a checkpoint says how far the learning rate's schedule was.
const STEPS: &str = "steps";

/// What a server holds at one moment, to be written while training goes on.
pub(crate) struct Moment {
    cuts: Vec<Cut>,
    pieces: Vec<DensePiece>,
    steps: u64,
    /// Steps of each table.
    table_steps: Vec<u64>,
}

impl Moment {
    /// Keeps this moment of all tables; whatever changes from now on is put aside until
    /// [`Moment::end`].
    pub(crate) fn keep<'a>(
        tables: impl Iterator<Item = (&'a str, &'a SparseTable)>,
        scope: CutScope,
        pieces: Vec<DensePiece>,
        steps: u64,
    ) -> Result<Moment, Error> {
        let scope = match scope {
            CutScope::Whole | CutScope::Base => Scope::Rows(SaveMode::All),
            CutScope::Changes => Scope::Changes,
        };
        let mut kept: Vec<(&SparseTable, Cut)> = Vec::new();
        for (name, table) in tables {
            match table.cut(scope) {
                Ok(cut) => kept.push((table, cut)),
                Err(e) => {
                    kept.into_iter().try_for_each(|(t, cut)| t.end_cut(cut, false)).ok();
                    return Err(Error::usage(format!("table '{name}': {e}")));
                }
            }
        }
        let table_steps = kept.iter().map(|(table, _)| table.steps()).collect();
        let cuts = kept.into_iter().map(|(_, cut)| cut).collect();
        Ok(Moment { cuts, pieces, steps, table_steps })
    }

    /// Writes it as the parts of server `index` of so many into the directory of a checkpoint.
    /// `tables` are those that it was kept of.
    pub(crate) fn write(
        &mut self,
        dir: &str,
        (index, servers): (usize, usize),
        tables: &[(&str, &SparseTable)],
    ) -> Result<Vec<regatta_checkpoint::Part>, Error> {
        let own = format!("server-{index}-of-{servers}");
        let dir = Path::new(dir);
        let mut parts = Vec::new();
        for ((name, table), cut) in tables.iter().zip(&self.cuts) {
            let file = part_name(name, &format!("{own}.rows"));
            parts.push(save_table(dir, &file, name, table, cut).map_err(file_error)?.part);
        }
        let tensors = piece_tensors(&std::mem::take(&mut self.pieces))?;
        let mut metadata = Metadata::from([(STEPS.to_string(), self.steps.to_string())]);
        let counted = tables.iter().map(|(name, _)| *name).zip(&self.table_steps);
        metadata.extend(counted.map(|(name, steps)| (steps_key(name), steps.to_string())));
        let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let file = format!("{own}.safetensors");
        parts.push(write_tensors(dir, &file, named, &metadata).map_err(file_error)?);
        Ok(parts)
    }

    /// Ends it. If it is `stored`, changes of the tables are counted from it.
    pub(crate) fn end(self, tables: &[(&str, &SparseTable)], stored: bool) -> Result<(), Error> {
        let ended = tables.iter().zip(self.cuts).map(|((name, table), cut)| {
            table.end_cut(cut, stored).map_err(|e| Error::usage(format!("table '{name}': {e}")))
        });
        // All of them are ended, whatever the first one says.
        ended.collect::<Vec<_>>().into_iter().collect()
    }
}

/// Puts the rows of a table in a checkpoint that belong to this server into a table that is empty.
pub(crate) fn restore_table(
    checkpoint: &Checkpoint,
    name: &str,
    table: &SparseTable,
    (index, servers): (usize, usize),
) -> Result<(), Error> {
    let saved = checkpoint.table(name).map_err(file_error)?;
    let own = |key: u64| server_of(key, servers) == index;
    saved.load_into(table, own, LOAD_THREADS).map_err(file_error).map(|_| ())
}

/// The ids of a table in a checkpoint that belong to this server.
pub(crate) fn saved_keys(
    checkpoint: &Checkpoint,
    name: &str,
    (index, servers): (usize, usize),
) -> Result<Vec<u64>, Error> {
    let mut keys = Vec::new();
    let own = |key: u64| server_of(key, servers) == index;
    let saved = checkpoint.table(name).map_err(file_error)?;
    saved
        .for_each(|row| {
            keys.extend(Some(row.key).filter(|key| own(*key)));
            Ok(())
        })
        .map_err(file_error)?;
    Ok(keys)
}

/// Where a file says how many steps a table has had.
fn steps_key(table: &str) -> String {
    format!("{STEPS}/{table}")
}

/// How many steps tables have had, by the files of a saved model or of a checkpoint.
#[derive(Default)]
pub(crate) struct TableSteps(Metadata);

impl TableSteps {
    pub(crate) fn read(&mut self, metadata: &Metadata) {
        let counts = metadata.iter().filter(|(key, _)| key.starts_with(STEPS));
        self.0.extend(counts.map(|(key, steps)| (key.clone(), steps.clone())));
    }

    /// 0 if no file says.
    pub(crate) fn of(&self, table: &str) -> u64 {
        self.0.get(&steps_key(table)).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

/// The pieces of dense parameters in a checkpoint of servers, how many updates there were, and how
/// many of each table.
pub(crate) fn restore_pieces(
    checkpoint: &Checkpoint,
) -> Result<(Vec<DensePiece>, u64, TableSteps), Error> {
    let (mut pieces, mut steps, mut of_tables) = (Vec::new(), 0, TableSteps::default());
    let names = checkpoint.tensor_parts().map(|part| part.name.clone());
    for name in names.filter(|name| name.starts_with("server-")).collect::<Vec<_>>() {
        let file = checkpoint.tensors(&name).map_err(file_error)?;
        let updates = file.metadata.get(STEPS).and_then(|n| n.parse::<u64>().ok());
        let Some(updates) = updates else {
            let path = checkpoint.path().display();
            return Err(Error::usage(format!(
                "{path}: {name} does not say how many updates it is of"
            )));
        };
        // All servers count the same updates.
        steps = updates.max(steps);
        of_tables.read(&file.metadata);
        pieces.extend(dense_pieces(file.tensors));
    }
    Ok((pieces, steps, of_tables))
}

/// Which part of which save a file is.
pub(crate) struct Part {
    pub(crate) server: usize,
    pub(crate) servers: usize,
    /// The same for all parts of one save.
    pub(crate) id: u64,
}

/// What a row is, beside its words: days unseen, and what kind of body it has.
const KIND_BASE: u64 = 0;
const KIND_EXTENDED: u64 = 1;
const KIND_CANDIDATE: u64 = 2;

/// What the values of a dense piece are called, beside the names of its states.
const WEIGHTS: &str = "weights";
/// Where a file says which save it belongs to.
const SAVE_ID: &str = "save";
/// Where a file says what it holds, if it holds less than a server does.
const CONTENT: &str = "content";
/// Weights that come from elsewhere, without optimizer state.
const WEIGHTS_ALONE: &str = "weights";

fn file_error(e: regatta_checkpoint::Error) -> Error {
    Error::usage(e.to_string())
}

/// Writes a server's part of a saved model; tells the tables once it is on disk.
pub(crate) fn save_part<'a>(
    dir: &str,
    part: &Part,
    mode: SaveMode,
    tables: impl Iterator<Item = (&'a str, &'a SparseTable)>,
    pieces: &[DensePiece],
) -> Result<(), Error> {
    let mut out = piece_tensors(pieces)?;
    let mut stored: Vec<(&str, &SparseTable, Receipt)> = Vec::new();
    let mut counted: Vec<(String, String)> = Vec::new();
    for (name, table) in tables {
        counted.push((steps_key(name), table.steps().to_string()));
        let receipts = table_tensors(name, table, mode, &mut out)?;
        stored.extend(receipts.into_iter().map(|receipt| (name, table, receipt)));
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::usage(format!("cannot create {dir}: {e}")))?;
    let Part { server, servers, id } = part;
    let path = Path::new(dir).join(format!("server-{server}-of-{servers}.safetensors"));
    let mut metadata = Metadata::from([
        ("servers".to_string(), servers.to_string()),
        ("mode".to_string(), mode.to_string()),
        (SAVE_ID.to_string(), format!("{id:016x}")),
    ]);
    metadata.extend(counted);
    let tensors = out.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save_tensors(&path, tensors, &metadata).map_err(file_error)?;
    let saved = |(name, table, receipt): &(&str, &SparseTable, Receipt)| {
        table.saved(receipt).map_err(|e| Error::usage(format!("table '{name}': {e}")))
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
    let mut out = piece_tensors(&pieces.collect::<Vec<_>>())?;
    for TableWeights { name, dim, ids, values } in tables {
        let n = ids.len();
        let about = vec![KIND_BASE; n];
        out.push((format!("table/{name}/keys"), Tensor::from_u64(&[n], ids).map_err(bad)?));
        out.push((format!("table/{name}/about"), Tensor::from_u64(&[n], about).map_err(bad)?));
        let rows = Tensor::from_f32(&[n, dim], values).map_err(bad)?;
        out.push((format!("table/{name}/rows"), rows));
    }
    let metadata = Metadata::from([
        ("servers".to_string(), "1".to_string()),
        ("mode".to_string(), SaveMode::All.to_string()),
        (CONTENT.to_string(), WEIGHTS_ALONE.to_string()),
    ]);
    let tensors = out.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let path = dir.join("server-0-of-1.safetensors");
    save_tensors(&path, tensors, &metadata).map_err(file_error)
}

/// Pieces of dense parameters as tensors, with their positions in their names.
fn piece_tensors(pieces: &[DensePiece]) -> Result<Vec<(String, Tensor)>, Error> {
    let mut out: Vec<(String, Tensor)> = Vec::new();
    for piece in pieces {
        let mut add = |what: &str, values: &[f32]| {
            let tensor = Tensor::from_f32(&[values.len()], values.to_vec()).map_err(bad)?;
            out.push((format!("dense/{}/{}/{what}", piece.name, piece.offset), tensor));
            Ok::<(), Error>(())
        };
        add(WEIGHTS, &piece.weights)?;
        piece.states.iter().try_for_each(|(name, values)| add(name, values))?;
    }
    Ok(out)
}

fn bad(e: regatta_tensor::Error) -> Error {
    Error::usage(e.to_string())
}

/// Appends the keys, words and bookkeeping of all rows, shard by shard.
fn table_tensors(
    name: &str,
    table: &SparseTable,
    mode: SaveMode,
    out: &mut Vec<(String, Tensor)>,
) -> Result<Vec<Receipt>, Error> {
    let mut receipts = Vec::new();
    let width: usize = table.row_parts().iter().map(|(_, n)| n).sum();
    // Room for every row at once: a vector of this size is slow to grow.
    let stats = table.stats().map_err(|e| Error::usage(format!("table '{name}': {e}")))?;
    let n =
        if mode == SaveMode::Patch || mode == SaveMode::Delta { 0 } else { stats.rows as usize };
    let (mut keys, mut about) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let mut words = Vec::with_capacity(n * width);
    for shard in 0..table.n_shards() {
        let rows =
            table.export(shard, mode).map_err(|e| Error::usage(format!("table '{name}': {e}")))?;
        for row in rows.rows() {
            let (kind, body, extra): (u64, &[f32], u64) = match row.body {
                RowBody::Base(words) => (KIND_BASE, words, 0),
                RowBody::Extended(words) => (KIND_EXTENDED, words, 0),
                RowBody::Candidate { appearances } => (KIND_CANDIDATE, &[], u64::from(appearances)),
            };
            keys.push(row.key);
            let bits = kind | u64::from(row.changed) << 2 | u64::from(row.unseen_days) << 3;
            about.push(bits | extra << 32);
            words.extend_from_slice(body);
            // Rows of several stages take the room of the longest.
            words.resize(keys.len() * width, 0.0);
        }
        receipts.push(rows.receipt());
    }
    let n = keys.len();
    out.push((format!("table/{name}/keys"), Tensor::from_u64(&[n], keys).map_err(bad)?));
    out.push((format!("table/{name}/about"), Tensor::from_u64(&[n], about).map_err(bad)?));
    out.push((format!("table/{name}/rows"), Tensor::from_f32(&[n, width], words).map_err(bad)?));
    Ok(receipts)
}

/// The files of all servers, checked to be complete.
pub(crate) fn files(dir: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found: Vec<(usize, usize, PathBuf)> = Vec::new();
    let entries =
        std::fs::read_dir(dir).map_err(|e| Error::usage(format!("cannot read {dir}: {e}")))?;
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
        return Err(Error::usage(format!("{dir} holds no parts of servers")));
    };
    if let Some((_, other, path)) = found.iter().find(|f| f.1 != n) {
        return Err(Error::usage(format!(
            "{dir} holds parts of jobs with {n} and with {other} servers ({})",
            path.display()
        )));
    }
    let missing: Vec<String> = (0..n)
        .filter(|i| !found.iter().any(|f| f.0 == *i))
        .map(|i| format!("server-{i}-of-{n}.safetensors"))
        .collect();
    if !missing.is_empty() {
        return Err(Error::usage(format!("{dir} is not complete: {} missing", missing.join(", "))));
    }
    Ok(found.into_iter().map(|f| f.2).collect())
}

/// Opens one of the files.
pub(crate) fn open(path: &Path) -> Result<OpenTensors, Error> {
    OpenTensors::open(path).map_err(file_error)
}

fn for_each_file(
    dir: &str,
    mut visit: impl FnMut(&OpenTensors) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut ids = Ids::default();
    for path in files(dir)? {
        let file = open(&path)?;
        ids.check(&file)?;
        visit(&file)?;
    }
    Ok(())
}

/// Notices parts of different saves.
#[derive(Default)]
pub(crate) struct Ids {
    first: Option<(PathBuf, Option<String>)>,
}

impl Ids {
    pub(crate) fn check(&mut self, file: &OpenTensors) -> Result<(), Error> {
        let (path, id) = (file.path(), file.metadata.get(SAVE_ID).cloned());
        let (first, known) = self.first.get_or_insert_with(|| (path.to_path_buf(), id.clone()));
        if *known == id {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{} and {} are parts of different saves",
            first.display(),
            path.display()
        )))
    }
}

/// Rows that are read at once when a table is loaded.
const BLOCK_ROWS: usize = 8192;

/// The rows of a table in a file: keys, what they are, and words; or a run of them.
struct SavedRows<'a> {
    file: &'a OpenTensors,
    table: &'a str,
    rows: Range<usize>,
    width: usize,
}

/// Some rows of a table.
struct Block<'b> {
    keys: &'b [u64],
    about: &'b [u64],
    words: &'b [f32],
    width: usize,
}

impl<'a> SavedRows<'a> {
    fn find(file: &'a OpenTensors, table: &'a str) -> Result<SavedRows<'a>, Error> {
        let known = tables_in(file);
        if !known.iter().any(|name| name == table) {
            let (path, known) = (file.path().display(), known.join(", "));
            return Err(Error::usage(format!("{path} holds no table '{table}' (tables: {known})")));
        }
        let describe = |what| file.describe(&part_of(table, what)).map_err(file_error);
        let (keys, about, rows) = (describe("keys")?, describe("about")?, describe("rows")?);
        let (DType::F32, &[n, width]) = rows else { return Err(odd(file, table)) };
        if [keys, about].iter().any(|(dtype, shape)| *dtype != DType::U64 || *shape != [n]) {
            return Err(odd(file, table));
        }
        Ok(SavedRows { file, table, rows: 0..n, width })
    }

    /// The same rows in so many runs.
    fn split(&self, n: usize) -> Vec<SavedRows<'a>> {
        let bound = |i: usize| self.rows.start + self.rows.len() * i / n;
        (0..n).map(|i| SavedRows { rows: bound(i)..bound(i + 1), ..*self }).collect()
    }

    /// The ids that belong to someone.
    fn keys(&self, is_own: impl Fn(u64) -> bool) -> Result<Vec<u64>, Error> {
        let mut keys = vec![0; self.rows.len()];
        self.read_u64("keys", self.rows.start, &mut keys)?;
        keys.retain(|key| is_own(*key));
        Ok(keys)
    }

    /// Reads the rows block by block.
    fn for_each_block(
        &self,
        mut visit: impl FnMut(Block<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut keys, mut about, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for from in self.rows.clone().step_by(BLOCK_ROWS) {
            let n = BLOCK_ROWS.min(self.rows.end - from);
            keys.resize(n, 0);
            about.resize(n, 0);
            words.resize(n * self.width, 0.0);
            self.read_u64("keys", from, &mut keys)?;
            self.read_u64("about", from, &mut about)?;
            let rows = part_of(self.table, "rows");
            self.file.read_f32(&rows, from * self.width, &mut words).map_err(file_error)?;
            visit(Block { keys: &keys, about: &about, words: &words, width: self.width })?;
        }
        Ok(())
    }

    fn read_u64(&self, what: &str, from: usize, into: &mut [u64]) -> Result<(), Error> {
        self.file.read_u64(&part_of(self.table, what), from, into).map_err(file_error)
    }
}

impl<'b> Block<'b> {
    fn iter(&self) -> impl Iterator<Item = (u64, u64, &'b [f32])> {
        let words = self.words.chunks(self.width.max(1));
        self.keys
            .iter()
            .zip(self.about)
            .zip(words)
            .map(|((&key, &about), words)| (key, about, words))
    }
}

/// What a file calls a part of a table.
fn part_of(table: &str, what: &str) -> String {
    format!("table/{table}/{what}")
}

/// Names of the tables in a file.
fn tables_in(file: &OpenTensors) -> Vec<String> {
    let name = |name: String| Some(name.strip_prefix("table/")?.strip_suffix("/keys")?.to_string());
    let mut names: Vec<String> = file.names().into_iter().filter_map(name).collect();
    names.sort();
    names
}

fn odd(file: &OpenTensors, name: &str) -> Error {
    Error::usage(format!(
        "{}: the rows of table '{name}' do not fit together",
        file.path().display()
    ))
}

/// Takes those rows of a table that belong to this server; gives their ids.
pub(crate) fn load_table(
    file: &OpenTensors,
    name: &str,
    table: &SparseTable,
    (server, servers): (usize, usize),
) -> Result<Vec<u64>, Error> {
    let saved = SavedRows::find(file, name)?;
    let width: usize = table.row_parts().iter().map(|(_, n)| n).sum();
    let weights = table.row_parts().first().map_or(0, |(_, n)| *n);
    let weights_alone = is_weights_alone(file) && saved.width == weights;
    if saved.width != width && !weights_alone {
        let parts: Vec<String> =
            table.row_parts().iter().map(|(part, n)| format!("{part} {n}")).collect();
        return Err(Error::usage(format!(
            "{}: rows of table '{name}' have {} words, but this job's have {width} ({}): another \
             width or another optimizer",
            file.path().display(),
            saved.width,
            parts.join(", ")
        )));
    }
    let is_own = |key: u64| server_of(key, servers) == server;
    let fail = |e| Error::usage(format!("{}, table '{name}': {e}", file.path().display()));
    let keys = saved.keys(is_own)?;
    // Rows come in the order of their hashes. An index that grows under way has all of them in its
    // first lines, and every one walks over those before it.
    table.reserve(keys.len()).map_err(fail)?;
    if weights_alone {
        // Their states are those of new rows.
        saved.for_each_block(|block| {
            let own = block.iter().filter(|(key, _, _)| is_own(*key));
            table.import_weights(own.map(|(key, _, words)| (key, words))).map_err(fail).map(|_| ())
        })?;
        return Ok(keys);
    }
    let base = table.base_len();
    let import = |part: SavedRows<'_>| {
        part.for_each_block(|block| {
            let own = block.iter().filter(|(key, _, _)| is_own(*key));
            let rows = own.map(|(key, about, words)| row(key, about, words, base));
            table.import(rows).map_err(fail).map(|_| ())
        })
    };
    let import = &import;
    // A run of rows is a range of shards: threads do not wait for each other's locks.
    let parts: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let parts = saved.split(LOAD_THREADS).into_iter();
        let running: Vec<_> = parts.map(|part| scope.spawn(move || import(part))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    });
    parts.into_iter().collect::<Result<(), Error>>().map(|()| keys)
}

/// Whether a file holds weights from elsewhere, without optimizer state.
pub(crate) fn is_weights_alone(file: &OpenTensors) -> bool {
    file.metadata.get(CONTENT).is_some_and(|content| content == WEIGHTS_ALONE)
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

/// The pieces of dense parameters in a file of a saved model.
pub(crate) fn saved_pieces(file: &OpenTensors) -> Result<Vec<DensePiece>, Error> {
    let names = file.names().into_iter().filter(|name| piece_name(name).is_some());
    let tensors = names.map(|name| Ok((name.clone(), file.read(&name).map_err(file_error)?)));
    Ok(dense_pieces(tensors.collect::<Result<Vec<_>, Error>>()?))
}

/// The pieces of dense parameters among tensors, with states in any order.
fn dense_pieces(tensors: impl IntoIterator<Item = (String, Tensor)>) -> Vec<DensePiece> {
    let mut pieces: BTreeMap<(String, usize), DensePiece> = BTreeMap::new();
    for (name, tensor) in tensors {
        let (Some((param, offset, what)), DType::F32) = (piece_name(&name), tensor.dtype()) else {
            continue;
        };
        let piece = pieces.entry((param.to_string(), offset)).or_insert_with(|| DensePiece {
            name: param.to_string(),
            offset,
            weights: Vec::new(),
            states: Vec::new(),
        });
        let values = tensor.f32().to_vec();
        match what {
            WEIGHTS => piece.weights = values,
            state => piece.states.push((state.to_string(), values)),
        }
    }
    pieces.into_values().collect()
}

/// Parameter, position and content of a piece.
fn piece_name(name: &str) -> Option<(&str, usize, &str)> {
    let (rest, what) = name.strip_prefix("dense/")?.rsplit_once('/')?;
    let (param, at) = rest.rsplit_once('/')?;
    Some((param, at.parse().ok()?, what))
}

/// A dense parameter of `len` floats as servers have saved it.
///
/// # Errors
/// If the directory is not complete or does not hold the parameter.
pub fn load_dense(dir: &str, param: &str, len: usize) -> Result<Vec<f32>, Error> {
    let mut weights = vec![0.0; len];
    let mut covered = 0;
    for_each_file(dir, |file| {
        for piece in saved_pieces(file)?.iter().filter(|p| p.name == param) {
            let to = weights.get_mut(piece.offset..).and_then(|w| w.get_mut(..piece.weights.len()));
            let Some(to) = to else {
                return Err(Error::usage(format!("{dir}: '{param}' has more than {len} floats")));
            };
            to.copy_from_slice(&piece.weights);
            covered += piece.weights.len();
        }
        Ok(())
    })?;
    if covered != len {
        return Err(Error::usage(format!("{dir} holds {covered} of {len} floats of '{param}'")));
    }
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
        let saved = SavedRows::find(file, table)?;
        if saved.width < dim {
            let (path, width) = (file.path().display(), saved.width);
            return Err(Error::usage(format!("{path}, table '{table}': rows of {width} words")));
        }
        saved.for_each_block(|block| {
            let rows = block.iter().filter(|(_, about, _)| about & 3 != KIND_CANDIDATE);
            rows.for_each(|(key, _, words)| row(key, &words[..dim]));
            Ok(())
        })
    })
}
