//! Programs that grow from Python, op by op.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use regatta_ir::{
    Attr, Layout, Op, OpSet, Origin, ParamInfo, Program as Ir, Regularizer, Role, VarDef, VarType,
};
use regatta_ops::OPS;
use regatta_tensor::DType;

use crate::error::{raise, wrong};

/// Numbers that tell programs and their states apart.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

struct State {
    program: Arc<Ir>,
    version: u64,
}

/// Ops over named variables. What runs it gets a copy of the state it is in.
#[pyclass(frozen, module = "regatta._core")]
pub(crate) struct Program {
    state: Mutex<State>,
}

impl Program {
    pub(crate) fn of(program: Ir) -> Program {
        Program { state: Mutex::new(State { program: Arc::new(program), version: next() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The program as it is now.
    pub(crate) fn get(&self) -> Arc<Ir> {
        self.lock().program.clone()
    }

    /// The program and the number of its state.
    pub(crate) fn with_version(&self) -> (Arc<Ir>, u64) {
        let state = self.lock();
        (state.program.clone(), state.version)
    }

    /// Puts another program in its place.
    pub(crate) fn put(&self, program: Ir) {
        let mut state = self.lock();
        (state.program, state.version) = (Arc::new(program), next());
    }

    /// Changes it. What fails leaves it as it was, as far as `change` does.
    fn change<T>(&self, change: impl FnOnce(&mut Ir) -> PyResult<T>) -> PyResult<T> {
        let mut state = self.lock();
        let done = change(Arc::make_mut(&mut state.program))?;
        state.version = next();
        Ok(done)
    }
}

type OpParts<'py> =
    (String, Bound<'py, PyDict>, Bound<'py, PyDict>, Bound<'py, PyDict>, &'static str);

#[pymethods]
impl Program {
    #[new]
    #[pyo3(signature = (name = "main"))]
    fn new(name: &str) -> Program {
        Program::of(Ir::new(name))
    }

    #[staticmethod]
    fn parse(text: &str) -> PyResult<Program> {
        let program = regatta_ir::text::parse(text).map_err(raise)?;
        regatta_ir::verify(&program, &OPS).map_err(raise)?;
        Ok(Program::of(program))
    }

    fn text(&self) -> String {
        self.get().to_string()
    }

    fn clone(&self) -> Program {
        Program::of((*self.get()).clone())
    }

    fn for_test(&self) -> PyResult<Program> {
        regatta_passes::clone_for_test(&self.get()).map(Program::of).map_err(raise)
    }

    fn prune(&self, fetches: Vec<String>) -> PyResult<Program> {
        let names: Vec<&str> = fetches.iter().map(String::as_str).collect();
        regatta_passes::prune(&self.get(), &names).map(Program::of).map_err(raise)
    }

    fn replace(&self, other: &Program) {
        let program = other.get();
        self.put((*program).clone());
    }

    #[getter]
    fn version(&self) -> u64 {
        self.lock().version
    }

    fn data(&self, name: &str, dtype: &str, shape: Vec<i64>) -> PyResult<()> {
        let ty = VarType::dense(dtype_of(dtype)?, shape);
        self.input(VarDef::new(name, ty, Origin::Data))
    }

    fn sparse_data(&self, name: &str) -> PyResult<()> {
        let ty = VarType { dtype: DType::U64, layout: Layout::Ragged, shape: vec![-1] };
        self.input(VarDef::new(name, ty, Origin::Data))
    }

    fn declare(&self, name: &str, dtype: &str, shape: Vec<i64>, persistable: bool) -> PyResult<()> {
        let origin = if persistable { Origin::Persist } else { Origin::Temp };
        let var = VarDef::new(name, VarType::dense(dtype_of(dtype)?, shape), origin);
        self.change(|program| program.block_mut().declare(var).map_err(raise))
    }

    #[pyo3(signature = (startup, name, shape, init, trainable = true, lr_scale = 1.0,
        regularizer = None, clip = true))]
    fn param(
        &self,
        startup: &Program,
        name: &str,
        shape: Vec<i64>,
        init: (String, Bound<'_, PyDict>),
        trainable: bool,
        lr_scale: f64,
        regularizer: Option<(String, f64)>,
        clip: bool,
    ) -> PyResult<()> {
        let ty = VarType::f32(shape.clone());
        if let Some(old) = self.get().block().vars.get(name)
            && old.origin == Origin::Param
        {
            return match old.ty == ty {
                true => Ok(()),
                false => Err(wrong(format!(
                    "parameter '{name}' is {} already, and cannot be {ty} as well",
                    old.ty
                ))),
            };
        }
        if shape.iter().any(|&d| d < 1) {
            return Err(wrong(format!(
                "parameter '{name}' cannot be {ty}: every dimension must be at least 1"
            )));
        }
        let regularizer = regularizer.map(regularizer_of).transpose()?;
        let mut var = VarDef::new(name, ty, Origin::Param);
        var.param = ParamInfo { trainable, lr_scale, regularizer, clip };
        let (kind, attrs) = init;
        let mut op = Op::new(&kind);
        op.attrs = read_attrs(&attrs)?;
        op.attrs.insert("shape".to_string(), Attr::Ints(shape));
        self.kept(startup, var, op)
    }

    fn state(
        &self,
        startup: &Program,
        name: &str,
        dtype: &str,
        shape: Vec<i64>,
        value: f64,
    ) -> PyResult<()> {
        let ty = VarType::dense(dtype_of(dtype)?, shape.clone());
        let op = Op::new("fill_constant").attr("value", value).attr("shape", shape);
        let op = op.attr("dtype", ty.dtype.to_string());
        self.kept(startup, VarDef::new(name, ty, Origin::Persist), op)
    }

    fn append_op(
        &self,
        kind: &str,
        inputs: Bound<'_, PyDict>,
        outputs: Bound<'_, PyDict>,
        attrs: Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let mut op = Op::new(kind);
        (op.inputs, op.outputs) = (read_slots(&inputs)?, read_slots(&outputs)?);
        op.attrs = read_attrs(&attrs)?;
        self.change(|program| program.push(op, &OPS).map(|_| ()).map_err(raise))
    }

    fn has_var(&self, name: &str) -> bool {
        self.lock().program.block().vars.contains_key(name)
    }

    fn var(&self, name: &str) -> PyResult<(String, &'static str, Vec<i64>, &'static str, bool)> {
        let state = self.lock();
        let var = state.program.block().vars.get(name);
        let var = var.ok_or_else(|| PyKeyError::new_err(name.to_string()))?;
        let layout = match var.ty.layout {
            Layout::Dense => "dense",
            Layout::Ragged => "ragged",
            Layout::Rows => "rows",
        };
        let origin = match var.origin {
            Origin::Data => "data",
            Origin::Param => "param",
            Origin::Persist => "persist",
            Origin::Temp => "temp",
        };
        Ok((var.ty.dtype.to_string(), layout, var.ty.shape.clone(), origin, var.stop_gradient))
    }

    fn var_names(&self) -> Vec<String> {
        self.lock().program.block().vars.keys().cloned().collect()
    }

    fn param_info<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        let program = self.get();
        let var = program.block().vars.get(name);
        let info = &var.ok_or_else(|| PyKeyError::new_err(name.to_string()))?.param;
        let regularizer = info.regularizer.map(|r| match r {
            Regularizer::L1(coeff) => ("l1", coeff),
            Regularizer::L2(coeff) => ("l2", coeff),
        });
        let dict = PyDict::new(py);
        dict.set_item("trainable", info.trainable)?;
        dict.set_item("lr_scale", info.lr_scale)?;
        dict.set_item("regularizer", regularizer)?;
        dict.set_item("clip", info.clip)?;
        Ok(dict)
    }

    fn set_stop_gradient(&self, name: &str, stop: bool) -> PyResult<()> {
        self.change(|program| {
            let var = program.block_mut().vars.get_mut(name);
            var.ok_or_else(|| PyKeyError::new_err(name.to_string()))?.stop_gradient = stop;
            Ok(())
        })
    }

    fn set_trainable(&self, name: &str, trainable: bool) -> PyResult<()> {
        self.change(|program| {
            let var = program.block_mut().vars.get_mut(name);
            var.ok_or_else(|| PyKeyError::new_err(name.to_string()))?.param.trainable = trainable;
            Ok(())
        })
    }

    fn num_ops(&self) -> usize {
        self.lock().program.block().ops.len()
    }

    fn op<'py>(&self, py: Python<'py>, at: usize) -> PyResult<OpParts<'py>> {
        let program = self.get();
        let op = program.block().ops.get(at).ok_or_else(|| PyKeyError::new_err(at))?;
        op_parts(py, op)
    }

    fn ops<'py>(&self, py: Python<'py>) -> PyResult<Vec<OpParts<'py>>> {
        self.get().block().ops.iter().map(|op| op_parts(py, op)).collect()
    }
}

