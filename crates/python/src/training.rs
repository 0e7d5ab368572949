//! A dictionary that describes an optimizer, and the training program that it makes.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use regatta_ir::{Program as Ir, Programs};
use regatta_optim::{LossScaling, Rule, Schedule};
use regatta_passes::{
    AmpConfig, Backward, Clip, Minimized, Optimizer, ParamGrad, Precision, RecomputeConfig,
};

use crate::error::{raise, wrong};
use crate::program::{Program, regularizer_of};

/// Numbers of the update ops, and parameters with their gradients.
pub(crate) type Updates = (Vec<usize>, Vec<(String, String)>);

/// Appends gradients and updates to a program and its startup program.
#[pyfunction]
#[pyo3(signature = (main, startup, loss, optimizer, parameters = None, no_grad = vec![]))]
pub(crate) fn minimize(
    main: &Program,
    startup: &Program,
    loss: &str,
    optimizer: &Bound<'_, PyDict>,
    parameters: Option<Vec<String>>,
    no_grad: Vec<String>,
) -> PyResult<Updates> {
    let optimizer = read_optimizer(optimizer)?;
    let what = Backward { parameters, no_grad_set: no_grad };
    let programs = both(main, startup);
    let minimized = regatta_passes::minimize(&programs, loss, &optimizer, &what).map_err(raise)?;
    Ok(put(main, startup, minimized))
}

/// Appends gradients only.
#[pyfunction]
#[pyo3(signature = (main, loss, parameters = None, no_grad = vec![]))]
pub(crate) fn append_backward(
    main: &Program,
    loss: &str,
    parameters: Option<Vec<String>>,
    no_grad: Vec<String>,
) -> PyResult<Vec<(String, String)>> {
    let what = Backward { parameters, no_grad_set: no_grad };
    let (program, grads) = regatta_passes::backward(&main.get(), loss, &what).map_err(raise)?;
    main.put(program);
    Ok(pairs(&grads))
}

/// The two programs of a model.
pub(crate) fn both(main: &Program, startup: &Program) -> Programs {
    Programs { main: Ir::clone(&main.get()), startup: Ir::clone(&startup.get()) }
}

/// Puts what `minimize` made in the place of the programs.
pub(crate) fn put(main: &Program, startup: &Program, minimized: Minimized) -> Updates {
    let Minimized { programs, optimize_ops, params_grads } = minimized;
    let ops = programs.main.block().ops.len();
    let updates = (ops - optimize_ops.len()..ops).collect();
    main.put(programs.main);
    startup.put(programs.startup);
    (updates, pairs(&params_grads))
}

fn pairs(grads: &[ParamGrad]) -> Vec<(String, String)> {
    grads.iter().map(|pair| (pair.param.clone(), pair.grad.clone())).collect()
}

/// Reads an optimizer; unknown keys are errors.
pub(crate) fn read_optimizer(spec: &Bound<'_, PyDict>) -> PyResult<Optimizer> {
    let rule = spec.get_item("rule")?.ok_or_else(|| wrong("an optimizer has a rule"))?;
    let rate = spec.get_item("learning_rate")?;
    let rate: f64 = rate.ok_or_else(|| wrong("an optimizer has a learning_rate"))?.extract()?;
    let mut optimizer = Optimizer::new(json::<Rule>("rule", &rule)?, rate);
    for (key, value) in spec.iter() {
        let key: String = key.extract()?;
        if value.is_none() {
            continue;
        }
        match key.as_str() {
            "rule" | "learning_rate" => {}
            "schedule" => optimizer.schedule = json::<Schedule>("schedule", &value)?,
            "regularizer" => optimizer.regularizer = Some(regularizer_of(value.extract()?)?),
            "clip" => optimizer.clip = Some(read_clip(&value)?),
            "lazy" => optimizer.lazy = value.extract()?,
            "amp" => optimizer.amp = Some(read_amp(value.cast()?)?),
            "recompute" => optimizer.recompute = Some(read_recompute(value.cast()?)?),
            _ => return Err(wrong(format!("an optimizer has no setting '{key}'"))),
        }
    }
    Ok(optimizer)
}

/// A value by way of JSON.
fn json<T: serde::de::DeserializeOwned>(what: &str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    let dumped = value.py().import("json")?.call_method1("dumps", (value,))?;
    let text: String = dumped.extract()?;
    serde_json::from_str(&text).map_err(|e| wrong(format!("{what} {text}: {e}")))
}

fn read_clip(value: &Bound<'_, PyAny>) -> PyResult<Clip> {
    let list = value.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    let list = PyList::new(value.py(), list)?;
    let kind: String = list.get_item(0)?.extract()?;
    let number = |at: usize| list.get_item(at)?.extract::<f64>();
    Ok(match (kind.as_str(), list.len()) {
        ("global_norm", 2) => Clip::GlobalNorm(number(1)?),
        ("norm", 2) => Clip::Norm(number(1)?),
        ("value", 3) => Clip::Value { min: number(1)?, max: number(2)? },
        _ => return Err(wrong(format!("{} is no way to clip gradients", value.repr()?))),
    })
}

fn read_amp(spec: &Bound<'_, PyDict>) -> PyResult<AmpConfig> {
    let mut config = AmpConfig::bf16();
    for (key, value) in spec.iter() {
        let key: String = key.extract()?;
        match key.as_str() {
            "precision" => {
                config.precision = match value.extract::<String>()?.as_str() {
                    "bf16" | "bfloat16" => Precision::Bf16,
                    "fp16" | "float16" => Precision::Fp16,
                    other => return Err(wrong(format!("amp: '{other}' is not bf16 or fp16"))),
                }
            }
            "pure" => config.pure = value.extract()?,
            "loss_scaling" => {
                config.loss_scaling = Some(json::<LossScaling>("loss_scaling", &value)?);
            }
            "custom_white_list" => config.custom_white_list = value.extract()?,
            "custom_black_list" => config.custom_black_list = value.extract()?,
            "custom_black_varnames" => config.custom_black_varnames = value.extract()?,
            _ => return Err(wrong(format!("amp has no setting '{key}'"))),
        }
    }
    Ok(config)
}

fn read_recompute(spec: &Bound<'_, PyDict>) -> PyResult<RecomputeConfig> {
    let mut config = RecomputeConfig::default();
    for (key, value) in spec.iter() {
        let key: String = key.extract()?;
        match key.as_str() {
            "checkpoints" => config.checkpoints = value.extract()?,
            "enable_offload" => config.enable_offload = value.extract()?,
            "checkpoint_shape" => config.checkpoint_shape = value.extract()?,
            _ => return Err(wrong(format!("recompute has no setting '{key}'"))),
        }
    }
    Ok(config)
}
