//! Calls that may take long: they run on a thread of their own, while the interpreter's thread
//! waits for them or for a signal. Ctrl-C ends the wait; work that looks at its [`Interrupt`] ends
//! with it, other work is left to itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::own;

/// How long a signal may wait.
const POLL: Duration = Duration::from_millis(50);

/// How long an interrupted call waits for its work to end. Both together stay below half a second.
const PATIENCE: Duration = Duration::from_millis(200);

/// Says to work that it should end.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Whether a signal has come.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// The same, for code that knows nothing of Python.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.requested
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that does one thing after the other. It is made when it is first needed.
#[derive(Default)]
pub(crate) struct Lane {
    work: Mutex<Option<SyncSender<Work>>>,
}

impl Lane {
    /// Does some work on the thread and waits for it.
    ///
    /// # Errors
    /// If a signal handler raises, or the work panics.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<T> {
        self.run_until(py, &Interrupt::default(), work)
    }

    /// As [`Lane::run`], and a signal tells the work that it should end.
    ///
    /// # Errors
    /// As [`Lane::run`].
    pub(crate) fn run_until<T: Send + 'static>(
        &self,
        py: Python<'_>,
        interrupt: &Interrupt,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<T> {
        let (done, result) = sync_channel(1);
        let work: Work = Box::new(move || drop(done.send(work())));
        self.give(work)?;
        wait(py, interrupt, result)
    }

    fn give(&self, work: Work) -> PyResult<()> {
        let mut lane = self.work.lock().unwrap_or_else(|e| e.into_inner());
        let work = match &*lane {
            Some(sender) => match sender.try_send(work) {
                Ok(()) => return Ok(()),
                // Busy with what an interrupt has left behind, or ended by a panic.
                Err(e) => match e {
                    std::sync::mpsc::TrySendError::Full(work) => work,
                    std::sync::mpsc::TrySendError::Disconnected(work) => work,
                },
            },
            None => work,
        };
        let (sender, receiver) = sync_channel::<Work>(1);
        std::thread::Builder::new()
            .name("regatta".to_string())
            .spawn(move || receiver.into_iter().for_each(|work| work()))
            .map_err(|e| own("RegattaError", format!("cannot start a thread: {e}")))?;
        let sent = sender.try_send(work);
        debug_assert!(sent.is_ok(), "a new queue has room");
        *lane = Some(sender);
        Ok(())
    }
}

fn wait<T: Send>(py: Python<'_>, interrupt: &Interrupt, result: Receiver<T>) -> PyResult<T> {
    let receiver = Mutex::new(result);
    let receive = |limit: Duration| {
        py.detach(|| match receiver.lock() {
            Ok(receiver) => receiver.recv_timeout(limit),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        })
    };
    loop {
        match receive(POLL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    interrupt.requested.store(true, Ordering::Relaxed);
                    drop(receive(PATIENCE));
                    return Err(raised);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                let message = "internal error: a thread has panicked; please report it";
                return Err(own("RegattaError", message.to_string()));
            }
        }
    }
}
