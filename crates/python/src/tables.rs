//! Rows on servers for programs that compute elsewhere, such as PyTorch's.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use regatta_ps::message::{Gradients, PullSpec, ReduceOp};
use regatta_ps::{Client, Pulled};
use regatta_tensor::{Data, Tensor};

use crate::array::{tensor_of, to_numpy};
use crate::error::{own, raise, wrong};
use crate::fleet::Fleet;
use crate::lane::Lane;

/// The tables of a job, as one worker sees them.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Tables {
    client: Arc<Client>,
    lane: Lane,
    names: Vec<String>,
    dims: Vec<usize>,
    step: Mutex<u64>,
}

#[pymethods]
impl Tables {
    #[staticmethod]
    fn connect(py: Python<'_>, fleet: &Fleet) -> PyResult<Tables> {
        let client = fleet.alone(py, regatta_fleet::Fleet::table_client)?;
        let names = client.tables().iter().map(|table| table.name.clone()).collect();
        let dims = client.tables().iter().map(|table| table.dim).collect();
        let (client, lane) = (Arc::new(client), Lane::default());
        Ok(Tables { client, lane, names, dims, step: Mutex::new(0) })
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    #[pyo3(signature = (table, keys, test = false))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        keys: &Bound<'py, PyAny>,
        test: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check(table)?;
        let keys = keys_of(keys)?;
        let (dim, tables, step) = (self.dims[table], self.dims.len(), self.step());
        let rows = self.on(py, move |client| {
            let none: &[u64] = &[];
            let all: Vec<&[u64]> =
                (0..tables).map(|i| if i == table { &keys } else { none }).collect();
            let spec = PullSpec { step, test, dense: false, keys: &all, counts: &[] };
            let mut rows = vec![0.0; keys.len() * dim];
            let mut empty: Vec<Vec<f32>> = vec![Vec::new(); tables];
            let mut to: Vec<&mut [f32]> = empty.iter_mut().map(Vec::as_mut_slice).collect();
            to[table] = &mut rows;
            match client.finish_pull(client.pull(&spec)?, &mut to, &mut [])? {
                Pulled::Values => Ok((keys.len(), rows)),
                Pulled::Deferred => {
                    Err(regatta_ps::Error::Usage("a snapshot is open, and has no rows".into()))
                }
            }
        })?;
        let (n, rows) = rows;
        to_numpy(py, &Tensor::from_f32(&[n, dim], rows).map_err(raise)?)
    }

    fn push(
        &self,
        py: Python<'_>,
        gradients: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        examples: u64,
    ) -> PyResult<()> {
        if gradients.len() != self.dims.len() {
            let (have, want) = (gradients.len(), self.dims.len());
            return Err(wrong(format!("gradients of {have} tables, but there are {want}")));
        }
        let mut owned = Vec::with_capacity(gradients.len());
        for ((keys, rows), (name, dim)) in gradients.iter().zip(self.names.iter().zip(&self.dims)) {
            let (keys, rows) = (keys_of(keys)?, tensor_of(name, rows)?);
            if rows.shape() != [keys.len(), *dim] {
                return Err(wrong(format!(
                    "'{name}': {} keys take gradients of shape [{}, {dim}], not {:?}",
                    keys.len(),
                    keys.len(),
                    rows.shape()
                )));
            }
            let Data::F32(rows) = rows.into_data() else {
                return Err(wrong(format!("'{name}': gradients are float32")));
            };
            owned.push((keys, rows));
        }
        let step = self.step();
        self.on(py, move |client| {
            let tables: Vec<(&[u64], &[f32])> =
                owned.iter().map(|(keys, rows)| (keys.as_slice(), rows.as_slice())).collect();
            let gradients = Gradients { step, examples, dense: &[], tables: &tables, mark: None };
            client.finish_push(client.push(&gradients)?)
        })?;
        *self.step.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        Ok(())
    }

    fn reduce(&self, py: Python<'_>, values: Vec<f64>, op: &str) -> PyResult<Vec<f64>> {
        let op = match op {
            "sum" => ReduceOp::Sum,
            "max" => ReduceOp::Max,
            "min" => ReduceOp::Min,
            _ => return Err(wrong(format!("'{op}' is not sum, max or min"))),
        };
        self.on(py, move |client| client.reduce("reduce", op, &values))
    }

    fn save(&self, py: Python<'_>, dir: String) -> PyResult<()> {
        self.on(py, move |client| client.save(&dir, regatta_table::SaveMode::All))
    }

    fn load(&self, py: Python<'_>, dir: String) -> PyResult<()> {
        self.on(py, move |client| client.load(&dir, &[]))
    }

    fn leave(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.on(py, Client::leave)
    }
}

impl Tables {
    fn step(&self) -> u64 {
        *self.step.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn check(&self, table: usize) -> PyResult<()> {
        match table < self.dims.len() {
            true => Ok(()),
            false => Err(wrong(format!("table {table}: there are {}", self.dims.len()))),
        }
    }

    fn on<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Client) -> Result<T, regatta_ps::Error> + Send + 'static,
    ) -> PyResult<T> {
        let client = self.client.clone();
        self.lane.run(py, move || work(&client))?.map_err(raise)
    }
}

fn keys_of(keys: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    match tensor_of("keys", keys)?.into_data() {
        Data::U64(keys) => Ok(keys),
        Data::I64(keys) => match keys.iter().find(|key| **key < 0) {
            Some(key) => Err(wrong(format!("{key} is no id, ids begin with 0"))),
            None => Ok(keys.into_iter().map(|key| key as u64).collect()),
        },
        _ => Err(own("RegattaError", "keys are integers".to_string())),
    }
}
