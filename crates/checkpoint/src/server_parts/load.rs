//! Saved models of servers, read by any number of servers or by one machine.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use regatta_table::{DensePiece, Row, RowBody, SparseTable};
use regatta_tensor::DType;

use super::{
    CONTENT, KIND_CANDIDATE, KIND_EXTENDED, LOAD_THREADS, NOT_FINITE, SAVE_ID, WEIGHTS_ALONE,
    dense_pieces, part_of, piece_name,
};
use crate::{Error, OpenTensors};

/// Number of a server and how many there are, by the name of its file.
fn numbers(name: &str) -> Option<(usize, usize)> {
    let (i, n) = name.strip_prefix("server-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    Some((i.parse().ok()?, n.parse().ok()?))
}

/// Whether a file name is that of a server's part.
pub fn is_part(name: &str) -> bool {
    numbers(name).is_some()
}

/// The files of all servers in a directory, checked to be complete.
///
/// # Errors
/// If a part is missing, or there are parts of jobs with different numbers of servers.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found: Vec<(usize, usize, PathBuf)> = Vec::new();
    let entries = fs::read_dir(dir).map_err(Error::io("read", dir))?;
    for entry in entries.flatten() {
        if let Some((i, n)) = numbers(&entry.file_name().to_string_lossy()) {
            found.push((i, n, entry.path()));
        }
    }
    found.sort();
    let Some(&(_, n, _)) = found.first() else {
        return Err(Error::refused(dir, "it holds no parts of servers"));
    };
    if let Some((_, other, path)) = found.iter().find(|f| f.1 != n) {
        let path = path.display();
        let reason = format!("it holds parts of jobs with {n} and with {other} servers ({path})");
        return Err(Error::refused(dir, reason));
    }
    let missing: Vec<String> = (0..n)
        .filter(|i| !found.iter().any(|f| f.0 == *i))
        .map(|i| format!("server-{i}-of-{n}.safetensors"))
        .collect();
    if !missing.is_empty() {
        let reason = format!("it is not complete: {} missing", missing.join(", "));
        return Err(Error::refused(dir, reason));
    }
    Ok(found.into_iter().map(|f| f.2).collect())
}

/// Checks that all servers have written their parts to a directory as this process sees it.
///
/// # Errors
/// If a part is missing.
pub fn check_arrived(dir: &Path) -> Result<(), Error> {
    files(dir).map(|_| ()).map_err(|error| match error {
        Error::Refused { path, reason } => {
            let why = "servers and the first worker must see the same directory";
            Error::Refused { path, reason: format!("{reason}: {why}") }
        }
        other => other,
    })
}

/// A variable of a saved model that holds NaN or infinity, as the servers that wrote it say.
///
/// # Errors
/// If a part is missing or damaged.
pub fn not_finite(dir: &Path) -> Result<Option<String>, Error> {
    for path in files(dir)? {
        if let Some(name) = OpenTensors::open(&path)?.metadata.get(NOT_FINITE) {
            let named = name.trim_start_matches("table/").trim_start_matches("dense/");
            return Ok(Some(named.split('/').next().unwrap_or(named).to_string()));
        }
    }
    Ok(None)
}

/// A saved model of servers that is open for reading. All parts are there, are of one save, and fit
/// their checksums.
#[derive(Debug)]
pub struct ServerParts {
    dir: PathBuf,
    files: Vec<OpenTensors>,
}

impl ServerParts {
    /// Opens the parts in a directory and reads all of them once.
    ///
    /// # Errors
    /// If a part is missing, damaged or of another save.
    pub fn open(dir: impl Into<PathBuf>) -> Result<ServerParts, Error> {
        let dir = dir.into();
        let files = open_all(&dir)?.into_iter().collect::<Result<Vec<OpenTensors>, Error>>()?;
        Ok(ServerParts { dir, files })
    }

    /// The files, in the order of servers.
    pub fn files(&self) -> &[OpenTensors] {
        &self.files
    }

    /// A dense parameter of `len` floats.
    ///
    /// # Errors
    /// If they do not hold the parameter, or one of another size.
    pub fn dense(&self, param: &str, len: usize) -> Result<Vec<f32>, Error> {
        let mut weights = vec![0.0; len];
        let mut covered = 0;
        for file in &self.files {
            for piece in saved_pieces(file)?.iter().filter(|p| p.name == param) {
                let to = weights.get_mut(piece.offset..);
                let to = to.and_then(|w| w.get_mut(..piece.weights.len()));
                let Some(to) = to else {
                    let reason = format!("'{param}' has more than {len} floats");
                    return Err(Error::refused(&self.dir, reason));
                };
                to.copy_from_slice(&piece.weights);
                covered += piece.weights.len();
            }
        }
        if covered != len {
            let reason = format!("it holds {covered} of {len} floats of '{param}'");
            return Err(Error::refused(&self.dir, reason));
        }
        Ok(weights)
    }

