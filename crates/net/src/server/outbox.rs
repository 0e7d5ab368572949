//! The sending end of a server's connection: replies from any thread, none of which waits for a
//! slow client but the connection's own.
//!
//! Whoever finds the outbox idle writes directly from the caller's memory. A thread of another
//! connection (the last worker at a barrier answers for all) takes what the socket accepts at once;
//! the rest is copied and a flusher thread, which exists only while there is a rest, writes it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::pool::{Buf, Pool};
use crate::stream::{Stream, write_all, write_some};
use crate::sync::{lock, wait_for};

pub(super) struct Outbox {
    stream: Arc<dyn Stream>,
    pool: Pool,
    max_queued_bytes: usize,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Somebody is writing; only that thread may write or clear this.
    busy: bool,
    /// What follows, oldest first.
    queue: VecDeque<Buf>,
    queued_bytes: usize,
    /// The stream is unusable: an error, or a frame that was left half written.
    dead: bool,
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// The thread that reads this connection: waiting holds up nobody else.
    Own,
    /// Any other thread: must not wait.
    Other,
}

impl Outbox {
    pub(super) fn new(stream: Arc<dyn Stream>, pool: Pool, max_queued_bytes: usize) -> Outbox {
        let (state, idle) = (Mutex::default(), Condvar::new());
        Outbox { stream, pool, max_queued_bytes, state, idle }
    }

    /// Writes or queues one frame.
    ///
    /// # Errors
    /// When the stream is broken, the client did not read for the write timeout, or too much is
    /// queued for it. The caller closes the connection then.
    pub(super) fn send(
        self: &Arc<Self>,
        mut bufs: &mut [IoSlice<'_>],
        caller: Caller,
    ) -> io::Result<()> {
        let mut state = lock(&self.state);
        while state.busy && caller == Caller::Own && !state.dead {
            // The writer ends or fails within the write timeout; it notifies.
            state = wait_for(&self.idle, state, Duration::from_secs(1));
        }
        if state.dead {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if state.busy {
            if state.queued_bytes >= self.max_queued_bytes {
                let problem = format!("{} bytes of replies wait for it", state.queued_bytes);
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            self.enqueue(&mut state, bufs);
            return Ok(());
        }
        state.busy = true;
        drop(state);
        match caller {
            Caller::Own => {
                let written = write_all(&*self.stream, bufs, stalled);
                self.drain(written)
            }
            Caller::Other => {
                let written = write_some(&*self.stream, &mut bufs);
                self.hand_over(written, bufs)
            }
        }
    }

    /// Writes a short frame if nobody else is writing.
    pub(super) fn send_if_idle(self: &Arc<Self>, bytes: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        if state.busy || state.dead {
            return Ok(());
        }
        state.busy = true;
        drop(state);
        let bufs = &mut [IoSlice::new(bytes)];
        let mut bufs = &mut bufs[..];
        let written = write_some(&*self.stream, &mut bufs);
        self.hand_over(written, bufs)
    }

    /// Waits until nothing is left to write; false after `limit`.
    pub(super) fn wait_idle(&self, limit: Duration) -> bool {
        let deadline = std::time::Instant::now() + limit;
        let mut state = lock(&self.state);
        while state.busy && !state.dead {
            let (next, in_time) = crate::sync::wait_until(&self.idle, state, deadline);
            state = next;
            if !in_time {
                return false;
            }
        }
        !state.dead
    }

    fn enqueue(&self, state: &mut State, bufs: &[IoSlice<'_>]) {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let mut copy = self.pool.take(len);
        for buf in bufs {
            copy.extend_from_slice(buf);
        }
        state.queued_bytes += len;
        state.queue.push_back(copy);
    }

    /// The end of a write that did not block: `rest` goes before what others have queued meanwhile,
    /// and a flusher takes over if there is anything.
    fn hand_over(
        self: &Arc<Self>,
        written: io::Result<()>,
        rest: &[IoSlice<'_>],
    ) -> io::Result<()> {
        if written.is_err() {
            return self.die(written);
        }
        let mut state = lock(&self.state);
        if !rest.is_empty() {
            self.enqueue(&mut state, rest);
            let queued = state.queue.len();
            state.queue.rotate_right(usize::from(queued > 1));
        }
        if state.queue.is_empty() {
            state.busy = false;
            drop(state);
            self.idle.notify_all();
            return Ok(());
        }
        drop(state);
        let outbox = self.clone();
        let flusher = thread::Builder::new().name("net-flush".to_owned()).spawn(move || {
            // The connection's own thread learns of an error when it reads or writes next.
            let _ = outbox.drain(Ok(()));
        });
        match flusher {
            Ok(_) => Ok(()),
            Err(error) => self.die(Err(error)),
        }
    }

    /// The end of a write that may block: what others have queued meanwhile follows.
    fn drain(&self, mut written: io::Result<()>) -> io::Result<()> {
        loop {
            if written.is_err() {
                return self.die(written);
            }
            let mut state = lock(&self.state);
            let Some(next) = state.queue.pop_front() else {
                state.busy = false;
                drop(state);
                self.idle.notify_all();
                return Ok(());
            };
            state.queued_bytes -= next.len();
            drop(state);
            written = write_all(&*self.stream, &mut [IoSlice::new(&next)], stalled);
        }
    }

    /// A frame may be half written, so nothing may follow it.
    fn die(&self, error: io::Result<()>) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.dead = true;
        state.busy = false;
        state.queue.clear();
        state.queued_bytes = 0;
        drop(state);
        self.idle.notify_all();
        // Wakes the reader of this connection.
        self.stream.shutdown(std::net::Shutdown::Both);
        error
    }
}

/// The write timeout of a server's stream is as long as a client may go without reading.
fn stalled() -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its replies"))
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::stream::Wait;

    /// Takes three bytes without waiting, during which another reply arrives, and then no more.
    #[derive(Default)]
    struct Clogged {
        outbox: OnceLock<Arc<Outbox>>,
        clogged: AtomicBool,
        taken: Mutex<Vec<u8>>,
    }

    impl fmt::Debug for Clogged {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Clogged")
        }
    }

    impl Stream for Clogged {
        fn read(&self, _: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
        fn write(&self, bufs: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
            if wait == Wait::No {
                if self.clogged.swap(true, Ordering::SeqCst) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let outbox = self.outbox.get().unwrap();
                outbox.send(&mut [IoSlice::new(b"second")], Caller::Other).unwrap();
                outbox.send(&mut [IoSlice::new(b"third")], Caller::Other).unwrap();
                outbox.send_if_idle(b"never").unwrap();
            }
            let n = bufs[0].len().min(3);
            lock(&self.taken).extend_from_slice(&bufs[0][..n]);
            Ok(n)
        }
        fn set_read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
            Ok(())
        }
        fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
            Ok(())
        }
        fn shutdown(&self, _: std::net::Shutdown) {}
        fn peer(&self) -> String {
            String::new()
        }
        fn transport(&self) -> &'static str {
            "memory"
        }
        fn is_local(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_rest_of_a_frame_goes_before_frames_that_came_meanwhile() {
        let stream = Arc::new(Clogged::default());
        let outbox = Arc::new(Outbox::new(stream.clone(), Pool::default(), 1000));
        stream.outbox.set(outbox.clone()).ok().unwrap();
        outbox.send(&mut [IoSlice::new(b"first"), IoSlice::new(b"!")], Caller::Other).unwrap();
        assert!(outbox.wait_idle(Duration::from_secs(20)));
        assert_eq!(*lock(&stream.taken), b"first!secondthird");
    }
}
