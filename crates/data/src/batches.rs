//! The end of the queue that training holds: one data pass, batch by batch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::read::ReadContext;
use crate::stages::Stage;
use crate::{BadLines, Batch, Error, FileRead, Records, Schema, Source, Stages};

/// How far a data pass has come: what has been handed out by [`Batches::next`]. A dataset resumes
/// from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Position {
    /// Batches handed out.
    pub batches: u64,
    /// Examples in them.
    pub examples: u64,
    /// How far each file has been used, by its index in the source.
    pub files: BTreeMap<usize, FilePosition>,
}

/// How far one file has been used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilePosition {
    /// Records of the file that have been handed out.
    pub records: u64,
    /// The line of the last one, from 1.
    pub line: u64,
    /// Whether that was the whole file.
    pub done: bool,
}

impl Position {
    /// Counts a batch of this pass as used.
    pub fn advance(&mut self, batch: &Batch) {
        self.batches += 1;
        self.examples += batch.examples() as u64;
        for read in batch.reads() {
            let FileRead { file, records, line, done } = *read;
            self.files.insert(file, FilePosition { records, line, done });
        }
    }
}

/// What the threads of a data pass share with its [`Batches`].
pub(crate) struct Shared {
    pub(crate) context: Arc<ReadContext>,
    pub(crate) schema: Schema,
    files: Option<Arc<[PathBuf]>>,
    /// Buffers of batches that training has given back.
    pool: Mutex<Vec<Records>>,
    pool_capacity: usize,
}

impl Shared {
    /// Empty records, with the memory of an earlier batch if there is one.
    pub(crate) fn take_records(&self) -> Records {
        let recycled = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        recycled.unwrap_or_else(|| Records::new(&self.schema))
    }

    pub(crate) fn give_back(&self, mut records: Records) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < self.pool_capacity {
            records.clear();
            pool.push(records);
        }
    }
}

/// The reader threads' end of the queue.
#[derive(Clone)]
pub(crate) struct Output {
    pub(crate) shared: Arc<Shared>,
    queue: SyncSender<Result<Batch, Error>>,
}

impl Output {
    /// Queues the records as a batch. Returns false when the pass has been stopped.
    pub(crate) fn send(&self, records: Records, reads: Vec<FileRead>) -> bool {
        let timers = &self.shared.context.timers;
        let batch = timers.time(Stage::Batch, || Batch::assemble(records, reads));
        let batch = batch.of_files(self.shared.files.clone());
        timers.time(Stage::Blocked, || self.queue.send(Ok(batch))).is_ok() && !self.stopped()
    }

    /// Ends the pass with an error, which stops the other threads too.
    pub(crate) fn fail(&self, error: Error) {
        // Errors after a stop are its consequence, such as a killed pipe command.
        if !self.stopped() {
            self.shared.context.children.stop();
            let _ = self.queue.send(Err(error));
        }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.shared.context.stopped()
    }
}

/// One data pass. Threads behind it prefetch into a bounded queue; dropping it stops
/// them and ends their pipe commands.
pub struct Batches {
    /// `None` once the pass has ended.
    queue: Option<Receiver<Result<Batch, Error>>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    position: Position,
    /// For the message when nothing came.
    describe: String,
    failed: bool,
    /// Whether the pass began at the start of data that are not empty.
    from_start: bool,
    batch_size: usize,
}

impl Batches {
    /// Starts `threads`, each of which sends into the queue of `capacity` batches.
    pub(crate) fn start<F>(
        source: &Source,
        batch_size: usize,
        capacity: usize,
        from: &Position,
        threads: Vec<F>,
    ) -> Batches
    where
        F: FnOnce(&Output) -> Result<(), Error> + Send + 'static,
    {
        let capacity = capacity.max(1);
        let (sender, queue) = sync_channel(capacity);
        let shared = Arc::new(Shared {
            context: ReadContext::new(source),
            schema: source.schema().clone(),
            files: source.all_files(),
            pool: Mutex::default(),
            pool_capacity: capacity + 2 * threads.len() + 2,
        });
        // A command would inherit the priority; how much time it needs is not known here.
        let yields = !source.has_pipe_command();
        let spawn = |(i, work): (usize, F)| {
            let output = Output { shared: shared.clone(), queue: sender.clone() };
            let run = move || {
                if yields {
                    yield_to_training();
                }
                work(&output).unwrap_or_else(|error| output.fail(error));
            };
            std::thread::Builder::new()
                .name(format!("reader-{i}"))
                .spawn(run)
                .expect("the system starts threads")
        };
        let threads = threads.into_iter().enumerate().map(spawn).collect();
        Batches {
            queue: Some(queue),
            threads,
            shared,
            position: from.clone(),
            describe: source.describe(),
            failed: false,
            from_start: from.examples == 0 && !source.may_be_empty(),
            batch_size,
        }
    }

