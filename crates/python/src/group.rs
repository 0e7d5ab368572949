//! Ranks that exchange arrays.

use std::sync::Arc;

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use regatta_cluster::{CollectivePlace, Env, Place, PsPlace, PsRole, names};
use regatta_collective::{ReduceOp, Transport, Wire};
use regatta_tensor::{DType, Tensor};
use regatta_train::GroupComm;

use crate::array::{tensor_of, to_numpy};
use crate::error::{raise, wrong};
use crate::lane::Lane;

/// All ranks of a collective job. Exchanges are performed one after the other by a thread, those of
/// reducers in the background.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Group {
    pub(crate) comm: Arc<GroupComm>,
    lane: Lane,
    rank: usize,
    size: usize,
}

#[pymethods]
impl Group {
    /// Joins the ranks of this job, as the environment says; a process without a job is alone. The
    /// workers of a job with servers are ranks, too, if they know each other's addresses.
    #[staticmethod]
    fn join(py: Python<'_>) -> PyResult<Group> {
        let lane = Lane::default();
        let joined = lane.run(py, || match Place::from_env(&Env::process())? {
            Place::Collective(place) => regatta_fleet::collective::join(&place, Transport::Auto),
            Place::Local => Ok(regatta_collective::Group::in_memory(1)?.remove(0)),
            Place::ParameterServer(place) => {
                regatta_fleet::collective::join(&among_workers(place)?, Transport::Auto)
            }
        })?;
        let group = joined.map_err(raise)?;
        let (rank, size) = (group.rank(), group.size());
        let comm = Arc::new(GroupComm::new(group).map_err(raise)?);
        Ok(Group { comm, lane, rank, size })
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    #[pyo3(signature = (values, op = "sum"))]
    fn all_reduce(&self, py: Python<'_>, values: &Bound<'_, PyAny>, op: &str) -> PyResult<()> {
        let op = match op {
            "sum" => ReduceOp::Sum,
            "max" => ReduceOp::Max,
            "min" => ReduceOp::Min,
            "prod" => ReduceOp::Prod,
            "mean" | "avg" => ReduceOp::Mean,
            _ => return Err(wrong(format!("'{op}' is not sum, max, min, prod or mean"))),
        };
        self.in_place(py, values, move |group, data| {
            group.all_reduce("all_reduce", data, op, Wire::F32)
        })
    }

    fn broadcast(&self, py: Python<'_>, values: &Bound<'_, PyAny>, root: usize) -> PyResult<()> {
        self.in_place(py, values, move |group, data| group.broadcast("broadcast", data, root))
    }

    /// `name` says to other ranks what this is, if they do something else.
    #[pyo3(signature = (values, name = "all_gather".to_string()))]
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensor = tensor_of("values", values)?;
        if tensor.dtype() != DType::F32 {
            return Err(wrong("the values should be a numpy array of float32"));
        }
        let shape: Vec<usize> =
            std::iter::once(self.size).chain(tensor.shape().iter().copied()).collect();
        let all = self.on(py, move |group| group.all_gather(&name, tensor.f32()))?;
        to_numpy(py, &Tensor::from_f32(&shape, all).map_err(raise)?)
    }

    fn send(&self, py: Python<'_>, values: &Bound<'_, PyAny>, to: usize) -> PyResult<()> {
        let tensor = tensor_of("values", values)?;
        if tensor.dtype() != DType::F32 {
            return Err(wrong("the values should be a numpy array of float32"));
        }
        self.on(py, move |group| group.send("send", tensor.f32(), to))
    }

    fn recv(&self, py: Python<'_>, values: &Bound<'_, PyAny>, from: usize) -> PyResult<()> {
        self.in_place(py, values, move |group, data| group.recv("send", data, from))
    }

    /// The bytes of every rank, in the order of ranks.
    fn all_gather_bytes(
        &self,
        py: Python<'_>,
        bytes: &[u8],
        name: String,
    ) -> PyResult<Vec<Vec<u8>>> {
        let bytes = bytes.to_vec();
        self.on(py, move |group| group.all_gather_bytes(&name, &bytes))
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.on(py, |group| group.barrier("barrier"))
    }

    /// Leaves the others after all exchanges of this rank. Those who still need it hear so.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let comm = self.comm.clone();
        self.lane.run(py, move || comm.leave())
    }

    /// Makes sure that this rank does not leave in order when the process ends: its connections
    /// break, and the others hear that it is lost. Nobody waits for exchanges in flight.
    fn abandon(&self) {
        std::mem::forget(self.comm.clone());
    }
}

impl Group {
    fn on<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut regatta_collective::Group) -> Result<T, regatta_collective::Error>
        + Send
        + 'static,
    ) -> PyResult<T> {
        let comm = self.comm.clone();
        self.lane.run(py, move || comm.call(work))?.map_err(raise)
    }

    /// Exchanges the values of an array of 32-bit floats, and writes the result into it.
    fn in_place(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        work: impl FnOnce(
            &mut regatta_collective::Group,
            &mut [f32],
        ) -> Result<(), regatta_collective::Error>
        + Send
        + 'static,
    ) -> PyResult<()> {
        let array = values.cast::<PyArrayDyn<f32>>();
        let array = array.map_err(|_| wrong("the values should be a numpy array of float32"))?;
        // Before anything is sent: an array that cannot be written is an error of this rank alone.
        drop(array.try_readwrite().map_err(|e| wrong(e.to_string()))?);
        let mut tensor = tensor_of("values", values)?;
        let exchanged = self.on(py, move |group| work(group, tensor.f32_mut()).map(|()| tensor))?;
        if array.is_c_contiguous() {
            let mut array = array.try_readwrite().map_err(|e| wrong(e.to_string()))?;
            if let Ok(to) = array.as_slice_mut() {
                to.copy_from_slice(exchanged.f32());
                return Ok(());
            }
        }
        // An array that lies in memory in another order than its indices is filled by index.
        py.import("numpy")?.call_method1("copyto", (array, to_numpy(py, &exchanged)?))?;
        Ok(())
    }
}

/// The place of a worker among the workers of its job.
fn among_workers(place: PsPlace) -> Result<CollectivePlace, regatta_fleet::Error> {
    let PsRole::Worker(rank) = place.role else {
        return Err(regatta_fleet::Error::Config(format!(
            "this process is {} of a job with parameter servers, and only its workers are ranks",
            place.role
        )));
    };
    if place.worker_endpoints.len() != place.workers {
        return Err(regatta_fleet::Error::Config(format!(
            "the workers of this job do not know each other's addresses: start it by `regatta \
             launch`, or set {}",
            names::TRAINER_ENDPOINTS
        )));
    }
    let size = place.workers;
    Ok(CollectivePlace {
        rank,
        size,
        endpoints: place.worker_endpoints,
        local_rank: rank,
        local_size: size,
        nodes: 1,
        master: None,
        devices: Vec::new(),
        world_devices: Vec::new(),
        job: place.job,
    })
}
