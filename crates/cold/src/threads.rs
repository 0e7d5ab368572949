//! Reads by a pool of threads, each waiting for one page: for systems that forbid io_uring.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::Error;
use crate::batch::{Batch, SCAN_PAGES};
use crate::buffer::Buffer;
use crate::engine::{Engine, MOST_BATCHES};

/// Reads that a thread takes at once.
const AT_ONCE: usize = 4;

pub(crate) struct Threads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct State {
    /// Batches, and the next read of each.
    batches: VecDeque<(Arc<Batch>, usize)>,
    stop: bool,
}

impl Threads {
    pub(crate) fn start(n_threads: usize) -> Result<Threads, Error> {
        let mut threads = Threads { queue: Arc::default(), threads: Vec::new() };
        for i in 0..n_threads.max(1) {
            let queue = threads.queue.clone();
            let thread = std::thread::Builder::new()
                .name(format!("cold-read-{i}"))
                .stack_size(256 << 10)
                .spawn(move || serve(&queue));
            threads.threads.push(thread.map_err(|e| Error::start("a thread that reads", e))?);
        }
        Ok(threads)
    }
}

impl Engine for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn start(&self, batch: Arc<Batch>) {
        let mut state = self.queue.lock();
        while state.batches.len() >= MOST_BATCHES {
            state = self.queue.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.batches.push_back((batch, 0));
        drop(state);
        self.queue.work.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queue.lock().stop = true;
        self.queue.work.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a thread that reads does not panic");
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some reads of the oldest batch; `None` when everything is read and the store ends.
    fn take(&self) -> Option<(Arc<Batch>, std::ops::Range<usize>)> {
        let mut state = self.lock();
        loop {
            if let Some((batch, next)) = state.batches.front_mut() {
                let start = *next;
                let end = (start + AT_ONCE).min(batch.reads.len());
                *next = end;
                let batch = batch.clone();
                if end == batch.reads.len() {
                    state.batches.pop_front();
                    self.room.notify_one();
                }
                return Some((batch, start..end));
            }
            if state.stop {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn serve(queue: &Queue) {
    let mut page = Buffer::pages(1);
    let mut pages: Option<Buffer> = None;
    while let Some((batch, range)) = queue.take() {
        for idx in range {
            let read = &batch.reads[idx];
            let buffer = match read.n_pages {
                1 => &mut page,
                _ => pages.get_or_insert_with(|| Buffer::pages(SCAN_PAGES as usize)),
            };
            let to = &mut buffer.bytes_mut()[..read.n_bytes()];
            let result = read.segment.read_pages(read.page, to);
            batch.complete(idx, result.map(|()| &*to));
        }
    }
}