impl Program {
    /// Declares an input. The same again is the same input.
    fn input(&self, var: VarDef) -> PyResult<()> {
        let same = |old: &VarDef| old.origin == Origin::Data && old.ty == var.ty;
        if self.get().block().vars.get(&var.name).is_some_and(same) {
            return Ok(());
        }
        self.change(|program| program.block_mut().declare(var).map_err(raise))
    }

    /// Declares what is kept between runs, here and with its initial value in `startup`. A value
    /// that `startup` makes already, for another program, is the same one.
    fn kept(&self, startup: &Program, var: VarDef, op: Op) -> PyResult<()> {
        let had = startup.get().block().vars.get(&var.name).map(|old| old.ty.clone());
        match had {
            None => startup.change(|program| {
                let block = program.block_mut();
                block.declare(var.clone()).map_err(raise)?;
                let op = op.output("Out", &var.name);
                match program.push(op, &OPS) {
                    Ok(_) => Ok(()),
                    Err(error) => {
                        program.block_mut().vars.shift_remove(&var.name);
                        Err(raise(error))
                    }
                }
            })?,
            Some(ty) if ty == var.ty => {}
            Some(ty) => {
                return Err(wrong(format!(
                    "'{}' is {ty} in the startup program, and cannot be {} as well",
                    var.name, var.ty
                )));
            }
        }
        self.change(|program| program.block_mut().declare(var).map_err(raise))
    }
}

