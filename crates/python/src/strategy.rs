//! Options of distributed training, as text.

use pyo3::prelude::*;
use regatta_fleet::DistributedStrategy;
use regatta_fleet::strategy::Use;

use crate::error::raise;

/// All options of distributed training.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Strategy {
    pub(crate) strategy: DistributedStrategy,
}

#[pymethods]
impl Strategy {
    #[new]
    #[pyo3(signature = (yaml = ""))]
    fn new(yaml: &str) -> PyResult<Strategy> {
        let strategy = match yaml.trim() {
            "" => DistributedStrategy::default(),
            _ => DistributedStrategy::from_yaml(yaml).map_err(raise)?,
        };
        Ok(Strategy { strategy })
    }

    #[staticmethod]
    fn from_prototxt(text: &str) -> PyResult<Strategy> {
        let strategy = DistributedStrategy::from_prototxt(text).map_err(raise)?;
        Ok(Strategy { strategy })
    }

    fn to_yaml(&self) -> String {
        self.strategy.to_yaml()
    }

    fn to_prototxt(&self) -> String {
        self.strategy.to_prototxt()
    }

    fn options(&self) -> Vec<(String, String)> {
        self.strategy.options()
    }

    fn changed(&self) -> Vec<(String, String)> {
        self.strategy.changed()
    }

    fn check(&self, is_collective: bool) -> PyResult<()> {
        let used = if is_collective { Use::Collective } else { Use::ParameterServer };
        self.strategy.check(used).map_err(raise)
    }
}