    /// The next batch; waits for it if need be, for ever if a pipe command hangs that has no limit
    /// ([`Source::with_pipe_timeout`]). `None` at the end of the pass.
    ///
    /// # Errors
    /// Whatever a reader met; all of them stop then. A pass over data without any example, or with
    /// too few for a batch when incomplete ones are dropped, is an error too.
    #[expect(clippy::should_implement_trait, reason = "`?` on the result is the common use")]
    pub fn next(&mut self) -> Result<Option<Batch>, Error> {
        self.receive(None)
    }

    /// The same, but gives up waiting after some time. The data pass continues, and the call may be
    /// repeated.
    ///
    /// # Errors
    /// As [`Batches::next`], and [`Error::Timeout`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Batch>, Error> {
        self.receive(Some(timeout))
    }

    /// The next batch, if it need not be waited for; none also at the end of the pass, which
    /// [`Batches::next`] then says.
    ///
    /// # Errors
    /// As [`Batches::next`].
    pub fn ready(&mut self) -> Result<Option<Batch>, Error> {
        let received = self.queue.as_ref().filter(|_| !self.failed).map(Receiver::try_recv);
        match received {
            Some(Ok(Ok(batch))) => {
                self.position.advance(&batch);
                Ok(Some(batch))
            }
            Some(Ok(Err(error))) => self.fail(error),
            Some(Err(_)) | None => Ok(None),
        }
    }

    fn receive(&mut self, timeout: Option<Duration>) -> Result<Option<Batch>, Error> {
        if self.failed {
            return Err(Error::Stopped);
        }
        let Some(queue) = &self.queue else { return Ok(None) };
        let timers = &self.shared.context.timers;
        let received = timers.time(Stage::Wait, || match timeout {
            None => queue.recv().map_err(RecvTimeoutError::from),
            Some(timeout) => queue.recv_timeout(timeout),
        });
        match received {
            Ok(Ok(batch)) => {
                self.position.advance(&batch);
                Ok(Some(batch))
            }
            Ok(Err(error)) => self.fail(error),
            Err(RecvTimeoutError::Disconnected) => self.finish(),
            Err(RecvTimeoutError::Timeout) => {
                let timeout = timeout.unwrap_or_default();
                Err(Error::Timeout { files: self.describe.clone(), timeout })
            }
        }
    }

    /// Gives the buffers of a used batch back to the readers.
    pub fn recycle(&mut self, batch: Batch) {
        if batch.schema() == &self.shared.schema {
            self.shared.give_back(batch.into_records());
        }
    }

    /// How far the data pass has come, counting the batches that `next` has handed out.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Where the time has gone so far.
    pub fn stages(&self) -> Stages {
        self.shared.context.timers.stages()
    }

    /// The malformed lines that were skipped so far.
    pub fn bad_lines(&self) -> BadLines {
        self.shared.context.bad_lines()
    }

    fn fail(&mut self, error: Error) -> Result<Option<Batch>, Error> {
        self.failed = true;
        self.stop();
        Err(error)
    }

    /// All threads have let go of the queue: either all is read, or one of them panicked.
    fn finish(&mut self) -> Result<Option<Batch>, Error> {
        self.queue = None;
        for thread in std::mem::take(&mut self.threads) {
            if let Err(panic) = thread.join() {
                return self.fail(Error::Panic(panic_text(panic.as_ref())));
            }
        }
        if self.from_start && self.position.batches == 0 {
            let why = format!("no examples, or fewer than one batch of {}", self.batch_size);
            return self.fail(Error::NoExamples { files: self.describe.clone(), why });
        }
        Ok(None)
    }

    fn stop(&mut self) {
        self.shared.context.children.stop();
        // Threads that wait for room in the queue see that it is gone.
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Lowers the priority of the calling thread, a reader.
///
/// Nice 5. Readers prefetch, so any idle moment will do, but a reader that preempts one worker
/// delays all workers of a synchronous step. Nice 10 gained 3 to 5 % in sync mode (2 workers and a
/// server on 2 cores, medians of 6 interleaved runs) but halved the speed of training beside other
/// work on the machine. With nice 5 training beside other work is as fast as without, and sync mode
/// is not slower than with 10 (70.8 k and 62.2 k examples/s, medians of 5 with overlapping ranges;
/// 2026-11-17). To repeat:
/// `bench/compare/run --skip-paddle --skip-torch --only sync-2-1 --batch 512`.
fn yield_to_training() {
    #[cfg(target_os = "linux")]
    {
        const NICE: i32 = 5;
        // For Linux no process means this thread. Where it is not allowed, nothing is lost.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
