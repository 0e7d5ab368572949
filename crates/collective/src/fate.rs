//! What the threads of a rank know together: whether the job has failed, who has left, and what
//! each group is doing.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result, system};
use crate::header::Header;

/// Shared by all groups of a rank and its watch thread.
pub(crate) struct Fate {
    failed: AtomicBool,
    reason: Mutex<Option<Error>>,
    changed: Condvar,
    /// Becomes readable when the job fails and stays so.
    alarm: OwnedFd,
    left: Vec<AtomicBool>,
    /// The operation of each group: the last one it entered, and whether it is still in it.
    doing: Mutex<HashMap<u64, Activity>>,
}

/// What a group does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activity {
    pub(crate) header: Header,
    pub(crate) inside: bool,
}

impl Fate {
    pub(crate) fn new(size: usize) -> Result<Fate> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("cannot create an event descriptor", e))?;
        Ok(Fate {
            failed: AtomicBool::new(false),
            reason: Mutex::new(None),
            changed: Condvar::new(),
            alarm,
            left: (0..size).map(|_| AtomicBool::new(false)).collect(),
            doing: Mutex::default(),
        })
    }

    /// Records why the job fails; false when it had failed already, for the first reason.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let mut reason = lock(&self.reason);
        if reason.is_some() {
            return false;
        }
        *reason = Some(error);
        self.failed.store(true, Ordering::Release);
        drop(reason);
        self.changed.notify_all();
        // An eventfd takes eight bytes; it could only be full after 2^64 failures.
        let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
        true
    }

    /// Cheap enough for every turn of a loop.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn error(&self) -> Option<Error> {
        if self.has_failed() { lock(&self.reason).clone() } else { None }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    pub(crate) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// A rank has said goodbye.
    pub(crate) fn leave(&self, rank: usize) {
        let _order = lock(&self.reason);
        self.left[rank].store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.left[rank].load(Ordering::Acquire)
    }

    /// Why the connection to `rank` has ended: the watch thread may know in a moment.
    pub(crate) fn explain_end(&self, rank: usize, problem: &str, during: &Header) -> Error {
        const A_MOMENT: Duration = Duration::from_millis(500);
        let deadline = Instant::now() + A_MOMENT;
        let mut reason = lock(&self.reason);
        loop {
            if let Some(error) = &*reason {
                return error.clone();
            }
            if self.has_left(rank) {
                return Error::RankLeft { rank, during: during.to_string() };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Error::RankLost { rank, problem: problem.to_owned() };
            }
            reason =
                self.changed.wait_timeout(reason, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A group enters an operation.
    pub(crate) fn enter(&self, header: &Header) {
        lock(&self.doing).insert(header.group, Activity { header: *header, inside: true });
    }

    /// A group has completed its operation.
    pub(crate) fn finish(&self, group: u64) {
        if let Some(doing) = lock(&self.doing).get_mut(&group) {
            doing.inside = false;
        }
    }

    pub(crate) fn doing(&self, group: u64) -> Option<Activity> {
        lock(&self.doing).get(&group).copied()
    }

    pub(crate) fn forget(&self, group: u64) {
        lock(&self.doing).remove(&group);
    }
}

/// Locks survive a panicking holder: all state here is consistent between statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
