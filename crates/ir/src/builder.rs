//! Builds the programs of a model op by op, checking shapes as it goes.

use std::collections::HashMap;
use std::fmt;

use regatta_tensor::DType;

use crate::{Error, Layout, Op, OpSet, Origin, ParamAttr, Program, Programs, VarDef, VarType};

/// A variable of the program being built.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Var(String);

impl Var {
    /// The name in the program.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Grows a main and a startup program. Its layer methods (`fc`, `relu`, `mean`, ...) each add an op
/// and return the variable it makes; a shape that does not fit is an error at that call.
pub struct Builder {
    programs: Programs,
    ops: &'static dyn OpSet,
    counters: HashMap<String, usize>,
    seed: u64,
}

impl Builder {
    /// A builder over a set of ops; `seed` decides the initial values of all parameters.
    pub fn new(ops: &'static dyn OpSet, seed: u64) -> Builder {
        let programs = Programs { main: Program::new("main"), startup: Program::new("startup") };
        Builder { programs, ops, counters: HashMap::new(), seed }
    }

    /// The finished programs.
    pub fn finish(self) -> Programs {
        self.programs
    }

    /// The main program so far.
    pub fn main(&self) -> &Program {
        &self.programs.main
    }

    /// An input that the caller feeds by name. The first dimension is usually -1, the batch.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn data(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Result<Var, Error> {
        self.declare(VarDef::new(name, VarType::dense(dtype, shape), Origin::Data))
    }

