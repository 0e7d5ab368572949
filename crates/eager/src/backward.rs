//! From the gradient of a result back to those of leaves.
//!
//! Recorded ops run in the reverse order of their numbers: whatever uses a result has a larger
//! number, so its gradient is complete when its own turn comes.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::call::Outputs;
use crate::finish::finishing;
use crate::global::{lock, no_grad};
use crate::grad::{Gradient, Leaf};
use crate::kernel::run;
use crate::plan::{GradPlan, Source};
use crate::tape::{Edge, Node};
use crate::template::{AddressHasher, Template};
use crate::value::Value;
use crate::view::views;
use crate::{Error, Result, Tensor};

type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

/// Gradients of a node's outputs, as far as they have arrived.
type Arrived = SmallVec<[Option<Gradient>; 1]>;

/// A leaf that gradients are on their way to.
#[derive(Default)]
struct Ahead {
    /// Recorded ops that may still send something.
    senders: usize,
    sum: Option<Gradient>,
}

struct Run<'a> {
    nodes: Vec<Arc<Node>>,
    at: ByAddress<usize>,
    arrived: Vec<Arrived>,
    leaves: ByAddress<Ahead>,
    retain: bool,
    /// What [`crate::grad`] asks for: position among its inputs, by leaf or by node and output.
    asked: Option<Asked>,
    results: Vec<Option<Gradient>>,
    outputs: &'a [&'a Tensor],
}

#[derive(Default)]
struct Asked {
    leaves: ByAddress<usize>,
    outputs: HashMap<(usize, usize), usize>,
}

/// Computes the gradients of all leaves that the outputs were computed from, and adds them to what
/// these have. The gradient of an output with one element is 1 unless it is given.
///
/// # Errors
/// As [`Tensor::backward`].
pub fn run_backward(
    outputs: &[&Tensor],
    gradients: &[Option<&Tensor>],
    retain: bool,
) -> Result<()> {
    backward(outputs, gradients, retain, None).map(|_| ())
}

/// Adds gradients to leaves, or returns those of `inputs` and leaves leaves alone.
pub(crate) fn backward(
    outputs: &[&Tensor],
    gradients: &[Option<&Tensor>],
    retain: bool,
    inputs: Option<&[&Tensor]>,
) -> Result<Vec<Option<Tensor>>> {
    let mut run = Run::new(outputs, retain, inputs);
    finishing(|| {
        no_grad(|| {
            run.start(gradients)?;
            run.all()
        })
    })?;
    Ok(run.results.into_iter().map(|found| found.map(Gradient::into_tensor)).collect())
}

fn address<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of).cast::<()>() as usize
}

