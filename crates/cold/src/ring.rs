//! Reads by io_uring: one thread keeps up to 256 of them under way, whatever batches they are of.
//!
//! A thread of its own submits and completes, so the queue of the disk stays full while whoever
//! wants the records computes. An event wakes it when a batch comes. Measured in
//! `docs/decisions/0025-own-store-for-cold-rows.md`.

#![expect(unsafe_code, reason = "the kernel writes into buffers of this file")]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::Error;
use crate::batch::Batch;
use crate::buffer::Buffer;
use crate::engine::{Engine, MOST_BATCHES};

/// Reads under way at most.
const DEPTH: usize = 256;

/// Pages of reads under way at most: reads in sequence are of many pages.
const MOST_PAGES: usize = 2048;

/// What the read of the event is known by; reads of pages by their place.
const WAKE: u64 = u64::MAX;

pub(crate) struct Ring {
    inbox: Arc<Inbox>,
    wake: File,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Arc<Batch>>,
    stop: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// Makes the ring, and reads something by it: a system may allow the one and not the other.
    pub(crate) fn start() -> Result<Ring, Error> {
        let failed = |e: io::Error| Error::start("io_uring", e);
        let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let wake = File::from(event);
        let inbox = Arc::new(Inbox::default());
        let (said, started) = sync_channel(1);
        let (seen, event) = (inbox.clone(), wake.try_clone().map_err(failed)?);
        let run = move || match Loop::new(seen, event) {
            Ok(mut serving) => {
                let _ = said.send(Ok(()));
                serving.run();
            }
            Err(error) => drop(said.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("cold-ring".into()).spawn(run);
        let thread = Some(thread.map_err(failed)?);
        let ring = Ring { inbox, wake, thread };
        let gone = || io::Error::other("its thread ended");
        started.recv().unwrap_or_else(|_| Err(gone())).map_err(failed)?;
        Ok(ring)
    }

    fn wake(&self) {
        let written = (&self.wake).write_all(&1_u64.to_ne_bytes());
        written.expect("an event that its reader empties takes another one");
    }
}

impl Engine for Ring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn start(&self, batch: Arc<Batch>) {
        let mut state = self.inbox.lock();
        while state.batches.len() >= MOST_BATCHES {
            state = self.inbox.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.batches.push_back(batch);
        drop(state);
        self.wake();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.inbox.lock().stop = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread of the ring does not panic");
        }
    }
}

/// A read under way: its buffer is the kernel's until it completes.
struct Place {
    buffer: Buffer,
    read: Option<(Arc<Batch>, usize)>,
}

struct Loop {
    ring: IoUring,
    inbox: Arc<Inbox>,
    wake: File,
    /// What the kernel reads the event into.
    count: Buffer,
    armed: bool,
    places: Vec<Place>,
    free: Vec<usize>,
    n_pages: usize,
    /// Batches, and the next read of each.
    pending: VecDeque<(Arc<Batch>, usize)>,
}

impl Loop {
    fn new(inbox: Arc<Inbox>, wake: File) -> io::Result<Loop> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(2 * DEPTH as u32)
            // Kernels before 6.1 do not know these.
            .or_else(|_| IoUring::new(2 * DEPTH as u32))?;
        let places = (0..DEPTH).map(|_| Place { buffer: Buffer::pages(1), read: None }).collect();
        let (free, pending) = ((0..DEPTH).rev().collect(), VecDeque::new());
        let count = Buffer::pages(1);
        let (armed, n_pages) = (false, 0);
        let mut serving = Loop { ring, inbox, wake, count, armed, places, free, n_pages, pending };
        serving.prove()?;
        Ok(serving)
    }

    /// Reads the event once.
    fn prove(&mut self) -> io::Result<()> {
        (&self.wake).write_all(&1_u64.to_ne_bytes())?;
        self.arm();
        self.ring.submit_and_wait(1)?;
        let result = self.ring.completion().next().map_or(-5, |done| done.result());
        self.armed = false;
        if result == 8 { Ok(()) } else { Err(io::Error::from_raw_os_error(-result.min(-1))) }
    }

