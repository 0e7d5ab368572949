//! Gradients of tensors that ranks average during backward.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyList;
use regatta_eager as eager;
use regatta_ops::comm::{Comm, Exchange, Reply};
use regatta_train::GroupComm;

use crate::eager_op::tensors_of;
use crate::error::{raise, wrong};
use crate::group::Group;
use crate::tensor::raise as raise_eager;

/// How long a signal may wait.
const POLL: Duration = Duration::from_millis(100);

/// Averages the gradients of tensors over all ranks of a group in every backward.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Reducer {
    reducer: eager::Reducer,
}

#[pymethods]
impl Reducer {
    #[new]
    #[pyo3(signature = (group, name, names, tensors, by_rows, bucket_bytes, last_bucket_bytes,
        find_unused, check_every))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python are named")]
    fn new(
        group: &Group,
        name: String,
        names: Vec<String>,
        tensors: &Bound<'_, PyList>,
        by_rows: Vec<bool>,
        bucket_bytes: usize,
        last_bucket_bytes: usize,
        find_unused: bool,
        check_every: u64,
    ) -> PyResult<Reducer> {
        let tensors = tensors_of(tensors)?;
        if names.len() != tensors.len() || by_rows.len() != tensors.len() {
            return Err(wrong("Reducer: one name and one by_rows for each tensor"));
        }
        let params = tensors.iter().zip(names).zip(by_rows).map(|((tensor, name), by_rows)| {
            eager::Replica { name, tensor: tensor.get().inner.clone(), by_rows }
        });
        let options = eager::ReducerOptions {
            name,
            bucket_bytes,
            last_bucket_bytes,
            find_unused,
            check_every,
        };
        let line = Arc::new(Line { comm: group.comm.clone() });
        let reducer = eager::Reducer::new(line, params.collect(), options);
        Ok(Reducer { reducer: reducer.map_err(raise_eager)? })
    }

    fn set_sync(&self, sync: bool) {
        self.reducer.set_sync(sync);
    }

    fn buckets(&self) -> Vec<Vec<String>> {
        let buckets = self.reducer.buckets().into_iter();
        buckets.map(|bucket| bucket.into_iter().map(str::to_string).collect()).collect()
    }
}

/// The way to other ranks. Waits end with a signal.
struct Line {
    comm: Arc<GroupComm>,
}

impl eager::Ranks for Line {
    fn size(&self) -> usize {
        self.comm.size()
    }

    fn start(&self, name: &Arc<str>, exchange: Exchange) -> eager::Result<()> {
        self.comm.start(name, exchange).map_err(|e| hook(crate::error::own("PeerLost", e.0)))
    }

    fn wait(&self, name: &str) -> eager::Result<Reply> {
        loop {
            match self.comm.wait_for(name, POLL) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => Python::attach(|py| py.check_signals()).map_err(hook)?,
                Err(error) => return Err(hook(explained(error))),
            }
        }
    }
}

/// With the usual reason for a rank that does something else, or has left.
fn explained(error: regatta_train::Error) -> PyErr {
    use regatta_collective::Error as E;
    match &error {
        regatta_train::Error::Collective(inner)
            if matches!(**inner, E::Mismatch { .. } | E::RankLeft { .. }) =>
        {
            let hint = "do all ranks have the same number of batches?";
            crate::error::own("PeerLost", format!("{error}; {hint}"))
        }
        _ => raise(error),
    }
}

fn hook(raised: PyErr) -> eager::Error {
    eager::Error::Hook(Box::new(raised))
}

/// Numbers that stand for all bits of tensors.
#[pyfunction]
pub(crate) fn fingerprints(py: Python<'_>, tensors: &Bound<'_, PyList>) -> PyResult<Vec<u64>> {
    let tensors = tensors_of(tensors)?;
    let tensors: Vec<eager::Tensor> = tensors.iter().map(|t| t.get().inner.clone()).collect();
    Ok(py.detach(|| tensors.iter().map(eager::Tensor::fingerprint).collect()))
}
