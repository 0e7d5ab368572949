//! Ops without their tensors: a kind, how many tensors each slot holds, attributes. For given input
//! types a template has a prepared op: output types, a kernel, and how gradients are computed.
//!
//! Variables have positional names: inputs `i0`, `i1`, ..., outputs `o0`, `o1`, ....

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock};

use regatta_ir::schema::Arity;
use regatta_ir::{Attr, Op, OpSet, VarType};
use regatta_ops::{Grad, Kernel, OPS, OpDef, Spec};

use crate::Result;
use crate::global::{lock, template_of, type_of};
use crate::plan::{GradPlan, Mask, Source};
use crate::threads::Split;
use crate::value::Type;
use crate::view::{self, Offsets};

/// More shapes than one op of a model sees: its prepared ops are made anew.
const PREPARED_LIMIT: usize = 4096;

/// What a template is found by.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub(crate) kind: String,
    pub(crate) ins: Vec<(String, usize)>,
    pub(crate) outs: Vec<(String, usize)>,
    pub(crate) attrs: Vec<(String, Attr)>,
}

impl PartialEq for Description {
    fn eq(&self, other: &Description) -> bool {
        let same = |(a, x): &(String, Attr), (b, y): &(String, Attr)| a == b && same_attr(x, y);
        self.kind == other.kind
            && self.ins == other.ins
            && self.outs == other.outs
            && self.attrs.len() == other.attrs.len()
            && self.attrs.iter().zip(&other.attrs).all(|(x, y)| same(x, y))
    }
}

impl Eq for Description {}

/// Equal to the bit, so that NaN is itself.
fn same_attr(x: &Attr, y: &Attr) -> bool {
    match (x, y) {
        (Attr::Float(x), Attr::Float(y)) => x.to_bits() == y.to_bits(),
        (Attr::Floats(x), Attr::Floats(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits())
        }
        _ => x == y,
    }
}

impl Hash for Description {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.ins.hash(state);
        self.outs.hash(state);
        for (name, attr) in &self.attrs {
            name.hash(state);
            match attr {
                Attr::Int(x) => x.hash(state),
                Attr::Float(x) => x.to_bits().hash(state),
                Attr::Bool(x) => x.hash(state),
                Attr::Str(x) => x.hash(state),
                Attr::Ints(x) => x.hash(state),
                Attr::Floats(x) => x.iter().for_each(|x| x.to_bits().hash(state)),
                Attr::Strs(x) => x.hash(state),
            }
        }
    }
}

/// An op without its tensors, to be called any number of times.
///
/// ```
/// use regatta_eager::{Template, Tensor};
/// let add = Template::new("elementwise_add", &[("X", 1), ("Y", 1)], &[], &[]).unwrap();
/// let x = Tensor::from_f32(&[2], vec![1.0, 2.0]).unwrap();
/// let y = add.call(&[&x, &x]).unwrap();
/// assert_eq!(y[0].to_f32(), [2.0, 4.0]);
/// ```
pub struct Template {
    pub(crate) op: Op,
    pub(crate) def: &'static OpDef,
    /// For each input of the op, which of the caller's it is; empty where that is the same.
    order: Vec<usize>,
    /// Inputs that are updated in place, with their outputs.
    pub(crate) in_place: Vec<(usize, usize)>,
    /// It draws random numbers.
    pub(crate) is_random: bool,
    prepared: Mutex<HashMap<u64, Arc<Prepared>, BuildHasherDefault<Mixed>>>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Template({})", self.op.kind)
    }
}