impl<'a> Run<'a> {
    fn new(outputs: &'a [&'a Tensor], retain: bool, inputs: Option<&[&Tensor]>) -> Run<'a> {
        let mut run = Run {
            nodes: Vec::new(),
            at: ByAddress::default(),
            arrived: Vec::new(),
            leaves: ByAddress::default(),
            retain,
            asked: inputs.map(Asked::new),
            results: inputs.map_or(vec![], |inputs| inputs.iter().map(|_| None).collect()),
            outputs,
        };
        for output in outputs {
            let (_, _, edge) = output.as_input(true);
            run.visit(edge.unwrap_or(Edge::None));
        }
        run.nodes.sort_unstable_by_key(|node| std::cmp::Reverse(node.id));
        for (i, node) in run.nodes.iter().enumerate() {
            run.at.insert(address(node), i);
            run.arrived.push(node.prepared.outs.iter().map(|_| None).collect());
        }
        run
    }

    /// Collects what gradients can reach.
    fn visit(&mut self, from: Edge) {
        let mut rest: SmallVec<[Edge; 16]> = SmallVec::from_iter([from]);
        while let Some(edge) = rest.pop() {
            match edge {
                Edge::None => {}
                Edge::Leaf(leaf) => {
                    self.leaves.entry(address(&leaf)).or_default().senders += 1;
                }
                Edge::Node(node, _) => {
                    if self.at.insert(address(&node), 0).is_none() {
                        rest.extend(node.edges.iter().cloned());
                        self.nodes.push(node);
                    }
                }
            }
        }
    }

    /// Gives the outputs their gradients.
    fn start(&mut self, gradients: &[Option<&Tensor>]) -> Result<()> {
        for (i, output) in self.outputs.iter().enumerate() {
            let (ty, _, edge) = output.as_input(true);
            let Some(edge) = edge else {
                return Err(Error::NoGraph(format!(
                    "backward of a tensor ({}) that nothing trainable went into: its \
                     stop_gradient is True",
                    ty.var
                )));
            };
            let given = gradients.get(i).copied().flatten();
            let gradient = match given {
                Some(given) if given.ty().dims != ty.dims => {
                    return Err(Error::Mismatch(format!(
                        "the gradient of {} cannot be {}",
                        ty.var,
                        given.ty().var
                    )));
                }
                Some(given) => Gradient::of(given),
                None if ty.numel == 1 => one(output)?,
                None => {
                    return Err(Error::Mismatch(format!(
                        "backward of a tensor with {} elements ({}) needs their gradients; of one \
                         element it is 1",
                        ty.numel, ty.var
                    )));
                }
            };
            self.send(&edge, Some(gradient))?;
        }
        Ok(())
    }

    /// A gradient, or that there is none, on its way to an input.
    fn send(&mut self, edge: &Edge, gradient: Option<Gradient>) -> Result<()> {
        match edge {
            Edge::None => Ok(()),
            Edge::Node(node, output) => {
                let Some(gradient) = gradient else { return Ok(()) };
                let at = self.at[&address(node)];
                let place = &mut self.arrived[at][*output];
                match place {
                    Some(sum) => sum.add(gradient),
                    None => {
                        *place = Some(gradient);
                        Ok(())
                    }
                }
            }
            Edge::Leaf(leaf) => {
                let ahead = self.leaves.get_mut(&address(leaf)).expect("all were collected");
                match (&mut ahead.sum, gradient) {
                    (Some(sum), Some(gradient)) => sum.add(gradient)?,
                    (sum @ None, Some(gradient)) => *sum = Some(gradient),
                    (_, None) => {}
                }
                ahead.senders -= 1;
                match ahead.senders {
                    0 => self.finish(leaf),
                    _ => Ok(()),
                }
            }
        }
    }

    /// All that a leaf gets has arrived.
    fn finish(&mut self, leaf: &Arc<Leaf>) -> Result<()> {
        let ahead = self.leaves.get_mut(&address(leaf)).expect("all were collected");
        let Some(sum) = ahead.sum.take() else { return Ok(()) };
        match &self.asked {
            Some(asked) => {
                if let Some(at) = asked.leaves.get(&address(leaf)) {
                    self.results[*at] = Some(leaf.apply_hooks(sum)?);
                }
                Ok(())
            }
            None => {
                leaf.add(leaf.apply_hooks(sum)?)?;
                leaf.notify()
            }
        }
    }

    fn all(&mut self) -> Result<()> {
        for i in 0..self.nodes.len() {
            let node = self.nodes[i].clone();
            let arrived = self.hooked(i, &node)?;
            let mut grads = match arrived.iter().any(Option::is_some) {
                true => gradients(&node, arrived, self.retain)?,
                false => SmallVec::new(),
            };
            for (input, edge) in node.edges.iter().enumerate() {
                let found = grads.iter().position(|(at, _)| *at == input);
                let gradient = found.map(|at| grads.swap_remove(at).1);
                self.send(edge, gradient)?;
            }
        }
        Ok(())
    }

    /// The gradients of a node's outputs after their hooks.
    fn hooked(&mut self, i: usize, node: &Arc<Node>) -> Result<Arrived> {
        let mut arrived = std::mem::take(&mut self.arrived[i]);
        let has_hooks = !lock(&node.hooks).is_empty();
        for (output, gradient) in arrived.iter_mut().enumerate() {
            if has_hooks && let Some(found) = gradient.take() {
                *gradient = Some(node.apply_hooks(output, found)?);
            }
            if let (Some(asked), Some(gradient)) = (&self.asked, &*gradient)
                && let Some(at) = asked.outputs.get(&(address(node), output))
            {
                self.results[*at] = Some(gradient.clone());
            }
        }
        Ok(arrived)
    }
}

