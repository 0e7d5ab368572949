//! A file that a thread of its own writes: buffers go in and come back empty.
//!
//! So rows are gathered while the ones before are on their way. Dirty memory does not pile up until
//! the end: the system is told to begin with the disk early. The last step,
//! [`WriteBehind::finish`], still forces everything to disk and reports whatever went wrong on the
//! way.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Buffers between whoever fills them and the thread, each about a block.
const BUFFERS: usize = 16;
/// After that many bytes the disk is told to begin with them.
const START_BYTES: u64 = 8 << 20;

/// Memory that is aligned for every column of a block, and how many bytes of it count.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) memory: Vec<u64>,
    pub(crate) len: usize,
}

impl Buffer {
    /// The bytes that count.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }
}

/// A file that is written from front to back.
#[derive(Debug)]
pub(crate) struct WriteBehind {
    full: Option<SyncSender<Buffer>>,
    empty: Receiver<Buffer>,
    thread: Option<JoinHandle<io::Result<File>>>,
}

impl WriteBehind {
    pub(crate) fn new(file: File) -> io::Result<WriteBehind> {
        let (full, to_write) = sync_channel(BUFFERS);
        // Room for every buffer there is, so that giving one back never waits.
        let (give_back, empty) = sync_channel(BUFFERS + 2);
        for _ in 0..BUFFERS {
            let _ = give_back.try_send(Buffer::default());
        }
        let work = move || write_all(file, &to_write, &give_back);
        let thread = thread::Builder::new().name("checkpoint-file".into()).spawn(work)?;
        Ok(WriteBehind { full: Some(full), empty, thread: Some(thread) })
    }

    /// Hands a buffer over and gives one to continue with; waits while the disk is behind.
    pub(crate) fn put(&mut self, buffer: Buffer) -> io::Result<Buffer> {
        let sent = self.full.as_ref().is_some_and(|full| full.send(buffer).is_ok());
        match self.empty.recv() {
            Ok(empty) if sent => Ok(empty),
            // The thread ends early only because of an error.
            _ => Err(self.join().err().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Waits until everything is written and forced to disk.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.join()?.sync_all()
    }

    fn join(&mut self) -> io::Result<File> {
        self.full = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(io::Error::other("the file could not be written")),
        }
    }
}

impl Drop for WriteBehind {
    /// A file that is given up may be removed: nothing writes to it any more.
    fn drop(&mut self) {
        self.full = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_all(
    mut file: File,
    to_write: &Receiver<Buffer>,
    give_back: &SyncSender<Buffer>,
) -> io::Result<File> {
    go_second();
    let (mut written, mut started) = (0, 0);
    for buffer in to_write {
        file.write_all(buffer.bytes())?;
        written += buffer.len as u64;
        let _ = give_back.try_send(buffer);
        if written - started >= START_BYTES {
            start(&file, started, written - started);
            started = written;
        }
    }
    Ok(file)
}

/// Lets other threads go first where processors are short: training does not wait for this one, but
/// this one may wait for training.
#[cfg(target_os = "linux")]
fn go_second() {
    // On Linux this concerns the calling thread only, not the process.
    let _ = rustix::process::setpriority_process(None, 10);
}

#[cfg(not(target_os = "linux"))]
fn go_second() {}

/// Begins to write a range to disk and waits for nothing. An error of the disk is reported by the
/// sync at the end.
#[cfg(target_os = "linux")]
fn start(file: &File, offset: u64, bytes: u64) {
    use rustix::fs::{Advice, fadvise};
    // To be able to forget the range, the system must write it. What is on its way stays in memory.
    let _ = fadvise(file, offset, std::num::NonZeroU64::new(bytes), Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn start(_: &File, _: u64, _: u64) {}