impl Template {
    /// A template with slots in the order in which tensors will be given, each with the number of
    /// them; `counts` says how many results slots of any number have.
    ///
    /// # Errors
    /// If there is no such op, or slots or attributes do not fit it.
    pub fn new(
        kind: &str,
        slots: &[(&str, usize)],
        attrs: &[(&str, Attr)],
        counts: &[(&str, usize)],
    ) -> Result<Arc<Template>> {
        let owned = |pairs: &[(&str, usize)]| -> Vec<(String, usize)> {
            pairs.iter().map(|(name, n)| (name.to_string(), *n)).collect()
        };
        let attrs = attrs.iter().map(|(name, attr)| (name.to_string(), attr.clone())).collect();
        let (ins, outs) = (owned(slots), owned(counts));
        Template::of(Description { kind: kind.to_string(), ins, outs, attrs })
    }

    pub(crate) fn of(description: Description) -> Result<Arc<Template>> {
        template_of(description, Template::make)
    }

    /// The template of an op with all its variables, in the order of its slots.
    pub(crate) fn of_op(op: &Op) -> Result<Arc<Template>> {
        let slots = |slots: &[(String, Vec<String>)]| -> Vec<(String, usize)> {
            slots.iter().map(|(slot, vars)| (slot.clone(), vars.len())).collect()
        };
        let attrs = op.attrs.iter().map(|(name, attr)| (name.clone(), attr.clone())).collect();
        let (ins, outs) = (slots(&op.inputs), slots(&op.outputs));
        Template::of(Description { kind: op.kind.clone(), ins, outs, attrs })
    }

    fn make(from: &Description) -> Result<Template> {
        let def = OPS.def(&from.kind)?;
        let mut op = Op::new(&from.kind);
        op.attrs = from.attrs.iter().cloned().collect();
        let mut next = 0;
        for (slot, count) in &from.ins {
            let vars = (next..next + count).map(|i| format!("c{i}")).collect();
            next += count;
            op.inputs.push((slot.clone(), vars));
        }
        op.outputs = output_slots(def, &op, &from.outs);
        def.schema.complete(&mut op)?;
        let order: Vec<usize> = op
            .input_vars()
            .map(|name| name[1..].parse().expect("the names were just made"))
            .collect();
        rename(&mut op);
        let in_place = in_place(def, &mut op);
        let order = if order.iter().enumerate().all(|(i, at)| i == *at) { vec![] } else { order };
        Ok(Template {
            is_random: def.schema.attrs.iter().any(|(name, _)| *name == "seed"),
            op,
            def,
            order,
            in_place,
            prepared: Mutex::default(),
        })
    }

    /// Kind of the op.
    pub fn kind(&self) -> &str {
        &self.op.kind
    }

    /// Position among the caller's tensors of input `i`.
    pub(crate) fn given(&self, i: usize) -> usize {
        self.order.get(i).copied().unwrap_or(i)
    }

    /// The prepared op for input types.
    pub(crate) fn prepared(self: &Arc<Template>, ins: &[&Arc<Type>]) -> Result<Arc<Prepared>> {
        let key = ins.iter().fold(0u64, |hash, ty| mix(hash, ty.id));
        if let Some(known) = lock(&self.prepared).get(&key)
            && known.ins.len() == ins.len()
            && known.ins.iter().zip(ins).all(|(a, b)| a.id == b.id)
        {
            return Ok(known.clone());
        }
        let made = Arc::new(Prepared::new(self.clone(), ins)?);
        let mut prepared = lock(&self.prepared);
        if prepared.len() >= PREPARED_LIMIT {
            prepared.clear();
        }
        prepared.insert(key, made.clone());
        Ok(made)
    }
}

/// Results: all required ones, those that are updated in place, and as many of others as are asked
/// for.
fn output_slots(def: &OpDef, op: &Op, counts: &[(String, usize)]) -> Vec<(String, Vec<String>)> {
    let mut next = 0;
    let mut slots = Vec::new();
    for slot in def.schema.outputs {
        let asked = counts.iter().find(|(name, _)| name == slot.name).map(|(_, count)| *count);
        let updated = def.schema.updated_input(slot.name).map(|input| op.ins(input).len());
        let count = asked.or(updated).unwrap_or(match slot.arity {
            Arity::One | Arity::Many => 1,
            Arity::Optional | Arity::Any => 0,
        });
        let vars: Vec<String> = (next..next + count).map(|i| format!("o{i}")).collect();
        next += count;
        if !vars.is_empty() {
            slots.push((slot.name.to_string(), vars));
        }
    }
    // A slot that does not exist is refused by the schema.
    for (name, _) in counts {
        if !def.schema.outputs.iter().any(|slot| slot.name == name) {
            slots.push((name.clone(), vec![]));
        }
    }
    slots
}

