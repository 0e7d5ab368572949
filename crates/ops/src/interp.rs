//! The reference interpreter: one op at a time, fresh memory for every result. Slow and simple;
//! what the executor does with execution plans and reused memory must give the same values.
#![expect(unsafe_code, reason = "hands buffers that it owns to kernels")]

use std::collections::HashMap;
use std::marker::PhantomData;

use regatta_ir::{Error, Layout, Op, OpSet, VarType};
use regatta_tensor::{Data, RowSparse, Tensor, Value};

use crate::{Buf, Io, Kernel, OPS, Spec, StepCtx};

/// A value of any layout.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Dense or ragged.
    Value(Value),
    /// Row-sparse.
    Rows(RowSparse),
}

impl Cell {
    /// The floats; row-sparse ones written out in full.
    ///
    /// # Panics
    /// If it holds no floats.
    pub fn floats(&self) -> Vec<f32> {
        match self {
            Cell::Value(Value::Dense(t)) => t.f32().to_vec(),
            Cell::Value(Value::Ragged(_)) => panic!("a ragged value holds no floats"),
            Cell::Rows(rows) => rows.to_dense(),
        }
    }
}

/// Values by variable name.
pub type Env = HashMap<String, Cell>;

/// Runs one op.
///
/// # Errors
/// If its inputs are missing or do not fit, or the kernel meets a bad value.
pub fn eval(op: &Op, env: &mut Env, ctx: &mut StepCtx) -> Result<(), Error> {
    PreparedOp::new(op, env, &[])?.run(ctx)
}

/// One op with its kernel and the values that it works on, to be run any number of times.
pub struct PreparedOp<'a> {
    kind: String,
    kernel: Kernel,
    ins: Vec<Buf>,
    outs: Vec<Buf>,
    /// Keeps the values where the buffers point.
    env: PhantomData<&'a mut Env>,
}

impl<'a> PreparedOp<'a> {
    /// Makes the kernel and room for the results. The first dimension of the variables in `batched`
    /// is the batch.
    ///
    /// # Errors
    /// If inputs are missing or do not fit.
    pub fn new(op: &Op, env: &'a mut Env, batched: &[&str]) -> Result<PreparedOp<'a>, Error> {
        let mut op = op.clone();
        OPS.known(&op.kind)?.complete(&mut op)?;
        let ins = op
            .input_vars()
            .map(|v| {
                let unknown = || Error::UnknownVar { op: op.kind.clone(), var: v.to_string() };
                Ok(type_of(env.get(v).ok_or_else(unknown)?))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let outs = OPS.infer(&op, &ins)?;
        let mut declared = ins.clone();
        for (ty, name) in declared.iter_mut().zip(op.input_vars()) {
            if batched.contains(&name) {
                ty.shape[0] = -1;
            }
        }
        let spec = Spec { op: &op, declared: &declared, ins: &ins, outs: &outs };
        let kernel = OPS.kernel(&spec)?;
        let updated_in_place = |v: &str| {
            op.input_vars().any(|input| input == v) && op.output_vars().any(|output| output == v)
        };
        for (name, ty) in op.output_vars().zip(&outs).filter(|(v, _)| !updated_in_place(v)) {
            env.insert(name.to_string(), empty(ty));
        }
        let ins = op
            .input_vars()
            .map(|v| if updated_in_place(v) { Buf::Absent } else { buf(env, v) })
            .collect();
        let outs = op.output_vars().map(|v| buf(env, v)).collect();
        Ok(PreparedOp { kind: op.kind, kernel, ins, outs, env: PhantomData })
    }

    /// Runs the kernel.
    ///
    /// # Errors
    /// If it meets a bad value.
    pub fn run(&mut self, ctx: &mut StepCtx) -> Result<(), Error> {
        // SAFETY: the buffers belong to the environment, which is borrowed as long as they are;
        // inputs that are also outputs are absent from the inputs, and every other output has
        // memory of its own.
        let mut io = unsafe { Io::new(&self.ins, &self.outs) };
        (self.kernel)(&mut io, ctx).map_err(|e| Error::Pass {
            pass: format!("running {}", self.kind),
            reason: e.to_string(),
        })
    }
}

/// The type of a value as a program would declare it.
pub fn type_of(cell: &Cell) -> VarType {
    let dims = |shape: &[usize]| shape.iter().map(|&d| d as i64).collect::<Vec<_>>();
    match cell {
        Cell::Value(Value::Dense(t)) => VarType::dense(t.dtype(), dims(t.shape())),
        Cell::Value(Value::Ragged(r)) => VarType {
            dtype: r.values().dtype(),
            layout: Layout::Ragged,
            shape: vec![r.rows() as i64],
        },
        Cell::Rows(r) => VarType::f32([r.height as i64, r.width as i64]).rows(),
    }
}

fn empty(ty: &VarType) -> Cell {
    match ty.layout {
        Layout::Rows => Cell::Rows(RowSparse {
            height: ty.shape[0] as usize,
            width: ty.shape[1] as usize,
            ..RowSparse::default()
        }),
        _ => {
            let shape: Vec<usize> = ty.shape.iter().map(|&d| d as usize).collect();
            Cell::Value(Tensor::zeros(ty.dtype, &shape).into())
        }
    }
}

fn buf(env: &mut Env, name: &str) -> Buf {
    match env.get_mut(name) {
        Some(Cell::Value(Value::Dense(t))) => match t.data_mut() {
            Data::F32(v) => Buf::F32(v.as_mut_ptr(), v.len()),
            Data::F16(v) => Buf::F16(v.as_mut_ptr(), v.len()),
            Data::BF16(v) => Buf::BF16(v.as_mut_ptr(), v.len()),
            Data::I64(v) => Buf::I64(v.as_mut_ptr(), v.len()),
            Data::U64(v) => Buf::U64(v.as_mut_ptr(), v.len()),
        },
        Some(Cell::Value(Value::Ragged(r))) => Buf::Ragged { value: r, first: 0, rows: r.rows() },
        Some(Cell::Rows(rows)) => Buf::Rows(rows),
        None => Buf::Absent,
    }
}
