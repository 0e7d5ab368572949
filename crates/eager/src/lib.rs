//! Tensors that compute at once, with gradients.
//!
//! An op runs when it is called, on the same kernels as programs. What its gradient needs is
//! recorded; [`Tensor::backward`] asks the gradient rules of the op set for ops and runs them, so
//! there is no code for any single op here. There are no files, sockets, programs or Python here.
//!
//! ```
//! use regatta_eager::{Template, Tensor};
//! let x = Tensor::from_f32(&[1, 2], vec![1.0, 2.0]).unwrap();
//! let w = Tensor::from_f32(&[2, 1], vec![3.0, 4.0]).unwrap().trainable();
//! let product = Template::new("matmul", &[("X", 1), ("Y", 1)], &[], &[]).unwrap();
//! let y = product.call(&[&x, &w]).unwrap().remove(0);
//! assert_eq!(y.to_f32(), [11.0]);
//! y.backward(None, false).unwrap();
//! assert_eq!(w.grad().unwrap().to_f32(), [1.0, 2.0]);
//! ```
//!
//! Reading order: [`Tensor`], [`Template`] (an op without its tensors), `call` (one op), `plan` and
//! `tape` (what is recorded), `backward`, `finish` (its end), `grad` (sums, leaves), [`Reducer`]
//! and `bucket` (gradients of several ranks), `value`, `view` and `buffer` (memory), `kernel`,
//! `threads`, `autocast`, [`Optimizer`], [`nn`], `fingerprint`, `global`.

mod autocast;
mod backward;
mod bucket;
mod buffer;
mod call;
mod dynamic;
mod error;
mod fingerprint;
mod finish;
mod global;
mod grad;
mod kernel;
pub mod nn;
mod optimizer;
mod plan;
mod reducer;
mod tape;
mod template;
mod tensor;
mod threads;
mod value;
mod view;

pub use autocast::{Autocast, AutocastGuard, autocast};
pub use backward::run_backward as backward;
pub use bucket::Replica;
pub use call::Outputs;
pub use dynamic::Unique;
pub use error::{Error, Result};
pub use finish::after_backward;
pub use global::{
    is_grad_enabled, no_grad, seed, set_autocast, set_grad_enabled, set_threads, threads,
};
pub use grad::{Ready, unscale};
pub use optimizer::{Clip, Optimizer, Param};
pub use reducer::{Ranks, Reducer, ReducerOptions};
pub use tape::Hook;
pub use template::Template;
pub use tensor::{Room, Tensor, grad};