fn rename(op: &mut Op) {
    let all = |slots: &mut Vec<(String, Vec<String>)>, letter: char| {
        for (i, var) in slots.iter_mut().flat_map(|(_, vars)| vars).enumerate() {
            *var = format!("{letter}{i}");
        }
    };
    all(&mut op.inputs, 'i');
    all(&mut op.outputs, 'o');
}

/// Finds pairs of input and output that are one variable, and names them alike.
fn in_place(def: &OpDef, op: &mut Op) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut renamed = Vec::new();
    for (slot, vars) in &op.outputs {
        let Some(input) = def.schema.updated_input(slot) else { continue };
        for (from, to) in op.ins(input).iter().zip(vars) {
            pairs.push((position(from), position(to)));
            renamed.push((to.clone(), from.clone()));
        }
    }
    renamed.iter().for_each(|(from, to)| op.rename_output(from, to));
    pairs
}

fn position(name: &str) -> usize {
    name[1..].parse().expect("positional names end with their position")
}

/// An op for given input types.
pub(crate) struct Prepared {
    pub(crate) template: Arc<Template>,
    pub(crate) ins: Box<[Arc<Type>]>,
    pub(crate) outs: Box<[Arc<Type>]>,
    /// Where the results lie in the input, if they need no kernel.
    pub(crate) views: Option<Offsets>,
    /// Kernels that no thread runs at the moment: nearly always one.
    kernels: Mutex<Vec<Kernel>>,
    /// How gradients are computed, by which inputs want one and which outputs have one.
    plans: Mutex<Vec<(Mask, u64, Arc<GradPlan>)>>,
    /// What is recorded, by which inputs want a gradient.
    recordings: Mutex<Vec<(Mask, Arc<Recording>)>>,
    /// How several threads do it.
    split: OnceLock<Option<Split>>,
}

/// What a recorded op keeps, and how its gradients are nearly always computed.
pub(crate) struct Recording {
    pub(crate) plan: Arc<GradPlan>,
    /// The outputs whose gradients the plan takes.
    pub(crate) present: u64,
    /// What any plan reads of the forward op.
    pub(crate) saved: Vec<Source>,
}

impl Prepared {
    fn new(template: Arc<Template>, ins: &[&Arc<Type>]) -> Result<Prepared> {
        let vars: Vec<VarType> = ins.iter().map(|ty| ty.var.clone()).collect();
        let outs = OPS.infer(&template.op, &vars)?;
        let outs: Box<[Arc<Type>]> = outs.iter().map(type_of).collect();
        let ins: Box<[Arc<Type>]> = ins.iter().map(|ty| Arc::clone(ty)).collect();
        let (kernels, plans) = (Mutex::default(), Mutex::default());
        let (recordings, split) = (Mutex::default(), OnceLock::new());
        let views = view::offsets(&template.op, &ins, &outs);
        let prepared = Prepared { template, ins, outs, views, kernels, plans, recordings, split };
        if prepared.views.is_none() {
            let kernel = prepared.new_kernel()?;
            lock(&prepared.kernels).push(kernel);
        }
        Ok(prepared)
    }

    /// How several threads do it, if they can.
    pub(crate) fn split(&self) -> Option<&Split> {
        self.split.get_or_init(|| Split::of(&self.template, &self.ins, &self.outs)).as_ref()
    }

