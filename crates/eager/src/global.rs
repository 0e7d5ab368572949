//! What all tensors of a process share: types by value, prepared ops by description, and numbers
//! that are given out once. What a thread has of its own: room for kernels, freed buffers, whether
//! gradients are recorded. Nothing here changes what an op computes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use regatta_ir::VarType;
use regatta_ops::StepCtx;

use crate::autocast::Autocast;
use crate::buffer::Pool;
use crate::finish::Backwards;
use crate::template::{Description, Template};
use crate::value::Type;

/// More types or descriptions than a model has: shapes that never come back. The tables start anew,
/// and what is alive keeps its own.
const TABLE_LIMIT: usize = 1 << 16;

static NUMBERS: AtomicU64 = AtomicU64::new(1);
static THREADS: AtomicUsize = AtomicUsize::new(1);
static TYPES: Mutex<Option<HashMap<VarType, Arc<Type>>>> = Mutex::new(None);
static TEMPLATES: Mutex<Option<HashMap<Description, Arc<Template>>>> = Mutex::new(None);

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
    static CONTEXT: RefCell<StepCtx> = RefCell::default();
    static BACKWARDS: RefCell<Backwards> = RefCell::default();
    static RECORDS: Cell<bool> = const { Cell::new(true) };
    static RANDOM: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static AUTOCAST: RefCell<Option<Arc<Autocast>>> = const { RefCell::new(None) };
    static CASTS: Cell<bool> = const { Cell::new(false) };
}

/// A number that nothing else has.
pub(crate) fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The one shared description of a type.
pub(crate) fn type_of(ty: &VarType) -> Arc<Type> {
    let mut types = lock(&TYPES);
    let types = types.get_or_insert_default();
    if let Some(known) = types.get(ty) {
        return known.clone();
    }
    if types.len() >= TABLE_LIMIT {
        types.clear();
    }
    let made = Arc::new(Type::new(number(), ty.clone()));
    types.insert(ty.clone(), made.clone());
    made
}

/// The one shared template of a description, made by `make` when it is new.
pub(crate) fn template_of<E>(
    key: Description,
    make: impl FnOnce(&Description) -> Result<Template, E>,
) -> Result<Arc<Template>, E> {
    if let Some(known) = lock(&TEMPLATES).get_or_insert_default().get(&key) {
        return Ok(known.clone());
    }
    let made = Arc::new(make(&key)?);
    let mut templates = lock(&TEMPLATES);
    let templates = templates.get_or_insert_default();
    if templates.len() >= TABLE_LIMIT {
        templates.clear();
    }
    Ok(templates.entry(key).or_insert(made).clone())
}

/// This thread's freed buffers; nothing while the thread ends.
pub(crate) fn with_pool<T>(use_it: impl FnOnce(&mut Pool) -> T) -> Option<T> {
    POOL.try_with(|pool| use_it(&mut pool.borrow_mut())).ok()
}

/// This thread's room for kernels.
pub(crate) fn with_context<T>(use_it: impl FnOnce(&mut StepCtx) -> T) -> T {
    CONTEXT.with_borrow_mut(use_it)
}

/// How many threads share an op with many examples; 1 unless it was set.
pub fn threads() -> usize {
    THREADS.load(Ordering::Relaxed)
}

/// Says how many threads share an op with many examples. Sums over examples depend on it in their
/// last bits.
pub fn set_threads(n: usize) {
    THREADS.store(n.max(1), Ordering::Relaxed);
}

/// The backwards of this thread.
pub(crate) fn with_backwards<T>(use_them: impl FnOnce(&mut Backwards) -> T) -> T {
    BACKWARDS.with_borrow_mut(use_them)
}

/// Whether ops of this thread record what gradients need.
pub fn is_grad_enabled() -> bool {
    RECORDS.get()
}

/// Says whether ops of this thread record what gradients need; returns what was said before.
pub fn set_grad_enabled(enabled: bool) -> bool {
    RECORDS.replace(enabled)
}

/// Runs a function whose ops record nothing.
///
/// ```
/// use regatta_eager::{Tensor, no_grad};
/// let x = Tensor::from_f32(&[2], vec![1.0, 2.0]).unwrap().trainable();
/// let y = no_grad(|| x.op("relu", &[])).unwrap();
/// assert!(y.stop_gradient());
/// ```
pub fn no_grad<T>(run: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            RECORDS.set(self.0);
        }
    }
    let _before = Before(RECORDS.replace(false));
    run()
}

/// Starts the random numbers of this thread's ops anew: they follow from the seed and the number of
/// random ops since.
pub fn seed(seed: u64) {
    RANDOM.set((seed, 0));
}

/// What the next random op draws from.
pub(crate) fn next_draw() -> u64 {
    let (seed, count) = RANDOM.get();
    RANDOM.set((seed, count + 1));
    // Draws of neighbouring seeds must not meet: the seed is spread over all bits.
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(count)
}

/// Whether this thread casts: asked by every op, so without a count of references.
pub(crate) fn casts() -> bool {
    CASTS.get()
}

/// This thread's automatic casts.
pub(crate) fn autocast() -> Option<Arc<Autocast>> {
    AUTOCAST.with_borrow(Clone::clone)
}

/// Sets this thread's automatic casts; returns those before.
pub fn set_autocast(autocast: Option<Arc<Autocast>>) -> Option<Arc<Autocast>> {
    CASTS.set(autocast.is_some());
    AUTOCAST.replace(autocast)
}
