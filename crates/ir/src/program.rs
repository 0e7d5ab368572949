//! Programs: blocks of variables and ops in the order they run.

use indexmap::IndexMap;

use crate::var::check_var;
use crate::{Error, Op, OpSet, Origin, VarDef};

/// A list of ops over named variables. Blocks after the first also see the variables of the first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Block {
    /// Variables by name, in order of declaration.
    pub vars: IndexMap<String, VarDef>,
    /// Ops in the order they run.
    pub ops: Vec<Op>,
}

impl Block {
    /// Declares a variable.
    ///
    /// # Errors
    /// If the name is taken or cannot be written in the text form, or a dimension is below -2.
    pub fn declare(&mut self, var: VarDef) -> Result<(), Error> {
        check_var(&var)?;
        if let Some(old) = self.vars.get(&var.name) {
            return Err(Error::DuplicateVar {
                var: var.name.clone(),
                reason: format!(": as {} and as {}", old.ty, var.ty),
            });
        }
        self.vars.insert(var.name.clone(), var);
        Ok(())
    }

    /// The variable of that name.
    ///
    /// # Errors
    /// If there is none; `who` is named in the message.
    pub fn var(&self, name: &str, who: &str) -> Result<&VarDef, Error> {
        self.vars
            .get(name)
            .ok_or_else(|| Error::UnknownVar { op: who.to_string(), var: name.to_string() })
    }

    /// Parameters in order of declaration.
    pub fn params(&self) -> impl Iterator<Item = &VarDef> {
        self.vars.values().filter(|v| v.origin == Origin::Param)
    }

    /// Drops the variables that no op mentions, except those in `keep`.
    pub fn drop_unused_vars(&mut self, keep: &[&str]) {
        let used: std::collections::HashSet<&str> = self
            .ops
            .iter()
            .flat_map(|op| op.input_vars().chain(op.output_vars()))
            .chain(keep.iter().copied())
            .collect();
        self.vars.retain(|name, _| used.contains(name.as_str()));
    }
}

/// A model or a part of one, as data: what runs, in which order, on which variables.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// What it is for: `main`, `startup`, `infer`, ...
    pub name: String,
    /// Block 0 is the global one.
    pub blocks: Vec<Block>,
}

impl Program {
    /// An empty program with its global block.
    pub fn new(name: &str) -> Program {
        Program { name: name.to_string(), blocks: vec![Block::default()] }
    }

    /// The global block.
    pub fn block(&self) -> &Block {
        &self.blocks[0]
    }

    /// The global block, to change.
    pub fn block_mut(&mut self) -> &mut Block {
        &mut self.blocks[0]
    }

    /// Adds an op, with the defaults of its attributes, and returns the names of its outputs. Those
    /// that are not declared yet become temporaries of the types that follow from the inputs.
    ///
    /// # Errors
    /// If the op is unknown or incomplete, or its inputs do not fit.
    pub fn push(&mut self, mut op: Op, ops: &dyn OpSet) -> Result<Vec<String>, Error> {
        ops.known(&op.kind)?.complete(&mut op)?;
        let block = self.block_mut();
        let inputs = op
            .input_vars()
            .map(|name| Ok(block.var(name, &op.kind)?.ty.clone()))
            .collect::<Result<Vec<_>, Error>>()?;
        let types = ops.infer(&op, &inputs)?;
        let names: Vec<String> = op.output_vars().map(str::to_string).collect();
        for (name, ty) in names.iter().zip(types) {
            if !block.vars.contains_key(name) {
                block.declare(VarDef::new(name, ty, Origin::Temp))?;
            }
        }
        block.ops.push(op);
        Ok(names)
    }

    /// Names of the parameters in order of declaration.
    pub fn param_names(&self) -> Vec<String> {
        self.block().params().map(|v| v.name.clone()).collect()
    }

    /// Everything that keeps its value between runs.
    pub fn persistables(&self) -> impl Iterator<Item = &VarDef> {
        self.block().vars.values().filter(|v| v.is_persistable())
    }
}

/// What a model is made of: `startup` gives every persistable its first value, `main` is one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs {
    /// One step.
    pub main: Program,
    /// Run once, before the first step.
    pub startup: Program,
}
