//! Calls that may take long: they run on a thread of their own, while the interpreter's thread
//! waits for them or for a signal. Ctrl-C ends the wait; the work is left to itself then.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::own;

/// How long a signal may wait.
const POLL: Duration = Duration::from_millis(100);

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
        let (done, result) = sync_channel(1);
        let work: Work = Box::new(move || drop(done.send(work())));
        self.give(work)?;
        wait(py, result)
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

fn wait<T: Send>(py: Python<'_>, result: Receiver<T>) -> PyResult<T> {
    let receiver = Mutex::new(result);
    loop {
        let received = py.detach(|| match receiver.lock() {
            Ok(receiver) => receiver.recv_timeout(POLL),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        });
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let message = "internal error: a thread has panicked; please report it";
                return Err(own("RegattaError", message.to_string()));
            }
        }
    }
}
