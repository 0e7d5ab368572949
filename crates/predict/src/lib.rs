//! Trained models that answer.
//!
//! A [`Model`] is a directory that `save_model` of `regatta_checkpoint` wrote, opened once and
//! shared by threads; its tables are memory-mapped, so opening reads no rows and memory follows
//! what is touched. A [`Session`] belongs to one thread and scores batches.
//!
//! ```
//! use regatta_predict::Model;
//! use regatta_tensor::{DType, Tensor, Value};
//! # let mut b = regatta_ops::builder(1);
//! # let x = b.data("x", DType::F32, &[-1, 2])?;
//! # let y = b.fc(&x, 1, regatta_ir::Act::None)?;
//! # let program = b.finish().main;
//! # let pruned = regatta_passes::prune(&program, &[y.name()])?;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model");
//! # let w = Tensor::from_f32(&[2, 1], vec![3.0, 4.0])?;
//! # let zero = Tensor::from_f32(&[1], vec![0.5])?;
//! # let value = |name: &str| Some(if name.contains(".w") { &w } else { &zero });
//! # regatta_checkpoint::save_inference_model(&path, &pruned, &["x"], &[y.name()], value)?;
//! let model = Model::open(&path)?;
//! let mut session = model.session()?;
//! let batch = Value::from(Tensor::from_f32(&[1, 2], vec![1.0, 2.0])?);
//! let scores = session.score(&[("x", &batch)])?;
//! assert_eq!(scores[0].f32(), [11.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: `model` ([`Model`]), `session` ([`Session`]), `mapped` (a table on disk), `input`
//! (what a batch must look like), `raw` ([`RawRows`]: raw values by declared features), [`files`]
//! (the model for other programs), `onnx` (as an ONNX file).
#![warn(missing_docs)]
#![warn(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
pub mod files;
mod input;
mod mapped;
mod model;
mod onnx;
mod raw;
mod session;

pub use error::Error;
pub use input::{Input, InputKind};
pub use model::{Info, MissingIds, Model, Options};
pub use raw::RawRows;
pub use session::Session;
