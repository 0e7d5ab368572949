//! Gradients: how they are added up, and where those of leaves are kept.

use std::sync::{Arc, Mutex};

use regatta_ir::Layout;
use regatta_kernels::vector;
use regatta_tensor::{DType, RowIndex};
use smallvec::SmallVec;

use crate::call::Outputs;
use crate::global::{lock, type_of};
use crate::tape::{Hook, apply};
use crate::template::Template;
use crate::value::{Dense, Type, Value};
use crate::{Result, Tensor};

/// A gradient with its type.
#[derive(Clone)]
pub(crate) struct Gradient {
    pub(crate) ty: Arc<Type>,
    pub(crate) value: Value,
}

impl Gradient {
    pub(crate) fn of(tensor: &Tensor) -> Gradient {
        let (ty, value, _) = tensor.as_input(false);
        Gradient { ty, value }
    }

    pub(crate) fn into_tensor(self) -> Tensor {
        Tensor::computed(self.ty, self.value, None)
    }

    /// Adds another gradient of the same variable.
    pub(crate) fn add(&mut self, more: Gradient) -> Result<()> {
        if let (Value::Rows(rows), Value::Rows(others)) = (&mut self.value, &more.value) {
            let rows = Arc::make_mut(rows);
            let mut index = RowIndex::default();
            index.reserve(rows.rows.len() + others.rows.len());
            rows.rows.iter().for_each(|row| {
                index.insert(*row);
            });
            rows.add_rows(others, &mut index);
            return Ok(());
        }
        self.make_dense();
        let more = more.dense();
        if self.ty.var.dtype != DType::F32 {
            let sum = Template::new("elementwise_add", &[("X", 1), ("Y", 1)], &[], &[])?;
            let (x, y) = (self.clone().into_tensor(), more.into_tensor());
            let done: Outputs = crate::no_grad(|| sum.call(&[&x, &y]))?;
            *self = Gradient::of(&done[0]);
            return Ok(());
        }
        self.value.own();
        if let (Value::Dense(sum), Value::Dense(more)) = (&mut self.value, &more.value) {
            let sum = sum.f32_mut().expect("it was just made its own");
            vector::add_assign(sum, more.f32());
        }
        Ok(())
    }

    /// The same gradient with zeros where rows are not named.
    pub(crate) fn dense(mut self) -> Gradient {
        self.make_dense();
        self
    }

    fn make_dense(&mut self) {
        if let Value::Rows(rows) = &self.value {
            let mut ty = self.ty.var.clone();
            ty.layout = Layout::Dense;
            self.ty = type_of(&ty);
            self.value = Value::Dense(Dense::of(regatta_tensor::Data::F32(rows.to_dense())));
        }
    }

    /// Zeros of a type.
    pub(crate) fn zeros(ty: &Arc<Type>) -> Gradient {
        let mut value = Value::room(ty);
        if let Value::Dense(dense) = &mut value {
            let len = dense.len();
            *dense = Dense::copy_of(&regatta_tensor::Data::zeros(ty.var.dtype, len), 0..len);
        }
        Gradient { ty: ty.clone(), value }
    }
}

/// What a leaf has for a gradient.
#[derive(Clone, Default)]
pub(crate) enum Kept {
    /// None yet.
    #[default]
    Nothing,
    /// Zeros that nobody has looked at.
    Zero,
    /// This.
    Gradient(Gradient),
    /// This, which somebody has asked for: what changes it in place changes the gradient.
    Shown(Tensor),
}

impl Kept {
    /// Shows the gradient to a function that changes it; nothing if there is none.
    fn change<T>(&mut self, change: impl FnOnce(&mut Gradient) -> T) -> Option<T> {
        match self {
            Kept::Nothing | Kept::Zero => None,
            Kept::Gradient(gradient) => Some(change(gradient)),
            Kept::Shown(tensor) => {
                // Taken, so that the elements have one owner.
                let mut gradient = Gradient { ty: tensor.ty(), value: tensor.taken_value() };
                let done = change(&mut gradient);
                tensor.become_(&gradient.into_tensor());
                Some(done)
            }
        }
    }
}

/// A tensor that no op made and that wants a gradient: its end of the tape.
#[derive(Default)]
pub(crate) struct Leaf {
    pub(crate) kept: Mutex<Kept>,
    hooks: Mutex<Vec<(u64, Hook)>>,
    /// Called after a backward has added its gradient.
    ready: Mutex<Vec<(u64, Ready)>>,
}

/// Called when a backward has added its whole gradient to a tensor.
pub type Ready = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl Leaf {
    pub(crate) fn hook(&self, id: u64, hook: Hook) {
        lock(&self.hooks).push((id, hook));
    }

    pub(crate) fn on_ready(&self, id: u64, ready: Ready) {
        lock(&self.ready).push((id, ready));
    }

    /// Takes a hook of either kind away again.
    pub(crate) fn unhook(&self, id: u64) {
        lock(&self.hooks).retain(|(had, _)| *had != id);
        lock(&self.ready).retain(|(had, _)| *had != id);
    }

    pub(crate) fn apply_hooks(&self, gradient: Gradient) -> Result<Gradient> {
        let hooks: SmallVec<[Hook; 2]> =
            lock(&self.hooks).iter().map(|(_, hook)| hook.clone()).collect();
        apply(&hooks, gradient)
    }

    /// Adds a gradient to what there is.
    pub(crate) fn add(&self, gradient: Gradient) -> Result<()> {
        let mut kept = lock(&self.kept);
        if let Kept::Nothing | Kept::Zero = &*kept {
            *kept = Kept::Gradient(gradient);
            return Ok(());
        }
        kept.change(|sum| sum.add(gradient)).unwrap_or(Ok(()))
    }

    /// Tells who waits for it that a backward has added all it had.
    pub(crate) fn notify(&self) -> Result<()> {
        let ready: SmallVec<[Ready; 1]> =
            lock(&self.ready).iter().map(|(_, ready)| ready.clone()).collect();
        ready.iter().try_for_each(|ready| ready())
    }
}

/// Multiplies the gradients of tensors by a factor. Returns whether one of them is not finite.
///
/// # Errors
/// If a gradient holds no floats.
pub fn unscale(tensors: &[Tensor], factor: f32) -> Result<bool> {
    let mut overflow = false;
    for tensor in tensors {
        let mut kept = lock(&tensor.leaf().kept);
        let not_finite = kept.change(|gradient| {
            gradient.value.own();
            let values = match &mut gradient.value {
                Value::Dense(dense) => dense.f32_mut().expect("it was just made its own"),
                Value::Rows(rows) => &mut Arc::get_mut(rows).expect("as above").values[..],
                Value::Ragged(_) => return false,
            };
            vector::scale(factor, values);
            values.iter().any(|x| !x.is_finite())
        });
        overflow |= not_finite.unwrap_or(false);
    }
    Ok(overflow)
}
