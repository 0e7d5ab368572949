//! The tensor: a value that ops compute at once, and its place on the tape.

use std::sync::{Arc, Mutex, OnceLock};

use regatta_ir::{Attr, Layout, VarType};
use regatta_tensor::{DType, Data, Ragged, RowSparse};

use crate::backward::{backward, run_backward};
use crate::fingerprint::of as fingerprint;
use crate::global::{lock, number, type_of};
use crate::grad::{Gradient, Kept, Leaf, Ready};
use crate::tape::{Edge, Hook, Node};
use crate::template::Template;
use crate::value::{Dense, Type, Value};
use crate::{Error, Result};

/// An array, or rows or ids of one, with the way back to what it was computed from.
///
/// A clone is the same tensor: what changes one in place changes the other. The elements of
/// different tensors may share memory, but a change of one is never seen through another.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    id: u64,
    state: Mutex<State>,
    leaf: OnceLock<Arc<Leaf>>,
}

struct State {
    ty: Arc<Type>,
    value: Value,
    node: Option<(Arc<Node>, usize)>,
    stop_gradient: bool,
    version: u64,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({})", lock(&self.0.state).ty.var)
    }
}

impl Tensor {
    pub(crate) fn computed(
        ty: Arc<Type>,
        value: Value,
        node: Option<(Arc<Node>, usize)>,
    ) -> Tensor {
        let stop_gradient = node.is_none();
        let state = Mutex::new(State { ty, value, node, stop_gradient, version: 0 });
        Tensor(Arc::new(Inner { id: number(), state, leaf: OnceLock::new() }))
    }

    /// A tensor with a value, of which no gradient is wanted.
    ///
    /// # Errors
    /// If the shape does not hold exactly that many elements.
    pub fn new(shape: &[usize], data: Data) -> Result<Tensor> {
        // The length is checked where values are made.
        let tensor = regatta_tensor::Tensor::new(shape, data)?;
        let dims: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
        let ty = type_of(&VarType::dense(tensor.dtype(), dims));
        Ok(Tensor::computed(ty, Value::Dense(Dense::of(tensor.into_data())), None))
    }