    fn new_kernel(&self) -> Result<Kernel> {
        let vars = |types: &[Arc<Type>]| -> Vec<VarType> {
            types.iter().map(|ty| ty.var.clone()).collect()
        };
        let (ins, outs) = (vars(&self.ins), vars(&self.outs));
        let spec = Spec { op: &self.template.op, declared: &ins, ins: &ins, outs: &outs };
        Ok(OPS.kernel(&spec)?)
    }

    /// Runs something with a kernel that no other thread has.
    pub(crate) fn with_kernel<T>(&self, run: impl FnOnce(&mut Kernel) -> Result<T>) -> Result<T> {
        let free = lock(&self.kernels).pop();
        let mut kernel = match free {
            Some(kernel) => kernel,
            None => self.new_kernel()?,
        };
        let done = run(&mut kernel);
        lock(&self.kernels).push(kernel);
        done
    }

    /// How the gradients of the inputs in one mask follow from those of the outputs in another.
    pub(crate) fn plan(&self, wanted: &Mask, present: u64) -> Result<Arc<GradPlan>> {
        let known = |plans: &[(Mask, u64, Arc<GradPlan>)]| {
            let found = plans.iter().find(|(w, p, _)| w == wanted && *p == present);
            found.map(|(_, _, plan)| plan.clone())
        };
        if let Some(plan) = known(&lock(&self.plans)) {
            return Ok(plan);
        }
        let plan = Arc::new(GradPlan::new(self, wanted, present)?);
        lock(&self.plans).push((wanted.clone(), present, plan.clone()));
        Ok(plan)
    }

    /// What to record where the inputs in a mask want gradients.
    pub(crate) fn recording(&self, wanted: &Mask) -> Result<Arc<Recording>> {
        let found = |known: &[(Mask, Arc<Recording>)]| {
            known.iter().find(|(mask, _)| mask == wanted).map(|(_, had)| had.clone())
        };
        if let Some(known) = found(&lock(&self.recordings)) {
            return Ok(known);
        }
        let all = u64::MAX >> (64 - self.outs.len().clamp(1, 64));
        let made = match self.plan(wanted, all) {
            Ok(plan) => Recording { saved: plan.saved.clone(), plan, present: all },
            // Some outputs have no gradient: what is saved serves each of the others.
            Err(error) => self.some_outputs(wanted).ok_or(error)?,
        };
        let made = Arc::new(made);
        lock(&self.recordings).push((wanted.clone(), made.clone()));
        Ok(made)
    }

    fn some_outputs(&self, wanted: &Mask) -> Option<Recording> {
        let alone = (0..self.outs.len().min(64)).map(|at| 1 << at);
        let plans = alone.filter_map(|present| Some((present, self.plan(wanted, present).ok()?)));
        let plans: Vec<(u64, Arc<GradPlan>)> = plans.collect();
        let mut saved = Vec::new();
        for source in plans.iter().flat_map(|(_, plan)| &plan.saved) {
            if !saved.contains(source) {
                saved.push(*source);
            }
        }
        let (present, plan) = plans.into_iter().find(|(_, plan)| !plan.grads.is_empty())?;
        Some(Recording { plan, present, saved })
    }

    /// Whether the op can be differentiated at all.
    pub(crate) fn no_gradient(&self) -> Option<&'static str> {
        match self.template.def.grad {
            Grad::None(reason) => Some(reason),
            Grad::Rule(_) => None,
        }
    }
}

fn mix(hash: u64, id: u64) -> u64 {
    (hash.rotate_left(5) ^ id).wrapping_mul(0x517c_c1b7_2722_0a95)
}

/// Numbers that are hashes already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = mix(self.0, u64::from(*b)));
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = x;
    }
}

/// Addresses: quicker than the hash that withstands attacks.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = mix(self.0, u64::from(*b)));
    }

    fn write_usize(&mut self, x: usize) {
        self.0 = mix(0, x as u64);
    }
}