    /// Calls `row(key, weights)` for every row of a table.
    ///
    /// # Errors
    /// If they do not hold the table.
    pub fn rows(
        &self,
        table: &str,
        dim: usize,
        mut row: impl FnMut(u64, &[f32]),
    ) -> Result<(), Error> {
        for file in &self.files {
            let saved = SavedRows::find(file, table)?;
            if saved.width < dim {
                let reason = format!("table '{table}': rows of {} words", saved.width);
                return Err(Error::refused(file.path(), reason));
            }
            saved.for_each_block(|block| {
                let rows = block.iter().filter(|(_, about, _)| about & 3 != KIND_CANDIDATE);
                rows.for_each(|(key, _, words)| row(key, &words[..dim]));
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Every part in a directory, or what is wrong with it.
///
/// # Errors
/// If a part is missing.
pub(crate) fn open_all(dir: &Path) -> Result<Vec<Result<OpenTensors, Error>>, Error> {
    let mut first: Option<(PathBuf, Option<String>)> = None;
    let open = |path: PathBuf| {
        let file = OpenTensors::open(&path)?;
        file.check()?;
        let id = file.metadata.get(SAVE_ID).cloned();
        let (other, known) = first.get_or_insert_with(|| (path.clone(), id.clone()));
        if *known != id {
            let reason = format!("it and {} are parts of different saves", other.display());
            return Err(Error::refused(&path, reason));
        }
        Ok(file)
    };
    Ok(files(dir)?.into_iter().map(open).collect())
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
            let known = known.join(", ");
            let reason = format!("it holds no table '{table}' (tables: {known})");
            return Err(Error::refused(file.path(), reason));
        }
        let describe = |what| file.describe(&part_of(table, what));
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
            self.file.read_f32(&rows, from * self.width, &mut words)?;
            visit(Block { keys: &keys, about: &about, words: &words, width: self.width })?;
        }
        Ok(())
    }

    fn read_u64(&self, what: &str, from: usize, into: &mut [u64]) -> Result<(), Error> {
        self.file.read_u64(&part_of(self.table, what), from, into)
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

/// Names of the tables in a file.
fn tables_in(file: &OpenTensors) -> Vec<String> {
    let name = |name: String| Some(name.strip_prefix("table/")?.strip_suffix("/keys")?.to_string());
    let mut names: Vec<String> = file.names().into_iter().filter_map(name).collect();
    names.sort();
    names
}

fn odd(file: &OpenTensors, name: &str) -> Error {
    Error::corrupt(file.path(), format!("the rows of table '{name}' do not fit together"))
}

/// Takes those rows of a table that a server owns; gives their ids.
///
/// # Errors
/// If the file has no such table, or its rows are of another width or optimizer.
pub fn load_table(
    file: &OpenTensors,
    name: &str,
    table: &SparseTable,
    is_own: impl Fn(u64) -> bool + Sync,
) -> Result<Vec<u64>, Error> {
    let saved = SavedRows::find(file, name)?;
    let width: usize = table.row_parts().iter().map(|(_, n)| n).sum();
    let weights = table.row_parts().first().map_or(0, |(_, n)| *n);
    let weights_alone = is_weights_alone(file) && saved.width == weights;
    if saved.width != width && !weights_alone {
        let parts: Vec<String> =
            table.row_parts().iter().map(|(part, n)| format!("{part} {n}")).collect();
        return Err(Error::refused(
            file.path(),
            format!(
                "rows of table '{name}' have {} words, but this job's have {width} ({}): another \
             width or another optimizer",
                saved.width,
                parts.join(", ")
            ),
        ));
    }
    let fail = |e| Error::table(file.path(), name)(e);
    let keys = saved.keys(&is_own)?;
    // Rows come in the order of their hashes. An index that grows meanwhile has all of them in its
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
pub fn is_weights_alone(file: &OpenTensors) -> bool {
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
///
/// # Errors
/// If the file cannot be read.
pub fn saved_pieces(file: &OpenTensors) -> Result<Vec<DensePiece>, Error> {
    let names = file.names().into_iter().filter(|name| piece_name(name).is_some());
    let tensors = names.map(|name| Ok((name.clone(), file.read(&name)?)));
    Ok(dense_pieces(tensors.collect::<Result<Vec<_>, Error>>()?))
}