    /// Floats.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn from_f32(shape: &[usize], data: Vec<f32>) -> Result<Tensor> {
        Tensor::new(shape, Data::F32(data))
    }

    /// Integers.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn from_i64(shape: &[usize], data: Vec<i64>) -> Result<Tensor> {
        Tensor::new(shape, Data::I64(data))
    }

    /// A tensor whose elements `fill` writes into a buffer that was used before. `fill` must write
    /// all of them.
    pub fn filled(dtype: DType, shape: &[usize], fill: impl FnOnce(Room<'_>)) -> Tensor {
        let dims: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
        let ty = type_of(&VarType::dense(dtype, dims));
        let mut dense = Dense::room(dtype, ty.numel);
        let n = ty.numel;
        match dense.data_mut().expect("just made") {
            Data::F32(v) => fill(Room::F32(&mut v[..n])),
            Data::F16(v) | Data::BF16(v) => fill(Room::Half(&mut v[..n])),
            Data::I64(v) => fill(Room::I64(&mut v[..n])),
            Data::U64(v) => fill(Room::U64(&mut v[..n])),
        }
        Tensor::computed(ty, Value::Dense(dense), None)
    }

    /// A variable number of ids per example.
    pub fn ragged(ragged: Ragged) -> Tensor {
        let dtype = ragged.values().dtype();
        let shape = vec![ragged.rows() as i64];
        let ty = type_of(&VarType { dtype, layout: Layout::Ragged, shape });
        Tensor::computed(ty, Value::Ragged(Arc::new(ragged)), None)
    }

    /// Some rows of a matrix.
    pub fn rows(rows: RowSparse) -> Tensor {
        let ty = VarType::f32([rows.height as i64, rows.width as i64]).rows();
        Tensor::computed(type_of(&ty), Value::Rows(Arc::new(rows)), None)
    }

    /// The same tensor, of which gradients are wanted from now on.
    #[must_use]
    pub fn trainable(self) -> Tensor {
        self.set_stop_gradient(false);
        self
    }

    /// A number that no other tensor has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Dimensions.
    pub fn shape(&self) -> Vec<usize> {
        lock(&self.0.state).ty.dims.to_vec()
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        lock(&self.0.state).ty.dims.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        lock(&self.0.state).ty.numel
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        lock(&self.0.state).ty.var.dtype
    }

    /// Element type, layout and shape.
    pub fn var_type(&self) -> VarType {
        lock(&self.0.state).ty.var.clone()
    }

    /// Whether it holds some rows of a matrix only.
    pub fn is_rows(&self) -> bool {
        lock(&self.0.state).ty.var.layout == Layout::Rows
    }

    /// Those rows.
    pub fn to_rows(&self) -> Option<Arc<RowSparse>> {
        match &lock(&self.0.state).value {
            Value::Rows(rows) => Some(rows.clone()),
            _ => None,
        }
    }

    /// Those ids.
    pub fn to_ragged(&self) -> Option<Arc<Ragged>> {
        match &lock(&self.0.state).value {
            Value::Ragged(ragged) => Some(ragged.clone()),
            _ => None,
        }
    }

    /// Counts changes in place.
    pub fn version(&self) -> u64 {
        lock(&self.0.state).version
    }

    /// A copy of the elements; rows of a matrix with zeros between them.
    pub fn to_data(&self) -> Data {
        let value = lock(&self.0.state).value.clone();
        match value {
            Value::Dense(dense) => dense.to_data(),
            Value::Rows(rows) => Data::F32(rows.to_dense()),
            Value::Ragged(ragged) => ragged.values().clone(),
        }
    }

    /// Shows the elements of a dense tensor to a function; nothing if it is not dense.
    pub fn with_data<T>(&self, look: impl FnOnce(&Data, std::ops::Range<usize>) -> T) -> Option<T> {
        let value = lock(&self.0.state).value.clone();
        value.dense().map(|dense| look(dense.data(), dense.range()))
    }

    /// A copy of the floats.
    ///
    /// # Panics
    /// If it holds something else; see [`Tensor::dtype`].
    pub fn to_f32(&self) -> Vec<f32> {
        match self.to_data() {
            Data::F32(floats) => floats,
            other => panic!("expected f32, this tensor holds {}", other.dtype()),
        }
    }

    /// A number that follows from all bits of the elements: tensors with different ones differ.
    pub fn fingerprint(&self) -> u64 {
        let value = lock(&self.0.state).value.clone();
        let dense = |dense: &Dense| fingerprint(dense.data(), dense.range());
        match &value {
            Value::Dense(elements) => dense(elements),
            _ => dense(&Dense::of(self.to_data())),
        }
    }

    /// A copy for programs, readers and files.
    pub fn to_tensor(&self) -> regatta_tensor::Tensor {
        let data = self.to_data();
        let made = regatta_tensor::Tensor::new(&self.shape(), data);
        made.expect("the value of a tensor has its shape")
    }

    /// Whether no gradient is wanted.
    pub fn stop_gradient(&self) -> bool {
        lock(&self.0.state).stop_gradient
    }

    /// Says whether no gradient is wanted.
    pub fn set_stop_gradient(&self, stop: bool) {
        lock(&self.0.state).stop_gradient = stop;
    }

    /// Whether no recorded op made it.
    pub fn is_leaf(&self) -> bool {
        lock(&self.0.state).node.is_none()
    }

    /// Runs an op on this tensor, as its slot `X`.
    ///
    /// # Errors
    /// As [`Template::call`].
    pub fn op(&self, kind: &str, attrs: &[(&str, Attr)]) -> Result<Tensor> {
        let template = Template::new(kind, &[("X", 1)], attrs, &[])?;
        Ok(template.call(&[self])?.remove(0))
    }

    /// The same value without the way back.
    #[must_use]
    pub fn detach(&self) -> Tensor {
        let state = lock(&self.0.state);
        Tensor::computed(state.ty.clone(), state.value.clone(), None)
    }

    /// `len` rows of the first dimension, from `first` on, without the way back.
    ///
    /// # Errors
    /// If there are no such rows.
    pub fn leading(&self, first: usize, len: usize) -> Result<Tensor> {
        let state = lock(&self.0.state);
        let rows = state.ty.dims.first().copied().unwrap_or(0);
        let Value::Dense(dense) = &state.value else {
            return Err(Error::Mismatch("only dense tensors have parts".into()));
        };
        if first + len > rows {
            let message = format!("rows {first}..{} of {}", first + len, state.ty.var);
            return Err(Error::Mismatch(message));
        }
        let mut ty = state.ty.var.clone();
        ty.shape[0] = len as i64;
        let width = state.ty.numel / rows.max(1);
        let part = dense.part(first * width, len * width);
        Ok(Tensor::computed(type_of(&ty), Value::Dense(part), None))
    }

    /// Takes the value of another tensor of the same type. What was computed from the old value
    /// keeps it.
    ///
    /// # Errors
    /// If shape or element type differ.
    pub fn set(&self, other: &Tensor) -> Result<()> {
        let (ty, value, _) = other.as_input(false);
        let mut state = lock(&self.0.state);
        if ty.var != state.ty.var {
            let message = format!("a value of {} cannot be set to {}", state.ty.var, ty.var);
            return Err(Error::Mismatch(message));
        }
        state.value = value;
        state.version += 1;
        Ok(())
    }

    /// Becomes what another tensor is: type, value and way back.
    pub fn become_(&self, other: &Tensor) {
        let (ty, value, node, stop) = {
            let other = lock(&other.0.state);
            (other.ty.clone(), other.value.clone(), other.node.clone(), other.stop_gradient)
        };
        let mut state = lock(&self.0.state);
        (state.ty, state.value, state.node) = (ty, value, node);
        state.stop_gradient = stop;
        state.version += 1;
    }

    /// Shows the floats to a function that changes them. What shares them keeps what they were.
    ///
    /// # Errors
    /// If it does not hold dense floats.
    pub fn change<T>(&self, change: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
        let mut state = lock(&self.0.state);
        if state.ty.var.dtype != DType::F32 {
            return Err(Error::Mismatch(format!("{} holds no floats", state.ty.var)));
        }
        state.version += 1;
        state.value.own();
        match &mut state.value {
            Value::Dense(dense) => Ok(change(dense.f32_mut().expect("it is its own"))),
            _ => Err(Error::Mismatch("only dense tensors can be changed".into())),
        }
    }

    // Gradients.

    /// Its end of the tape.
    pub(crate) fn leaf(&self) -> &Arc<Leaf> {
        self.0.leaf.get_or_init(Arc::default)
    }

    pub(crate) fn ty(&self) -> Arc<Type> {
        lock(&self.0.state).ty.clone()
    }

    /// Type, value, and where a gradient goes if one is wanted.
    pub(crate) fn as_input(&self, records: bool) -> (Arc<Type>, Value, Option<Edge>) {
        let state = lock(&self.0.state);
        let wants = records && !state.stop_gradient && state.ty.var.dtype.is_float();
        let edge = wants.then(|| match &state.node {
            Some((node, at)) => Edge::Node(node.clone(), *at),
            None => Edge::Leaf(self.leaf().clone()),
        });
        (state.ty.clone(), state.value.clone(), edge)
    }

    /// Computes the gradients of all tensors that this one was computed from and that want one, and
    /// adds them to what these have. `gradient` is that of this tensor: 1 if it has one element.
    ///
    /// # Errors
    /// If nothing was recorded, the graph was freed, or a gradient cannot be computed.
    pub fn backward(&self, gradient: Option<&Tensor>, retain_graph: bool) -> Result<()> {
        run_backward(&[self], &[gradient], retain_graph)
    }

    /// The gradient that backward has added up, of a leaf or where it is kept. What changes it in
    /// place changes the gradient of this tensor.
    pub fn grad(&self) -> Option<Tensor> {
        let leaf = self.0.leaf.get()?;
        let mut kept = lock(&leaf.kept);
        let shown = match std::mem::take(&mut *kept) {
            Kept::Nothing => return None,
            Kept::Zero => Gradient::zeros(&self.ty()).into_tensor(),
            Kept::Gradient(gradient) => gradient.into_tensor(),
            Kept::Shown(tensor) => tensor,
        };
        *kept = Kept::Shown(shown.clone());
        Some(shown)
    }

    /// Whether there is a gradient, zeros included.
    pub fn has_grad(&self) -> bool {
        self.0.leaf.get().is_some_and(|leaf| !matches!(*lock(&leaf.kept), Kept::Nothing))
    }

    /// Puts a gradient in the place of what there is.
    ///
    /// # Errors
    /// If its shape is another.
    pub fn set_grad(&self, gradient: Option<&Tensor>) -> Result<()> {
        if let Some(gradient) = gradient {
            let (own, other) = (self.ty(), gradient.ty());
            if own.dims != other.dims {
                return Err(Error::Mismatch(format!(
                    "the gradient of {} cannot be {}",
                    own.var, other.var
                )));
            }
        }
        *lock(&self.leaf().kept) = match gradient {
            Some(gradient) => Kept::Gradient(Gradient::of(gradient)),
            None => Kept::Nothing,
        };
        Ok(())
    }

    /// Adds to the gradient.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn add_grad(&self, gradient: &Tensor) -> Result<()> {
        let (own, other) = (self.ty(), gradient.ty());
        if own.dims != other.dims {
            let message = format!("the gradient of {} cannot be {}", own.var, other.var);
            return Err(Error::Mismatch(message));
        }
        self.leaf().add(Gradient::of(gradient))
    }

    /// Forgets the gradient, or makes it zero where there is one.
    pub fn clear_grad(&self, set_to_zero: bool) {
        if let Some(leaf) = self.0.leaf.get() {
            let mut kept = lock(&leaf.kept);
            *kept = match (&*kept, set_to_zero) {
                (Kept::Nothing, true) | (_, false) => Kept::Nothing,
                (_, true) => Kept::Zero,
            };
        }
    }

    /// Calls a hook with the gradient of this tensor, in every backward, when all of it is known.
    /// What the hook returns takes its place. Returns the number to take the hook away by.
    pub fn hook(&self, hook: Hook) -> u64 {
        let id = number();
        let node = lock(&self.0.state).node.clone();
        match node {
            Some((node, at)) => lock(&node.hooks).push((id, at, hook)),
            None => self.leaf().hook(id, hook),
        }
        id
    }

    /// Calls a function after every backward has added its whole gradient to this leaf.
    pub fn on_ready(&self, ready: Ready) -> u64 {
        let id = number();
        self.leaf().on_ready(id, ready);
        id
    }

    /// Takes a hook away.
    pub fn unhook(&self, id: u64) {
        if let Some((node, _)) = &lock(&self.0.state).node {
            lock(&node.hooks).retain(|(had, _, _)| *had != id);
        }
        if let Some(leaf) = self.0.leaf.get() {
            leaf.unhook(id);
        }
    }

    /// Keeps the gradient of a tensor that an op made, as those of leaves are kept.
    pub fn retain_grads(&self) {
        if self.is_leaf() {
            return;
        }
        let leaf = Arc::downgrade(self.leaf());
        self.hook(Arc::new(move |gradient| {
            if let Some(leaf) = leaf.upgrade() {
                leaf.add(Gradient::of(gradient))?;
            }
            Ok(None)
        }));
    }

    /// The value, for an op that changes it.
    pub(crate) fn taken_value(&self) -> Value {
        let placeholder = Value::Rows(Arc::default());
        std::mem::replace(&mut lock(&self.0.state).value, placeholder)
    }

    /// The changed value.
    pub(crate) fn put_value(&self, value: Value) {
        let mut state = lock(&self.0.state);
        state.value = value;
        state.version += 1;
    }
}

/// Gradients of `outputs` by `inputs`, which are added to no tensor; `None` where no output depends
/// on an input.
///
/// # Errors
/// As [`Tensor::backward`].
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    gradients: &[Option<&Tensor>],
    retain_graph: bool,
) -> Result<Vec<Option<Tensor>>> {
    backward(outputs, gradients, retain_graph, Some(inputs))
}

/// Where the elements of a new tensor are written.
#[derive(Debug)]
pub enum Room<'a> {
    /// Floats.
    F32(&'a mut [f32]),
    /// The bits of 16-bit floats.
    Half(&'a mut [u16]),
    /// Signed integers.
    I64(&'a mut [i64]),
    /// Unsigned integers.
    U64(&'a mut [u64]),
}