    fn run(&mut self) {
        while self.accept() {
            self.fill();
            self.arm();
            // Waiting for 32 of many costs as much CPU per read: 3.0 instead of 3.1 us.
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if again(&e) => {}
                Err(e) => return self.give_up(&e),
            }
            self.reap();
        }
    }

    /// Takes new batches. False when the store ends and everything is read.
    fn accept(&mut self) -> bool {
        let mut state = self.inbox.lock();
        self.pending.extend(state.batches.drain(..).map(|batch| (batch, 0)));
        self.inbox.room.notify_all();
        !(state.stop && self.pending.is_empty() && self.free.len() == DEPTH)
    }

    /// Submits reads while there are places.
    fn fill(&mut self) {
        while self.n_pages < MOST_PAGES {
            let Some((batch, next)) = self.pending.front_mut() else { return };
            let Some(place) = self.free.pop() else { return };
            let (batch, idx) = (batch.clone(), *next);
            *next += 1;
            if *next == batch.reads.len() {
                self.pending.pop_front();
            }
            self.n_pages += batch.reads[idx].n_pages as usize;
            self.submit(place, batch, idx);
        }
    }

    fn submit(&mut self, at: usize, batch: Arc<Batch>, idx: usize) {
        let read = &batch.reads[idx];
        let place = &mut self.places[at];
        if place.buffer.n_pages() != read.n_pages as usize {
            place.buffer = Buffer::pages(read.n_pages as usize);
        }
        let to = place.buffer.bytes_mut();
        let (fd, offset) = (read.segment.file.as_raw_fd(), read.offset());
        let entry = read_entry(fd, to, offset).user_data(at as u64);
        place.read = Some((batch, idx));
        self.push(&entry);
    }

    /// Asks for the next event.
    fn arm(&mut self) {
        if !self.armed {
            let to = &mut self.count.bytes_mut()[..8];
            let entry = read_entry(self.wake.as_raw_fd(), to, 0).user_data(WAKE);
            self.push(&entry);
            self.armed = true;
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry reads into a buffer of `places` or `count` from a file that the batch
        // of the place, or this loop, holds open. A buffer is replaced only while the kernel has no
        // read for it, and both outlive the read: `run` ends when no place is taken, and `Drop`
        // leaks the buffers of reads that are still under way.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the queue has twice as many entries as there are places");
    }

    /// Completes what has arrived.
    fn reap(&mut self) {
        loop {
            let next = self.ring.completion().next();
            let Some(done) = next else { return };
            match done.user_data() {
                WAKE => self.armed = false,
                at => self.complete(at as usize, done.result()),
            }
        }
    }

    fn complete(&mut self, at: usize, result: i32) {
        let Some((batch, idx)) = self.places[at].read.take() else { return };
        let error = io::Error::from_raw_os_error(-result);
        if result < 0 && again(&error) {
            return self.submit(at, batch, idx);
        }
        let read = &batch.reads[idx];
        let bytes = match usize::try_from(result) {
            Ok(n) => Ok(&self.places[at].buffer.bytes()[..n]),
            Err(_) => Err(Error::io("read", &read.segment.path, read.offset(), error)),
        };
        batch.complete(idx, bytes);
        self.n_pages -= read.n_pages as usize;
        if read.n_pages > 1 {
            self.places[at].buffer = Buffer::pages(1);
        }
        self.free.push(at);
    }

    /// The ring itself failed: every read of every batch does, from now on.
    fn give_up(&mut self, error: &io::Error) {
        let under_way: Vec<_> = self.places.iter().filter_map(|place| place.read.clone()).collect();
        for (batch, idx) in under_way {
            fail(&batch, idx, error);
        }
        loop {
            for (batch, next) in std::mem::take(&mut self.pending) {
                (next..batch.reads.len()).for_each(|idx| fail(&batch, idx, error));
            }
            let stop = self.inbox.lock().stop;
            if stop {
                return;
            }
            // Without a ring there is nothing better to wait for than the event itself.
            let _ = io::Read::read(&mut &self.wake, &mut [0; 8]);
            self.accept();
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        for place in self.places.drain(..).filter(|place| place.read.is_some()) {
            std::mem::forget(place);
        }
        if self.armed {
            std::mem::forget(std::mem::replace(&mut self.count, Buffer::pages(0)));
        }
    }
}

fn fail(batch: &Batch, idx: usize, error: &io::Error) {
    let read = &batch.reads[idx];
    let copy = io::Error::new(error.kind(), error.to_string());
    batch.complete(idx, Err(Error::io("read", &read.segment.path, read.offset(), copy)));
}

fn read_entry(fd: RawFd, to: &mut [u8], offset: u64) -> squeue::Entry {
    opcode::Read::new(types::Fd(fd), to.as_mut_ptr(), to.len() as u32).offset(offset).build()
}

fn again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}
