//! One op on tensors: found, run, and recorded if a gradient will be asked for.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::autocast;
use crate::global::{casts, is_grad_enabled};
use crate::kernel::run;
use crate::plan::{Mask, Source};
use crate::tape::{Edge, Node};
use crate::template::{Prepared, Template};
use crate::tensor::Tensor;
use crate::value::{Type, Value};
use crate::view::views;
use crate::{Error, Result};

/// What an op needs of one of its inputs.
struct Input {
    ty: Arc<Type>,
    value: Value,
    edge: Option<Edge>,
}

/// The results of an op.
pub type Outputs = SmallVec<[Tensor; 1]>;

impl Template {
    /// Runs the op. Returns its results, without those that are updated in place: these are changed
    /// in the tensors that were given.
    ///
    /// # Errors
    /// If the tensors do not fit the op, or a kernel meets a bad value.
    pub fn call(self: &Arc<Template>, tensors: &[&Tensor]) -> Result<Outputs> {
        if casts()
            && let Some(cast) = autocast::inputs(self, tensors)?
        {
            let cast: SmallVec<[&Tensor; 8]> = cast.iter().collect();
            return self.call_as_given(&cast);
        }
        self.call_as_given(tensors)
    }

    fn call_as_given(self: &Arc<Template>, tensors: &[&Tensor]) -> Result<Outputs> {
        let records = is_grad_enabled();
        let n_ins = self.op.inputs.iter().map(|(_, vars)| vars.len()).sum::<usize>();
        if n_ins != tensors.len() {
            return Err(Error::Mismatch(format!(
                "{} takes {n_ins} tensors here, but {} were given",
                self.op.kind,
                tensors.len()
            )));
        }
        let ins: SmallVec<[Input; 4]> = (0..n_ins)
            .map(|i| tensors[self.given(i)].as_input(records))
            .map(|(ty, value, edge)| Input { ty, value, edge })
            .collect();
        let prepared = {
            let types: SmallVec<[&Arc<Type>; 8]> = ins.iter().map(|input| &input.ty).collect();
            self.prepared(&types)?
        };
        if !self.in_place.is_empty() {
            return in_place(&prepared, ins, tensors);
        }
        let outs = compute(&prepared, &ins)?;
        let node = match records && ins.iter().any(|input| input.edge.is_some()) {
            true => record(&prepared, &ins, &outs)?,
            false => None,
        };
        Ok(finish(&prepared, outs, node, |_| true))
    }
}

fn compute(prepared: &Arc<Prepared>, ins: &[Input]) -> Result<SmallVec<[Value; 2]>> {
    if let Some(offsets) = &prepared.views {
        return Ok(views(&ins[0].value, offsets, &prepared.outs));
    }
    let mut outs: SmallVec<[Value; 2]> = prepared.outs.iter().map(|ty| Value::room(ty)).collect();
    run(prepared, ins.iter().map(|input| Some(&input.value)), &mut outs)?;
    Ok(outs)
}

/// Makes tensors of the results that are kept.
fn finish(
    prepared: &Prepared,
    outs: SmallVec<[Value; 2]>,
    node: Option<Arc<Node>>,
    keep: impl Fn(usize) -> bool,
) -> Outputs {
    let made = outs.into_iter().zip(&prepared.outs).enumerate().filter(|(at, _)| keep(*at));
    made.map(|(at, (value, ty))| {
        // No gradient flows through integers.
        let node = node.as_ref().filter(|_| ty.var.dtype.is_float());
        Tensor::computed(ty.clone(), value, node.map(|node| (node.clone(), at)))
    })
    .collect()
}

/// Remembers what the gradient needs; nothing if no gradient can flow.
fn record(prepared: &Arc<Prepared>, ins: &[Input], outs: &[Value]) -> Result<Option<Arc<Node>>> {
    if prepared.no_gradient().is_some() {
        // Comparisons and the like: their results do not depend smoothly on anything. An update or
        // an op of fused programs says so when its gradient is asked for.
        return Ok(None);
    }
    let mut wanted = Mask::default();
    let edges = ins.iter().enumerate().map(|(at, input)| {
        if input.edge.is_some() {
            wanted.set(at);
        }
        input.edge.clone().unwrap_or(Edge::None)
    });
    let edges: SmallVec<[Edge; 3]> = edges.collect();
    let recording = prepared.recording(&wanted)?;
    let saved = recording.saved.iter().map(|source| match source {
        Source::In(at) => ins[*at].value.clone(),
        Source::Out(at) => outs[*at].clone(),
        other => unreachable!("{other:?} is nothing of the forward op"),
    });
    let saved = saved.collect();
    Ok(Some(Arc::new(Node::new(prepared.clone(), wanted, recording, edges, saved))))
}

/// An op that changes some of its inputs.
fn in_place(
    prepared: &Arc<Prepared>,
    mut ins: SmallVec<[Input; 4]>,
    tensors: &[&Tensor],
) -> Result<Outputs> {
    let template = &prepared.template;
    let pairs = &template.in_place;
    let mut outs: SmallVec<[Value; 2]> = prepared.outs.iter().map(|ty| Value::room(ty)).collect();
    for (input, out) in pairs {
        // A gradient reads the value from before the change, so it needs one of its own.
        if !reads(prepared, *input, &ins)? {
            ins[*input].value = Value::Rows(Arc::default());
        }
        outs[*out] = tensors[template.given(*input)].taken_value();
        outs[*out].own();
    }
    let is_changed = |i: usize| pairs.iter().any(|(input, _)| *input == i);
    let inputs = ins.iter().enumerate();
    let inputs = inputs.map(|(i, input)| (!is_changed(i)).then_some(&input.value));
    let done = run(prepared, inputs, &mut outs);
    let node = match &done {
        Ok(()) if ins.iter().any(|input| input.edge.is_some()) => record(prepared, &ins, &outs)?,
        _ => None,
    };
    for (input, out) in pairs {
        tensors[template.given(*input)].put_value(outs[*out].clone());
    }
    done?;
    Ok(finish(prepared, outs, node, |at| !pairs.iter().any(|(_, out)| *out == at)))
}

/// Whether the gradient of this call reads an input.
fn reads(prepared: &Arc<Prepared>, input: usize, ins: &[Input]) -> Result<bool> {
    if prepared.no_gradient().is_some() || ins.iter().all(|input| input.edge.is_none()) {
        return Ok(false);
    }
    let mut wanted = Mask::default();
    let edges = ins.iter().enumerate().filter(|(_, input)| input.edge.is_some());
    edges.for_each(|(at, _)| wanted.set(at));
    Ok(prepared.recording(&wanted)?.saved.contains(&Source::In(input)))
}
