//! The inputs of a model, and whether a value fits one.

use regatta_ir::{Layout, Program, VarType};
use regatta_tensor::{DType, Tensor, Value};

use crate::Error;

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// What it takes.
    pub kind: InputKind,
    /// The dimensions of an example: `[n]` for n values in a row, more for images and the like,
    /// whose values may be given in a row too. None for any number of ids.
    pub dims: Vec<usize>,
}

/// What an input takes for each example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// N ids: `u64[batch, n]`.
    Ids(usize),
    /// Any number of ids: ragged `u64[batch]`.
    RaggedIds,
    /// N floats: `f32[batch, n]`.
    Floats(usize),
    /// N whole numbers: `i64[batch, n]`.
    Ints(usize),
}

impl Input {
    pub(crate) fn of(program: &Program, name: &str) -> Result<Input, Error> {
        let ty = &program.block().var(name, "predict")?.ty;
        let Some(kind) = kind_of(ty) else {
            let reason = format!("input '{name}' is {ty}, which no example of a batch can give");
            return Err(Error::Input(reason));
        };
        let dims = match kind {
            InputKind::RaggedIds => vec![],
            _ if ty.shape.len() == 1 => vec![1],
            _ => ty.shape[1..].iter().map(|&d| d as usize).collect(),
        };
        Ok(Input { name: name.to_string(), kind, dims })
    }

    /// The value in the dimensions that the program wants, if it was given in rows.
    pub(crate) fn shaped(&self, value: &Value) -> Option<Value> {
        let tensor = value.as_dense()?;
        if self.dims.len() < 2 || tensor.shape().len() != 2 {
            return None;
        }
        let shape = [&tensor.shape()[..1], &self.dims].concat();
        Tensor::new(&shape, tensor.data().clone()).ok().map(Value::from)
    }

    /// The number of examples of a value.
    ///
    /// # Errors
    /// If it is of another kind or width.
    pub(crate) fn examples(&self, value: &Value) -> Result<usize, Error> {
        let wrong = |what: String| {
            let (name, kind) = (&self.name, self.kind);
            Err(Error::Input(format!("input '{name}' takes {kind}, but was given {what}")))
        };
        match (self.kind, value) {
            (InputKind::RaggedIds, Value::Ragged(r)) if value.dtype() == DType::U64 => Ok(r.rows()),
            (_, Value::Ragged(r)) => wrong(format!("ragged {}[{}]", value.dtype(), r.rows())),
            (_, Value::Dense(t)) => {
                let (dtype, width) = match self.kind {
                    InputKind::Ids(n) => (DType::U64, n),
                    InputKind::Floats(n) => (DType::F32, n),
                    InputKind::Ints(n) => (DType::I64, n),
                    InputKind::RaggedIds => return wrong(format!("{}{:?}", t.dtype(), t.shape())),
                };
                match t.shape() {
                    [batch, n] if *n == width && t.dtype() == dtype => Ok(*batch),
                    [batch] if width == 1 && t.dtype() == dtype => Ok(*batch),
                    [batch, dims @ ..] if *dims == self.dims && t.dtype() == dtype => Ok(*batch),
                    shape => wrong(format!("{}{shape:?}", t.dtype())),
                }
            }
        }
    }
}

impl std::fmt::Display for InputKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InputKind::Ids(n) => write!(f, "u64[batch, {n}]"),
            InputKind::RaggedIds => f.write_str("ragged u64[batch]"),
            InputKind::Floats(n) => write!(f, "f32[batch, {n}]"),
            InputKind::Ints(n) => write!(f, "i64[batch, {n}]"),
        }
    }
}

fn kind_of(ty: &VarType) -> Option<InputKind> {
    if ty.layout == Layout::Ragged {
        return (ty.dtype == DType::U64).then_some(InputKind::RaggedIds);
    }
    let width = match ty.shape.as_slice() {
        [_] => 1,
        [_, dims @ ..] if dims.iter().all(|d| *d > 0) => dims.iter().product::<i64>() as usize,
        _ => return None,
    };
    match ty.dtype {
        DType::U64 => Some(InputKind::Ids(width)),
        DType::F32 => Some(InputKind::Floats(width)),
        DType::I64 => Some(InputKind::Ints(width)),
        DType::F16 | DType::BF16 => None,
    }
}
