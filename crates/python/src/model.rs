//! Saved models that answer.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use regatta_predict::{InputKind, Options, Session};

use crate::array::{read_feeds, to_numpy};
use crate::error::raise;

/// A saved model. Threads that predict at once have a session each.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Model {
    model: regatta_predict::Model,
    sessions: Mutex<Vec<Session>>,
}

#[pymethods]
impl Model {
    #[staticmethod]
    #[pyo3(signature = (dir, threads = 1))]
    fn open(py: Python<'_>, dir: String, threads: usize) -> PyResult<Model> {
        let options = Options { threads, ..Options::default() };
        let model = py.detach(|| regatta_predict::Model::open_with(dir, options)).map_err(raise)?;
        Ok(Model { model, sessions: Mutex::default() })
    }

    fn inputs(&self) -> Vec<(String, &'static str, Vec<i64>, &'static str)> {
        let input = |input: &regatta_predict::Input| {
            let (dtype, layout) = match input.kind {
                InputKind::Ids(_) => ("u64", "dense"),
                InputKind::RaggedIds => ("u64", "ragged"),
                InputKind::Floats(_) => ("f32", "dense"),
                InputKind::Ints(_) => ("i64", "dense"),
            };
            let dims = input.dims.iter().map(|&d| d as i64);
            let shape = std::iter::once(-1).chain(dims).collect();
            (input.name.clone(), dtype, shape, layout)
        };
        self.model.inputs().iter().map(input).collect()
    }

    fn outputs(&self) -> Vec<String> {
        self.model.outputs().to_vec()
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.model.info();
        let dict = PyDict::new(py);
        dict.set_item("name", info.name)?;
        dict.set_item("step", info.step)?;
        dict.set_item("tables", info.tables)?;
        dict.set_item("rows", info.rows)?;
        dict.set_item("bytes", info.bytes)?;
        dict.set_item("dense_parameters", info.dense_parameters)?;
        Ok(dict)
    }

    fn predict<'py>(
        &self,
        py: Python<'py>,
        feed: &Bound<'py, PyDict>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let free = self.sessions.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let mut session = match free {
            Some(session) => session,
            None => self.model.session().map_err(raise)?,
        };
        let mut feeds = Vec::new();
        read_feeds(feed, &mut feeds)?;
        let scores = py.detach(|| {
            let feeds: Vec<_> = feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();
            session.score(&feeds).map(<[_]>::to_vec)
        });
        self.sessions.lock().unwrap_or_else(|e| e.into_inner()).push(session);
        scores.map_err(raise)?.iter().map(|tensor| to_numpy(py, tensor)).collect()
    }
}
