//! Updates of tensors by their gradients: the update, clipping and regularization ops of programs,
//! run at once.

use std::collections::HashMap;
use std::sync::Arc;

use regatta_ir::{Attr, Regularizer};
use regatta_ops::update_op;
use regatta_optim::{RowRule, Rule};
use regatta_tensor::{RowIndex, RowSparse};

use crate::template::{Description, Template};
use crate::{Error, Result, Tensor, no_grad};

/// How gradients are limited before the update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// Every element to `[min, max]`.
    Value {
        /// Lower bound.
        min: f64,
        /// Upper bound.
        max: f64,
    },
    /// Each gradient to a Euclidean norm.
    Norm(f64),
    /// All gradients together to a Euclidean norm.
    GlobalNorm(f64),
}

/// A tensor to update.
#[derive(Debug, Clone)]
pub struct Param<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// Factor on the learning rate.
    pub lr_scale: f64,
    /// Regularization of its own.
    pub regularizer: Option<Regularizer>,
    /// Whether its gradient may be clipped.
    pub clip: bool,
}

impl<'a> Param<'a> {
    /// A tensor without settings of its own.
    pub fn new(tensor: &'a Tensor) -> Param<'a> {
        Param { tensor, lr_scale: 1.0, regularizer: None, clip: true }
    }
}

/// An update rule with the states of the tensors that it updates.
///
/// ```
/// use regatta_eager::{Optimizer, Param, Tensor};
/// use regatta_optim::{Rule, Sgd};
/// let w = Tensor::from_f32(&[2], vec![1.0, 2.0]).unwrap().trainable();
/// w.op("mean", &[]).unwrap().backward(None, false).unwrap();
/// let mut sgd = Optimizer::new(Rule::Sgd(Sgd {}));
/// sgd.step(&[Param::new(&w)], 0.5).unwrap();
/// assert_eq!(w.to_f32(), [0.75, 1.75]);
/// ```
#[derive(Debug)]
pub struct Optimizer {
    rule: Rule,
    clip: Option<Clip>,
    regularizer: Option<Regularizer>,
    /// Rows of a table rest while no gradient names them. Otherwise rows that a gradient has named
    /// once are updated in every step, as if the gradient were dense.
    lazy: bool,
    states: HashMap<u64, States>,
    rate: Tensor,
}

/// What is remembered of one tensor.
#[derive(Debug)]
struct States {
    update: Arc<Template>,
    tensors: Vec<Tensor>,
    /// Rows that a gradient has named, in the order of their first time.
    touched: RowIndex,
}

impl Optimizer {
    /// An optimizer that neither clips nor regularizes, and updates tables lazily.
    pub fn new(rule: Rule) -> Optimizer {
        let rate = Tensor::from_f32(&[1], vec![0.0]).expect("one number has the shape [1]");
        let states = HashMap::new();
        Optimizer { rule, clip: None, regularizer: None, lazy: true, states, rate }
    }

    /// Limits gradients.
    #[must_use]
    pub fn clip(mut self, clip: Option<Clip>) -> Optimizer {
        self.clip = clip;
        self
    }

    /// Regularizes tensors that have no regularization of their own.
    #[must_use]
    pub fn regularizer(mut self, regularizer: Option<Regularizer>) -> Optimizer {
        self.regularizer = regularizer;
        self
    }

    /// Says whether rows of tables rest while no gradient names them.
    #[must_use]
    pub fn lazy(mut self, lazy: bool) -> Optimizer {
        self.lazy = lazy;
        self
    }

    /// Updates every tensor that has a gradient.
    ///
    /// # Errors
    /// If a tensor holds no floats, or a setting makes no sense.
    pub fn step(&mut self, params: &[Param<'_>], lr: f64) -> Result<()> {
        no_grad(|| {
            self.rate.change(|rate| rate[0] = lr as f32)?;
            let mut found: Vec<(&Param<'_>, Tensor)> = Vec::with_capacity(params.len());
            for param in params {
                if let Some(gradient) = param.tensor.grad() {
                    found.push((param, gradient));
                }
            }
            if let Some(clip) = self.clip {
                clip_all(&mut found, clip)?;
            }
            for (param, gradient) in found {
                let gradient = self.regularized(param, gradient)?;
                self.update(param, gradient)?;
            }
            Ok(())
        })
    }

    fn regularized(&self, param: &Param<'_>, gradient: Tensor) -> Result<Tensor> {
        let (kind, coeff) = match param.regularizer.or(self.regularizer) {
            Some(Regularizer::L1(c)) if c != 0.0 => ("l1_decay", c),
            Some(Regularizer::L2(c)) if c != 0.0 => ("l2_decay", c),
            _ => return Ok(gradient),
        };
        // Without a lazy update all rows of a table decay, as Paddle's do.
        let gradient = match gradient.is_rows() && !self.lazy {
            true => dense(&gradient)?,
            false => gradient,
        };
        let slots = [("X", 1), ("Param", 1)];
        let decay = Template::new(kind, &slots, &[("coeff", coeff.into())], &[])?;
        Ok(decay.call(&[&gradient, param.tensor])?.remove(0))
    }

    fn update(&mut self, param: &Param<'_>, mut gradient: Tensor) -> Result<()> {
        let (rule, lazy) = (self.rule, self.lazy);
        let states = match self.states.entry(param.tensor.id()) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(States::new(&rule, param)?)
            }
        };
        if let Some(rows) = gradient.to_rows()
            && !lazy
            && !rule.rests_without_gradient()
        {
            gradient = match rule.moves_without_gradient() {
                true => dense(&gradient)?,
                false => Tensor::rows(states.with_touched(&rows)),
            };
        }
        let mut given = vec![param.tensor, &gradient, &self.rate];
        given.extend(&states.tensors);
        states.update.call(&given)?;
        Ok(())
    }

