//! Parameters and optimizer states that stay on the device.
//!
//! Parameters with the same rule and factor lie one behind the other, as do their gradients and
//! states: one launch updates them all.

use std::collections::HashMap;

use regatta_device::{Buffer, Device, Queue, Step};
use regatta_ir::{Program, VarType};
use regatta_optim::{Per, RowRule, Rule, SharedState, StateDesc};
use regatta_passes::DenseSpec;
use regatta_tensor::{DType, Tensor};

use crate::{Error, Scope};

/// Optimizer states by name.
pub type States = Vec<(&'static str, Vec<f32>)>;

/// All values of a program that outlive a batch.
pub(super) struct Values {
    device: Device,
    index: HashMap<String, usize>,
    entries: Vec<Entry>,
    groups: Vec<Group>,
}

/// One parameter.
struct Entry {
    name: String,
    shape: Vec<usize>,
    buffer: Buffer,
    /// Group and first byte in it, and the gradient; none for a parameter that nothing updates.
    trained: Option<(usize, u64, String)>,
}

/// Parameters that are updated together.
pub(super) struct Group {
    pub(super) rule: Rule,
    pub(super) lr_scale: f64,
    /// Floats, those between parameters included.
    pub(super) len: usize,
    pub(super) weights: Buffer,
    pub(super) grads: Buffer,
    /// States of one number per weight.
    pub(super) states: Vec<Buffer>,
    pub(super) state_descs: Vec<StateDesc>,
    /// States of one number for all.
    pub(super) shared: SharedState,
}

impl Values {
    /// Room for the parameters of a program; they hold zeros until [`Values::write`].
    pub(super) fn new(
        device: &Device,
        program: &Program,
        dense: &[DenseSpec],
    ) -> Result<Values, Error> {
        let mut values = Values {
            device: device.clone(),
            index: HashMap::new(),
            entries: Vec::new(),
            groups: Vec::new(),
        };
        let mut rest: Vec<&DenseSpec> = dense.iter().collect();
        while let Some(first) = rest.first() {
            let (rule, scale) = (first.rule, first.lr_scale);
            let same = |spec: &&DenseSpec| spec.rule == rule && spec.lr_scale == scale;
            let (group, others) = rest.into_iter().partition::<Vec<_>, _>(same);
            values.add_group(rule, scale, &group)?;
            rest = others;
        }
        for var in program.persistables() {
            if !values.index.contains_key(&var.name) {
                values.add_frozen(&var.name, &var.ty)?;
            }
        }
        Ok(values)
    }

    fn add_group(&mut self, rule: Rule, lr_scale: f64, specs: &[&DenseSpec]) -> Result<(), Error> {
        let align = self.device.info().align.max(4);
        let mut offsets = Vec::new();
        let mut bytes = 0_u64;
        for spec in specs {
            bytes = bytes.next_multiple_of(align);
            offsets.push(bytes);
            bytes += 4 * spec.shape.iter().product::<usize>() as u64;
        }
        Step::new(&rule, 0.0, &rule.shared_state()).map_err(no_rule)?;
        let make = || -> Result<Buffer, Error> {
            let buffer = self.device.alloc(bytes)?;
            // What lies between parameters is updated, too: it stays 0.
            self.device.fill(Queue::Compute, &buffer, 0)?;
            Ok(buffer)
        };
        let (weights, grads, descs) = (make()?, make()?, rule.states());
        let own = descs.iter().filter(|state| state.per == Per::Element);
        let states = own.map(|_| make()).collect::<Result<Vec<_>, Error>>()?;
        let shared = rule.shared_state();
        let at = self.groups.len();
        for (spec, &offset) in specs.iter().zip(&offsets) {
            let n = spec.shape.iter().product::<usize>() as u64;
            let buffer = self.device.slice(&weights, offset, 4 * n)?;
            let trained = Some((at, offset, spec.grad.clone()));
            self.add(&spec.name, spec.shape.clone(), buffer, trained);
        }
        let len = (bytes / 4) as usize;
        let group =
            Group { rule, lr_scale, len, weights, grads, states, state_descs: descs, shared };
        self.groups.push(group);
        self.reset_states(at)
    }

    fn add_frozen(&mut self, name: &str, ty: &VarType) -> Result<(), Error> {
        if ty.dtype != DType::F32 {
            return Err(Error::Options(format!(
                "'{name}' is {ty}; parameters and states on a device are f32"
            )));
        }
        let shape: Vec<usize> = ty.shape.iter().map(|&d| d as usize).collect();
        let buffer = self.device.alloc(4 * shape.iter().product::<usize>() as u64)?;
        self.add(name, shape, buffer, None);
        Ok(())
    }

    fn add(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        buffer: Buffer,
        trained: Option<(usize, u64, String)>,
    ) {
        self.index.insert(name.to_string(), self.entries.len());
        self.entries.push(Entry { name: name.to_string(), shape, buffer, trained });
    }

    /// Writes the initial values of all states of a group.
    fn reset_states(&mut self, at: usize) -> Result<(), Error> {
        let group = &mut self.groups[at];
        let own = group.state_descs.iter().filter(|state| state.per == Per::Element);
        for (state, buffer) in own.zip(&group.states) {
            self.device.fill(Queue::Compute, buffer, state.initial.to_bits())?;
        }
        Ok(())
    }

    /// The number of a parameter.
    pub(super) fn index(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// The floats of a parameter.
    pub(super) fn buffer(&self, at: usize) -> &Buffer {
        &self.entries[at].buffer
    }

    /// Names and elements of the gradients that updates read.
    pub(super) fn gradients(&self) -> impl Iterator<Item = (&str, usize)> {
        self.entries.iter().filter_map(|entry| {
            let (_, _, grad) = entry.trained.as_ref()?;
            Some((grad.as_str(), entry.shape.iter().product()))
        })
    }

    /// Where they read them, in the same order.
    pub(super) fn gradient_buffers(&self) -> Result<Vec<Buffer>, Error> {
        let trained = self.entries.iter().filter_map(|e| Some((e, e.trained.as_ref()?)));
        let part = |(entry, (group, offset, _)): (&Entry, &(usize, u64, String))| {
            let bytes = 4 * entry.shape.iter().product::<usize>() as u64;
            Ok(self.device.slice(&self.groups[*group].grads, *offset, bytes)?)
        };
        trained.map(part).collect()
    }

    /// The parameters by rule.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Updates all parameters: one launch for each group.
    pub(super) fn apply(&mut self, learning_rate: f32) -> Result<(), Error> {
        for group in &mut self.groups {
            let rate = learning_rate * group.lr_scale as f32;
            let step = Step::new(&group.rule, rate, &group.shared).map_err(no_rule)?;
            let states: Vec<&Buffer> = group.states.iter().collect();
            let (buffers, n) = ((&group.weights, &group.grads), group.len as u64);
            self.device.update_dense(Queue::Compute, &step, buffers, &states, n)?;
            group.rule.advance(&mut group.shared);
        }
        Ok(())
    }

    /// Takes all parameters from a scope.
    pub(super) fn write(&self, scope: &Scope) -> Result<(), Error> {
        for entry in &self.entries {
            let missing = || Error::NotInitialised { what: "parameter", name: entry.name.clone() };
            let tensor = scope.get(&entry.name).ok_or_else(missing)?;
            if tensor.shape() != entry.shape || tensor.dtype() != DType::F32 {
                return Err(Error::Persistable {
                    name: entry.name.clone(),
                    expected: format!("f32{:?}", entry.shape),
                    actual: format!("{}{:?}", tensor.dtype(), tensor.shape()),
                });
            }
            self.device.write_values(Queue::Compute, &entry.buffer, 0, tensor.f32())?;
        }
        Ok(())
    }

    /// Brings all parameters into a scope.
    pub(super) fn read(&self, scope: &mut Scope) -> Result<(), Error> {
        for entry in &self.entries {
            let n = entry.shape.iter().product();
            let floats = self.device.read_floats(Queue::Compute, &entry.buffer, 0, n)?;
            let tensor = Tensor::from_f32(&entry.shape, floats);
            scope.set(&entry.name, tensor.expect("as many floats as the shape has"));
        }
        Ok(())
    }

    /// The optimizer states of a parameter: name and values, in the order of its rule.
    pub(super) fn states(&self, param: &str) -> Result<Option<States>, Error> {
        let Some(entry) = self.index(param).map(|at| &self.entries[at]) else { return Ok(None) };
        let Some((at, offset, _)) = &entry.trained else { return Ok(Some(Vec::new())) };
        let group = &self.groups[*at];
        let mut shared = group.shared;
        let (mut own, mut scalars) = (group.states.iter(), shared.values_mut().iter());
        let n = entry.shape.iter().product();
        let mut states = Vec::new();
        for state in &group.state_descs {
            let values = match (state.per, own.as_slice().first()) {
                (Per::Element, Some(buffer)) => {
                    own.next();
                    self.device.read_floats(Queue::Compute, buffer, *offset, n)?
                }
                _ => scalars.next().into_iter().copied().collect(),
            };
            states.push((state.name, values));
        }
        Ok(Some(states))
    }

    /// Sets the optimizer states of a parameter, in the order of its rule. Those of one number are
    /// shared by all parameters of a rule: the last one given counts.
    pub(super) fn set_states(&mut self, param: &str, states: &[Vec<f32>]) -> Result<(), Error> {
        let Some(entry) = self.index(param).map(|at| &self.entries[at]) else { return Ok(()) };
        let Some((at, offset, _)) = &entry.trained else { return Ok(()) };
        let group = &mut self.groups[*at];
        let n: usize = entry.shape.iter().product();
        let (mut own, mut scalar) = (0, 0);
        for (state, values) in group.state_descs.iter().zip(states) {
            if values.len() != state.len_for(n) {
                return Err(Error::Persistable {
                    name: format!("{param}: {}", state.name),
                    expected: format!("{} floats", state.len_for(n)),
                    actual: format!("{} floats", values.len()),
                });
            }
            if state.per == Per::Element {
                self.device.write_values(Queue::Compute, &group.states[own], *offset, values)?;
                own += 1;
            } else {
                group.shared.values_mut()[scalar] = values[0];
                scalar += 1;
            }
        }
        Ok(())
    }
}

fn no_rule(missing: regatta_device::NoKernel) -> Error {
    Error::Options(missing.to_string())
}