    /// An input with any number of feature ids per example.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn sparse_data(&mut self, name: &str) -> Result<Var, Error> {
        let ty = VarType { dtype: DType::U64, layout: Layout::Ragged, shape: vec![-1] };
        self.declare(VarDef::new(name, ty, Origin::Data))
    }

    /// A learned parameter with its initialiser in the startup program.
    ///
    /// # Errors
    /// If the name is taken by a variable of another shape (the same shape shares the parameter),
    /// or a dimension is not a positive number.
    pub fn param(&mut self, name: &str, shape: &[i64], attr: &ParamAttr) -> Result<Var, Error> {
        let ty = VarType::f32(shape);
        let name = attr.name.as_deref().unwrap_or(name);
        if let Some(old) = self.main().block().vars.get(name)
            && old.origin == Origin::Param
            && old.ty == ty
        {
            return Ok(Var(name.to_string()));
        }
        if shape.iter().any(|&d| d < 1) {
            let reason = format!("a parameter cannot be {ty}: every dimension must be at least 1");
            return Err(Error::Shape { var: name.to_string(), reason });
        }
        let mut def = VarDef::new(name, ty, Origin::Param);
        def.param = attr.info.clone();
        self.persistable(def, attr.init)
    }

    /// State that is kept between runs but not learned by gradient, such as running statistics.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn state(&mut self, name: &str, ty: VarType, init: f64) -> Result<Var, Error> {
        let def = VarDef::new(name, ty, Origin::Persist);
        self.persistable(def, crate::Initializer::Constant(init))
    }

    /// Lets a parameter or state start with given values, in row-major order.
    ///
    /// # Errors
    /// If there is no such variable, or it does not hold so many values.
    pub fn initial_values(&mut self, var: &Var, values: &[f64]) -> Result<(), Error> {
        let ty = self.ty(var)?.clone();
        let ops = &mut self.programs.startup.block_mut().ops;
        let init = ops.iter_mut().find(|op| op.output_vars().any(|out| out == var.name()));
        let init = init.ok_or_else(|| unknown(var))?;
        if ty.numel() != Some(values.len()) {
            let reason = format!("{ty} cannot start with {} values", values.len());
            return Err(Error::Shape { var: var.name().to_string(), reason });
        }
        *init = Op::new("assign_value")
            .attr("shape", ty.shape)
            .attr("dtype", ty.dtype.to_string())
            .attr("values", values.to_vec())
            .output("Out", var.name());
        Ok(())
    }

    fn persistable(&mut self, def: VarDef, init: crate::Initializer) -> Result<Var, Error> {
        add_startup(&mut self.programs.startup, &def, init, self.seed)?;
        self.declare(def)
    }

    /// Type of a variable.
    ///
    /// # Errors
    /// If there is no such variable in this program.
    pub fn ty(&self, var: &Var) -> Result<&VarType, Error> {
        Ok(&self.main().block().var(var.name(), "builder")?.ty)
    }

    /// Finds a variable by name.
    ///
    /// # Errors
    /// If there is none.
    pub fn var(&self, name: &str) -> Result<Var, Error> {
        self.main().block().var(name, "builder").map(|v| Var(v.name.clone()))
    }

    /// Keeps gradients from flowing into or through a variable.
    ///
    /// # Errors
    /// If there is no such variable.
    pub fn stop_gradient(&mut self, var: &Var) -> Result<(), Error> {
        let found = self.programs.main.block_mut().vars.get_mut(var.name());
        found.ok_or_else(|| unknown(var))?.stop_gradient = true;
        Ok(())
    }

    /// Asks for the gradient of an input, which by default has none.
    ///
    /// # Errors
    /// If there is no such variable.
    pub fn require_gradient(&mut self, var: &Var) -> Result<(), Error> {
        let found = self.programs.main.block_mut().vars.get_mut(var.name());
        found.ok_or_else(|| unknown(var))?.stop_gradient = false;
        Ok(())
    }

    /// A name that no variable has or begins with yet: `fc_0`, `fc_1`, ...
    pub fn unique(&mut self, prefix: &str) -> String {
        let n = self.counters.entry(prefix.to_string()).or_insert(0);
        loop {
            let name = format!("{prefix}_{n}");
            *n += 1;
            let taken = |var: &String| {
                var.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if !self.programs.main.block().vars.keys().any(taken) {
                return name;
            }
        }
    }

    /// Adds an op whose output slots hold one new variable each, named after the op.
    ///
    /// # Errors
    /// If the op is unknown, incomplete, or its inputs do not fit.
    pub fn emit(&mut self, mut op: Op, out_slots: &[&str]) -> Result<Vec<Var>, Error> {
        let prefix = self.unique(&op.kind);
        for (i, slot) in out_slots.iter().enumerate() {
            op = op.output(slot, &format!("{prefix}.tmp_{i}"));
        }
        self.push(op)
    }

    /// Adds an op with the single output `Out`.
    ///
    /// # Errors
    /// As [`Builder::emit`].
    pub fn emit_one(&mut self, op: Op) -> Result<Var, Error> {
        Ok(self.emit(op, &["Out"])?.remove(0))
    }

    /// Adds an op whose outputs are already named; those not yet declared become temporaries.
    ///
    /// # Errors
    /// As [`Builder::emit`].
    pub fn push(&mut self, op: Op) -> Result<Vec<Var>, Error> {
        Ok(self.programs.main.push(op, self.ops)?.into_iter().map(Var).collect())
    }

    fn declare(&mut self, def: VarDef) -> Result<Var, Error> {
        let name = def.name.clone();
        self.programs.main.block_mut().declare(def)?;
        Ok(Var(name))
    }
}

fn unknown(var: &Var) -> Error {
    Error::UnknownVar { op: "builder".into(), var: var.0.clone() }
}

/// Declares a persistable in a startup program and adds the op that gives it its first value.
///
/// # Errors
/// If the name is taken there.
pub(crate) fn add_startup(
    startup: &mut Program,
    def: &VarDef,
    init: crate::Initializer,
    seed: u64,
) -> Result<(), Error> {
    let block = startup.block_mut();
    block.declare(def.clone())?;
    let mut op = init.op(&def.name, &def.ty.shape, seed as i64);
    if op.kind == "fill_constant" {
        op = op.attr("dtype", def.ty.dtype.to_string());
    }
    block.ops.push(op);
    Ok(())
}

impl Programs {
    /// Declares state in both programs: kept between runs, first set to `init` everywhere.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn add_state(&mut self, name: &str, ty: VarType, init: f64) -> Result<(), Error> {
        let def = VarDef::new(name, ty, Origin::Persist);
        add_startup(&mut self.startup, &def, crate::Initializer::Constant(init), 0)?;
        self.main.block_mut().declare(def)
    }
}
