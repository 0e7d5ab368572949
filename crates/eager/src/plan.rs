//! How the gradients of one prepared op are computed: the ops that its rule returns, prepared, with
//! the variables that they read and write.

use std::collections::HashMap;
use std::sync::Arc;

use regatta_ir::{Op, VarType, grad_name};
use regatta_ops::{Grad, GradCtx};
use smallvec::SmallVec;

use crate::global::type_of;
use crate::template::{Prepared, Template};
use crate::value::Type;
use crate::{Error, Result};

/// Which inputs of an op want a gradient.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Mask(SmallVec<[u64; 2]>);

impl Mask {
    pub(crate) fn set(&mut self, at: usize) {
        if self.0.len() <= at / 64 {
            self.0.resize(at / 64 + 1, 0);
        }
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|bits| bits & (1 << (at % 64)) != 0)
    }
}

/// What a step of a plan reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Source {
    /// An input of the forward op.
    In(usize),
    /// An output of the forward op.
    Out(usize),
    /// The gradient of an output.
    GradOut(usize),
    /// What a step before has written.
    Made(usize),
    /// A variable that is not there.
    Absent,
}

/// One op of a plan.
pub(crate) struct Step {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) sources: Vec<Source>,
    /// The first number of what it writes; its outputs are numbered on from there.
    pub(crate) first: usize,
}

/// Ops that compute gradients, and where those are.
pub(crate) struct GradPlan {
    pub(crate) steps: Vec<Step>,
    /// How many values the steps write.
    pub(crate) made: usize,
    /// For each input that gets a gradient, where it is.
    pub(crate) grads: Vec<(usize, Source)>,
    /// Inputs and outputs of the forward op that steps read.
    pub(crate) saved: Vec<Source>,
}

/// Variables of a rule by name.
struct Names {
    sources: HashMap<String, (Source, Arc<Type>)>,
    made: usize,
}

impl GradPlan {
    pub(crate) fn new(of: &Prepared, wanted: &Mask, present: u64) -> Result<GradPlan> {
        let op = &of.template.op;
        let rule = match of.template.def.grad {
            Grad::Rule(rule) => rule,
            Grad::None(reason) => {
                let (op, reason) = (op.kind.clone(), reason.to_string());
                return Err(Error::NoGradient { op, reason });
            }
        };
        let mut names = Names::of(of);
        let has_grad = |name: &str| match (name.as_bytes().first(), name[1..].parse::<usize>()) {
            (Some(b'i'), Ok(at)) => wanted.has(at),
            (Some(b'o'), Ok(at)) => present & (1 << at) != 0,
            _ => false,
        };
        let ty = |name: &str| names.ty(name);
        let ops = rule(&GradCtx { op, has_grad: &has_grad, ty: &ty })?;
        let steps = ops.iter().map(|op| names.step(op)).collect::<Result<Vec<_>>>()?;
        let grads = (0..of.ins.len())
            .filter(|at| wanted.has(*at))
            .filter_map(|at| {
                let found = names.sources.get(&grad_name(&format!("i{at}")))?;
                Some((at, found.0))
            })
            .collect();
        let mut saved: Vec<Source> = Vec::new();
        for source in steps.iter().flat_map(|step: &Step| &step.sources) {
            if matches!(source, Source::In(_) | Source::Out(_)) && !saved.contains(source) {
                saved.push(*source);
            }
        }
        Ok(GradPlan { steps, made: names.made, grads, saved })
    }
}

impl Names {
    /// Names of the forward variables and of the gradients of outputs.
    fn of(prepared: &Prepared) -> Names {
        let mut sources = HashMap::new();
        for (at, ty) in prepared.outs.iter().enumerate() {
            let name = format!("o{at}");
            sources.insert(grad_name(&name), (Source::GradOut(at), ty.clone()));
            sources.insert(name, (Source::Out(at), ty.clone()));
        }
        for (at, ty) in prepared.ins.iter().enumerate() {
            sources.insert(format!("i{at}"), (Source::In(at), ty.clone()));
        }
        Names { sources, made: 0 }
    }

    fn ty(&self, name: &str) -> VarType {
        let found = self.sources.get(name);
        found.map_or_else(|| VarType::f32([]), |(_, ty)| ty.var.clone())
    }

    fn step(&mut self, op: &Op) -> Result<Step> {
        let mut op = op.clone();
        let template = Template::of_op(&op)?;
        // The same order of slots as in the template.
        template.def.schema.complete(&mut op)?;
        let mut sources = Vec::new();
        let mut types = Vec::new();
        for name in op.input_vars() {
            let unknown =
                || regatta_ir::Error::UnknownVar { op: op.kind.clone(), var: name.to_string() };
            let (source, ty) = match name {
                "" => (Source::Absent, type_of(&VarType::f32([0]))),
                _ => self.sources.get(name).cloned().ok_or_else(unknown)?,
            };
            sources.push(source);
            types.push(ty);
        }
        let prepared = template.prepared(&types.iter().collect::<Vec<_>>())?;
        let first = self.made;
        for (name, ty) in op.output_vars().zip(&prepared.outs) {
            self.sources.insert(name.to_string(), (Source::Made(self.made), ty.clone()));
            self.made += 1;
        }
        Ok(Step { prepared, sources, first })
    }
}
