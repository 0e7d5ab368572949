//! Data passes as the program says them: what a worker holds goes back to its servers at the end.

use super::Fleet;
use crate::Error;

/// A data pass that has begun; it ends when this is dropped. [`DataPass::end`] reports a failure,
/// which otherwise leaves the worker unable to continue.
#[must_use = "the data pass ends when this is dropped"]
pub struct DataPass {
    fleet: Option<Fleet>,
}

impl DataPass {
    /// Ends it.
    ///
    /// # Errors
    /// As [`Fleet::end_pass`].
    pub fn end(mut self) -> Result<(), Error> {
        self.fleet.take().map_or(Ok(()), |fleet| fleet.end_pass())
    }
}

impl Drop for DataPass {
    fn drop(&mut self) {
        if let Some(fleet) = self.fleet.take() {
            // The next call of the worker reports it: the worker has failed.
            let _ = fleet.end_pass();
        }
    }
}

impl Fleet {
    /// A data pass that cannot be left open: it ends with the guard.
    ///
    /// # Errors
    /// As [`Fleet::begin_pass`].
    pub fn data_pass(&self) -> Result<DataPass, Error> {
        self.begin_pass()?;
        Ok(DataPass { fleet: Some(self.clone()) })
    }

    /// Begins a data pass: from here to [`Fleet::end_pass`] a worker may hold rows of its servers,
    /// on a device for example.
    ///
    /// # Errors
    /// If a data pass has begun already, this process is no worker, or nothing was minimized.
    pub fn begin_pass(&self) -> Result<(), Error> {
        let mut state = self.worker_state("begin_pass")?;
        if state.in_pass {
            let reason = "a data pass has begun already; call end_pass first".to_string();
            return Err(Error::Order { call: "begin_pass", reason });
        }
        state.in_pass = true;
        Ok(())
    }

    /// Ends a data pass: servers have all that this worker has changed. It keeps what it holds
    /// for the next one.
    ///
    /// # Errors
    /// If no data pass has begun, or a server is gone.
    pub fn end_pass(&self) -> Result<(), Error> {
        let mut state = self.worker_state("end_pass")?;
        if !std::mem::take(&mut state.in_pass) {
            let reason = "no data pass has begun; call begin_pass first".to_string();
            return Err(Error::Order { call: "end_pass", reason });
        }
        let outcome = state.engine.as_mut().map_or(Ok(()), |engine| engine.end_pass());
        state.failed |= outcome.is_err();
        Ok(outcome?)
    }
}
