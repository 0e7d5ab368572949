//! `InMemoryDataset`: all records are loaded first, then shuffled and read any number of times.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Dataset, check_batch_size};
use crate::batches::{Output, panic_text};
use crate::read::ReadContext;
use crate::stages::Stage;
use crate::{BadLines, Batches, Error, Position, Records, Rng, Schema, Source, Stages};

/// Records in one set in memory.
const CHUNK_RECORDS: usize = 8192;

/// How often a load in the background is looked at by whoever may stop it.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// How an [`InMemoryDataset`] loads and makes batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Examples per batch.
    pub batch_size: usize,
    /// Whether an incomplete last batch is left out.
    pub drop_last: bool,
    /// Threads that load files; the result does not depend on it.
    pub thread_num: usize,
    /// Batches that are ready in advance.
    pub queue_batches: usize,
}

impl MemoryOptions {
    /// One thread, with an incomplete last batch, 8 batches prefetched.
    pub fn new(batch_size: usize) -> MemoryOptions {
        MemoryOptions { batch_size, drop_last: false, thread_num: 1, queue_batches: 8 }
    }
}

/// Records in the order of the files, in sets of some thousand.
type Sets = Vec<Records>;

/// Loads a source into memory and gives data passes over it.
///
/// Formats that draw random numbers do so once, while loading.
#[derive(Debug)]
pub struct InMemoryDataset {
    source: Source,
    options: MemoryOptions,
    loaded: Option<LoadedRecords>,
    preload: Option<JoinHandle<Result<Sets, Error>>>,
    /// Of the last load.
    context: Arc<ReadContext>,
}

#[derive(Debug)]
struct LoadedRecords {
    sets: Arc<Sets>,
    /// Set and row of each record, in the order in which passes give them.
    order: Arc<Vec<(u32, u32)>>,
}

impl InMemoryDataset {
    /// A dataset; nothing is loaded yet.
    ///
    /// # Errors
    /// If the batch size or the number of threads is 0.
    pub fn new(source: Source, options: MemoryOptions) -> Result<InMemoryDataset, Error> {
        check_batch_size(options.batch_size)?;
        if options.thread_num == 0 {
            return Err(Error::config("thread_num must be at least 1"));
        }
        let context = ReadContext::new(&source);
        Ok(InMemoryDataset { source, options, loaded: None, preload: None, context })
    }

    /// Loads all records, in the order of the files. What was in memory before is released.
    ///
    /// # Errors
    /// Whatever the readers meet, and if there are no records at all.
    pub fn load_into_memory(&mut self) -> Result<(), Error> {
        self.preload_into_memory();
        self.wait_preload_done()
    }

    /// Starts to load in the background. Passes that are running keep what they have.
    pub fn preload_into_memory(&mut self) {
        self.release_memory();
        self.context = ReadContext::new(&self.source);
        let (source, threads) = (self.source.clone(), self.options.thread_num);
        let context = self.context.clone();
        self.preload = Some(std::thread::spawn(move || load(&source, threads, &context)));
    }

    /// Waits for [`InMemoryDataset::preload_into_memory`].
    ///
    /// # Errors
    /// As [`InMemoryDataset::load_into_memory`], and if nothing is being loaded.
    pub fn wait_preload_done(&mut self) -> Result<(), Error> {
        let Some(preload) = self.preload.take() else {
            return Err(Error::config("preload_into_memory has not been called"));
        };
        let sets = match preload.join() {
            Ok(sets) => sets?,
            Err(panic) => return Err(Error::Panic(panic_text(panic.as_ref()))),
        };
        let order = file_order(&sets);
        if order.is_empty() && !self.source.may_be_empty() {
            let files = self.source.describe();
            return Err(Error::NoExamples { files, why: "no examples".into() });
        }
        self.loaded = Some(LoadedRecords { sets: Arc::new(sets), order: Arc::new(order) });
        Ok(())
    }