/// All kinds of ops.
#[pyfunction]
pub(crate) fn op_kinds() -> Vec<String> {
    let mut kinds: Vec<String> = OPS.kinds().into_iter().map(str::to_string).collect();
    kinds.sort();
    kinds
}

pub(crate) fn dtype_of(name: &str) -> PyResult<DType> {
    Ok(match name {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i64" => DType::I64,
        "u64" => DType::U64,
        _ => return Err(wrong(format!("'{name}' is not an element type"))),
    })
}

pub(crate) fn regularizer_of((kind, coeff): (String, f64)) -> PyResult<Regularizer> {
    match kind.as_str() {
        "l1" => Ok(Regularizer::L1(coeff)),
        "l2" => Ok(Regularizer::L2(coeff)),
        _ => Err(wrong(format!("'{kind}' is not a regularization (l1 or l2)"))),
    }
}

fn read_slots(slots: &Bound<'_, PyDict>) -> PyResult<Vec<(String, Vec<String>)>> {
    slots.iter().map(|(slot, vars)| Ok((slot.extract()?, vars.extract()?))).collect()
}

fn read_attrs(attrs: &Bound<'_, PyDict>) -> PyResult<BTreeMap<String, Attr>> {
    let entry = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name.extract()?;
        let value = read_attr(&name, &value)?;
        Ok((name, value))
    };
    attrs.iter().map(entry).collect()
}

pub(crate) fn read_attr(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Attr> {
    if value.is_instance_of::<PyBool>() {
        return Ok(Attr::Bool(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(Attr::Int(value.extract()?));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Attr::Float(value.extract()?));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Attr::Str(value.extract()?));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        if let Ok(ints) = value.extract::<Vec<i64>>() {
            return Ok(Attr::Ints(ints));
        }
        if let Ok(floats) = value.extract::<Vec<f64>>() {
            return Ok(Attr::Floats(floats));
        }
        if let Ok(texts) = value.extract::<Vec<String>>() {
            return Ok(Attr::Strs(texts));
        }
    }
    // Numbers of numpy.
    if let Ok(int) = value.extract::<i64>() {
        return Ok(Attr::Int(int));
    }
    if let Ok(float) = value.extract::<f64>() {
        return Ok(Attr::Float(float));
    }
    Err(wrong(format!("attribute '{name}' cannot be {}", value.repr()?)))
}

fn op_parts<'py>(py: Python<'py>, op: &Op) -> PyResult<OpParts<'py>> {
    let slots = |slots: &[(String, Vec<String>)]| {
        let dict = PyDict::new(py);
        slots.iter().try_for_each(|(slot, vars)| dict.set_item(slot, vars))?;
        Ok::<_, PyErr>(dict)
    };
    let attrs = PyDict::new(py);
    for (name, attr) in &op.attrs {
        match attr {
            Attr::Int(x) => attrs.set_item(name, x)?,
            Attr::Float(x) => attrs.set_item(name, x)?,
            Attr::Bool(x) => attrs.set_item(name, x)?,
            Attr::Str(x) => attrs.set_item(name, x)?,
            Attr::Ints(x) => attrs.set_item(name, x)?,
            Attr::Floats(x) => attrs.set_item(name, x)?,
            Attr::Strs(x) => attrs.set_item(name, x)?,
        }
    }
    let role = match op.role {
        Role::Forward => "forward",
        Role::Backward => "backward",
        Role::Optimize => "optimize",
    };
    Ok((op.kind.clone(), slots(&op.inputs)?, slots(&op.outputs)?, attrs, role))
}