    /// The states of a tensor, by the names of the rule; nothing before its first update.
    pub fn state(&self, tensor: &Tensor) -> Option<Vec<(&'static str, Tensor)>> {
        let states = self.states.get(&tensor.id())?;
        let names = self.rule.states();
        Some(names.iter().map(|desc| desc.name).zip(states.tensors.iter().cloned()).collect())
    }

    /// Sets states of a tensor by name. Those that are not named begin anew.
    ///
    /// # Errors
    /// If the rule has no such state, or its size is another.
    pub fn set_state(&mut self, param: &Param<'_>, values: &[(&str, Tensor)]) -> Result<()> {
        let mut states = States::new(&self.rule, param)?;
        let names = self.rule.states();
        for (name, value) in values {
            let Some(at) = names.iter().position(|desc| desc.name == *name) else {
                let known: Vec<_> = names.iter().map(|desc| desc.name).collect();
                return Err(Error::Mismatch(format!(
                    "{} has no state '{name}' (it has {known:?})",
                    self.rule.name()
                )));
            };
            states.tensors[at].set(&value.op("reshape", &[shape_of(&states.tensors[at])])?)?;
        }
        // Rows may have been touched before the state was saved: those with anything in it.
        states.touch_all_that_moved(param.tensor);
        self.states.insert(param.tensor.id(), states);
        Ok(())
    }
}

fn shape_of(tensor: &Tensor) -> (&'static str, Attr) {
    ("shape", Attr::Ints(tensor.shape().iter().map(|&d| d as i64).collect()))
}

fn dense(rows: &Tensor) -> Result<Tensor> {
    Tensor::new(&rows.shape(), rows.to_data())
}

impl States {
    fn new(rule: &Rule, param: &Param<'_>) -> Result<States> {
        let n = param.tensor.numel();
        let shape = param.tensor.shape();
        let mut tensors = Vec::new();
        for desc in rule.states() {
            let len = desc.len_for(n);
            let shape = if len == n { shape.clone() } else { vec![len] };
            tensors.push(Tensor::from_f32(&shape, vec![desc.initial; len])?);
        }
        let op = update_op(rule)?;
        let mut attrs: Vec<(String, Attr)> = op.attrs.into_iter().collect();
        attrs.push(("lr_scale".into(), param.lr_scale.into()));
        let slot = |name: &str, count| (name.to_string(), count);
        let mut ins = vec![slot("Param", 1), slot("Grad", 1), slot("LearningRate", 1)];
        if !tensors.is_empty() {
            ins.push(slot("States", tensors.len()));
        }
        let update = Template::of(Description { kind: op.kind, ins, outs: vec![], attrs })?;
        Ok(States { update, tensors, touched: RowIndex::default() })
    }

    /// The gradient with zeros for rows that others have named before.
    fn with_touched(&mut self, rows: &RowSparse) -> RowSparse {
        self.touched.reserve(rows.rows.len());
        let width = rows.width;
        let at: Vec<usize> = rows.rows.iter().map(|row| self.touched.insert(*row).0).collect();
        let mut values = vec![0.0; self.touched.len() * width];
        for (at, (_, from)) in at.iter().zip(rows.iter()) {
            values[at * width..(at + 1) * width].copy_from_slice(from);
        }
        let rows_ = self.touched.ids().to_vec();
        RowSparse { rows: rows_, values, width, height: rows.height }
    }

    fn touch_all_that_moved(&mut self, param: &Tensor) {
        let shape = param.shape();
        let [height, width] = shape[..] else { return };
        for state in self.tensors.iter().filter(|state| state.shape() == shape) {
            let values = state.to_f32();
            let moved = values.chunks_exact(width.max(1)).take(height).enumerate();
            for (row, _) in moved.filter(|(_, row)| row.iter().any(|x| *x != 0.0)) {
                self.touched.reserve(1);
                self.touched.insert(row as u64);
            }
        }
    }
}

fn clip_all(found: &mut [(&Param<'_>, Tensor)], clip: Clip) -> Result<()> {
    let clipped = || found.iter().filter(|(param, _)| param.clip);
    let (template, factor) = match clip {
        Clip::Value { min, max } => {
            let attrs = [("min", min.into()), ("max", max.into())];
            (Template::new("clip_by_value", &[("X", 1)], &attrs, &[])?, None)
        }
        Clip::Norm(norm) => {
            (Template::new("clip_by_norm", &[("X", 1)], &[("max_norm", norm.into())], &[])?, None)
        }
        Clip::GlobalNorm(norm) => {
            let all: Vec<&Tensor> = clipped().map(|(_, gradient)| gradient).collect();
            if all.is_empty() {
                return Ok(());
            }
            let attrs = [("clip_norm", norm.into())];
            let factor = Template::new("global_norm_factor", &[("X", all.len())], &attrs, &[])?;
            let factor = factor.call(&all)?.remove(0);
            (Template::new("scale_by", &[("X", 1), ("Factor", 1)], &[], &[])?, Some(factor))
        }
    };
    for (_, gradient) in found.iter_mut().filter(|(param, _)| param.clip) {
        let done = match &factor {
            Some(factor) => template.call(&[gradient, factor])?,
            None => template.call(&[gradient])?,
        };
        *gradient = done.into_iter().next().expect("clipping has one result");
    }
    Ok(())
}