    /// As [`InMemoryDataset::wait_preload_done`], and stops loading soon after `stop` is set.
    ///
    /// # Errors
    /// As [`InMemoryDataset::wait_preload_done`], and [`Error::Stopped`].
    pub fn wait_preload_unless(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        while self.preload.as_ref().is_some_and(|preload| !preload.is_finished()) {
            if stop.load(SeqCst) {
                self.release_memory();
                return Err(Error::Stopped);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.wait_preload_done()
    }

    /// Puts the records into the random order that `seed` stands for, whatever their order was.
    ///
    /// # Errors
    /// If nothing is loaded.
    pub fn local_shuffle(&mut self, seed: u64) -> Result<(), Error> {
        let loaded = self.loaded.as_mut().ok_or_else(not_loaded)?;
        let mut order = file_order(&loaded.sets);
        Rng::new(seed, &[]).shuffle(&mut order);
        loaded.order = Arc::new(order);
        Ok(())
    }

    /// Lets go of the records, and of a load in the background. Passes that are running keep
    /// theirs.
    pub fn release_memory(&mut self) {
        self.loaded = None;
        if let Some(preload) = self.preload.take() {
            self.context.children.stop();
            let _ = preload.join();
        }
    }

    /// Number of records in memory.
    pub fn memory_data_size(&self) -> usize {
        self.loaded.as_ref().map_or(0, |l| l.order.len())
    }

    /// Bytes of the records in memory.
    pub fn memory_bytes(&self) -> usize {
        let sets = self.loaded.as_ref().map_or(0, |l| l.sets.iter().map(Records::bytes).sum());
        sets + self.memory_data_size() * size_of::<(u32, u32)>()
    }

    /// The malformed lines that the last load skipped.
    pub fn bad_lines(&self) -> BadLines {
        self.context.bad_lines()
    }

    /// Where the time of the last load went.
    pub fn load_stages(&self) -> Stages {
        self.context.timers.stages()
    }
}

impl Dataset for InMemoryDataset {
    fn schema(&self) -> &Schema {
        self.source.schema()
    }

    /// Passes give the records in their current order, whatever the number of the pass.
    fn resume(&self, _pass: u64, from: &Position) -> Result<Batches, Error> {
        let loaded = self.loaded.as_ref().ok_or_else(not_loaded)?;
        let (sets, order) = (loaded.sets.clone(), loaded.order.clone());
        let MemoryOptions { batch_size, drop_last, queue_batches, .. } = self.options;
        let start = order.len().min(usize::try_from(from.examples).unwrap_or(usize::MAX));
        let work = move |output: &Output| {
            for picks in order[start..].chunks(batch_size) {
                if picks.len() < batch_size && drop_last {
                    break;
                }
                let mut batch = output.shared.take_records();
                let timers = &output.shared.context.timers;
                timers.time(Stage::Batch, || batch.gather(&sets, picks));
                if !output.send(batch, Vec::new()) {
                    break;
                }
            }
            Ok(())
        };
        Ok(Batches::start(&self.source, batch_size, queue_batches, from, vec![work]))
    }
}

impl Drop for InMemoryDataset {
    fn drop(&mut self) {
        self.release_memory();
    }
}

fn not_loaded() -> Error {
    Error::config("load_into_memory has not been called")
}

fn file_order(sets: &[Records]) -> Vec<(u32, u32)> {
    let rows =
        |(set, records): (usize, &Records)| (0..records.len()).map(move |r| (set as u32, r as u32));
    sets.iter().enumerate().flat_map(rows).collect()
}

/// Loads all parts with some threads; the sets are in the order of the parts.
fn load(source: &Source, threads: usize, context: &Arc<ReadContext>) -> Result<Sets, Error> {
    let parts = source.parts();
    let next = AtomicUsize::new(parts.start);
    let done = Mutex::new((0..parts.len()).map(|_| Sets::new()).collect::<Vec<Sets>>());
    let work = || {
        loop {
            let part = next.fetch_add(1, SeqCst);
            if part >= parts.end || context.stopped() {
                return Ok(());
            }
            // One failure is enough; it stops the others.
            let sets = load_part(source, part, context).inspect_err(|_| context.children.stop())?;
            done.lock().unwrap_or_else(PoisonError::into_inner)[part - parts.start] = sets;
        }
    };
    let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let n = threads.min(parts.len());
        let handles: Vec<_> = (0..n).map(|_| scope.spawn(work)).collect();
        let join = |h: std::thread::ScopedJoinHandle<'_, _>| {
            h.join().unwrap_or_else(|panic| Err(Error::Panic(panic_text(panic.as_ref()))))
        };
        handles.into_iter().map(join).collect()
    });
    first_error(results)?;
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(done.into_iter().flatten().collect())
}

/// The error that began it: those of threads that were stopped by it say `Stopped`.
fn first_error(results: Vec<Result<(), Error>>) -> Result<(), Error> {
    let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let at = errors.iter().position(|e| !matches!(e, Error::Stopped)).unwrap_or(0);
    if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(at)) }
}

fn load_part(source: &Source, part: usize, context: &Arc<ReadContext>) -> Result<Sets, Error> {
    let mut reader = source.open(part, 0, context)?;
    let (mut sets, mut set) = (Sets::new(), Records::new(source.schema()));
    loop {
        let result = reader.read(CHUNK_RECORDS, &mut set);
        if context.stopped() {
            return Err(Error::Stopped);
        }
        let more = result?;
        if !set.is_empty() {
            // A copy has no spare room, unlike vectors that have grown.
            sets.push(set.clone());
            set.clear();
        }
        if !more {
            return Ok(sets);
        }
    }
}
