//! Saved models that answer.

use std::sync::Mutex;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyList};
use regatta_features::Value;
use regatta_predict::{InputKind, Options, RawRows, Session};

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

    /// The columns of raw rows that it takes, if its features were declared.
    fn columns(&self) -> Option<Vec<String>> {
        self.model.transform().map(|transform| transform.columns().to_vec())
    }

    /// Outputs for rows of raw values: for each of them a list with a value for each column.
    fn predict_rows<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyList>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let Some(mut raw) = RawRows::new(&self.model) else {
            return Err(PyValueError::new_err("the model was trained without declared features"));
        };
        for row in rows.iter() {
            let cells =
                row.try_iter()?.map(|value| Cell::read(&value?)).collect::<PyResult<Vec<_>>>()?;
            if cells.len() != raw.columns().len() {
                let reason = format!("{} of {} values in a row", cells.len(), raw.columns().len());
                return Err(PyValueError::new_err(reason));
            }
            let lists: Vec<Vec<Value<'_>>> = cells.iter().map(Cell::values).collect();
            let values: Vec<Value<'_>> = cells.iter().zip(&lists).map(Cell::value).collect();
            raw.push(&values).map_err(|e| PyValueError::new_err(e.to_string()))?;
        }
        self.score(py, raw.batch().map_err(raise)?)
    }

    fn predict<'py>(
        &self,
        py: Python<'py>,
        feed: &Bound<'py, PyDict>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut feeds = Vec::new();
        read_feeds(feed, &mut feeds)?;
        self.score(py, feeds)
    }
}

impl Model {
    fn score<'py>(
        &self,
        py: Python<'py>,
        feeds: Vec<(String, regatta_tensor::Value)>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let free = self.sessions.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let mut session = match free {
            Some(session) => session,
            None => self.model.session().map_err(raise)?,
        };
        let scores = py.detach(|| {
            let feeds: Vec<_> = feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();
            session.score(&feeds).map(<[_]>::to_vec)
        });
        self.sessions.lock().unwrap_or_else(|e| e.into_inner()).push(session);
        scores.map_err(raise)?.iter().map(|tensor| to_numpy(py, tensor)).collect()
    }
}

/// A raw value of Python.
enum Cell {
    Missing,
    Text(PyBackedStr),
    Int(i128),
    Float(f64),
    List(Vec<Cell>),
}

impl Cell {
    fn read(value: &Bound<'_, PyAny>) -> PyResult<Cell> {
        if value.is_none() {
            return Ok(Cell::Missing);
        }
        if let Ok(text) = value.extract::<PyBackedStr>() {
            return Ok(Cell::Text(text));
        }
        if let Ok(x) = value.extract::<i128>() {
            return Ok(Cell::Int(x));
        }
        if let Ok(x) = value.extract::<f64>() {
            return Ok(Cell::Float(x));
        }
        let kind = value.get_type().name()?.to_string();
        match value.try_iter() {
            Ok(values) => {
                values.map(|value| Cell::read(&value?)).collect::<PyResult<_>>().map(Cell::List)
            }
            Err(_) => Err(PyTypeError::new_err(format!(
                "a raw value is a text, a number, None or a list of these, but this is a {kind}"
            ))),
        }
    }

    /// The values of a list.
    fn values(&self) -> Vec<Value<'_>> {
        match self {
            Cell::List(cells) => cells.iter().map(Cell::alone).collect(),
            _ => Vec::new(),
        }
    }

    fn value<'a>((cell, list): (&'a Cell, &'a Vec<Value<'a>>)) -> Value<'a> {
        match cell {
            Cell::List(_) => Value::List(list),
            other => other.alone(),
        }
    }

    fn alone(&self) -> Value<'_> {
        match self {
            Cell::Missing | Cell::List(_) => Value::Missing,
            Cell::Text(text) => Value::Text(text.as_bytes()),
            Cell::Int(x) => Value::Int(*x),
            Cell::Float(x) => Value::Float(*x),
        }
    }
}