impl Asked {
    fn new(inputs: &[&Tensor]) -> Asked {
        let mut asked = Asked::default();
        for (i, input) in inputs.iter().enumerate() {
            match input.as_input(true).2 {
                Some(Edge::Leaf(leaf)) => {
                    asked.leaves.insert(address(&leaf), i);
                }
                Some(Edge::Node(node, output)) => {
                    asked.outputs.insert((address(&node), output), i);
                }
                Some(Edge::None) | None => {}
            }
        }
        asked
    }
}

/// The gradient of a result by itself.
fn one(output: &Tensor) -> Result<Gradient> {
    let ones = Template::new("fill_like", &[("X", 1)], &[("value", 1.0.into())], &[])?;
    let made: Outputs = ones.call(&[output])?;
    Ok(Gradient::of(&made[0]))
}

/// Gradients of the inputs of a recorded op.
fn gradients(
    node: &Node,
    arrived: Arrived,
    retain: bool,
) -> Result<SmallVec<[(usize, Gradient); 3]>> {
    let saved = {
        let mut saved = lock(&node.saved);
        if retain { saved.clone() } else { saved.take() }
    };
    let freed = || Error::Freed { op: node.prepared.template.op.kind.clone() };
    let saved = saved.ok_or_else(freed)?;
    let present = arrived.iter().enumerate().filter(|(_, g)| g.is_some());
    let present = present.fold(0, |mask, (at, _)| mask | 1 << at);
    let plan = match present == node.recording.present {
        true => node.recording.plan.clone(),
        false => node.prepared.plan(&node.wanted, present)?,
    };
    let made = run_plan(node, &plan, &saved, &arrived)?;
    let gradient = |source: Source| match source {
        Source::Made(at) => made[at].clone().expect("all steps have run"),
        Source::GradOut(at) => arrived[at].clone().expect("rules read what is present"),
        other => unreachable!("{other:?} is no gradient"),
    };
    Ok(plan.grads.iter().map(|(input, source)| (*input, gradient(*source))).collect())
}

/// Runs the ops of a plan; returns what they wrote.
fn run_plan(
    node: &Node,
    plan: &GradPlan,
    saved: &[Value],
    arrived: &Arrived,
) -> Result<SmallVec<[Option<Gradient>; 4]>> {
    let mut made: SmallVec<[Option<Gradient>; 4]> = (0..plan.made).map(|_| None).collect();
    let kept = &node.recording.saved;
    for step in &plan.steps {
        let value = |source: &Source| -> Option<&Value> {
            match *source {
                Source::Absent => None,
                Source::GradOut(at) => arrived[at].as_ref().map(|gradient| &gradient.value),
                Source::Made(at) => made[at].as_ref().map(|gradient| &gradient.value),
                source => kept.iter().position(|had| *had == source).map(|i| &saved[i]),
            }
        };
        let prepared = &step.prepared;
        let outs: SmallVec<[Value; 2]> = if let Some(offsets) = &prepared.views {
            let x = value(&step.sources[0]).expect("a view has an input");
            views(x, offsets, &prepared.outs)
        } else {
            let mut outs: SmallVec<[Value; 2]> =
                prepared.outs.iter().map(|ty| Value::room(ty)).collect();
            run(prepared, step.sources.iter().map(value), &mut outs)?;
            outs
        };
        for ((at, value), ty) in outs.into_iter().enumerate().zip(&prepared.outs) {
            made[step.first + at] = Some(Gradient { ty: ty.clone(), value });
        }
    }
    Ok(made)
}
