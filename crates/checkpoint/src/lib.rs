//! Every on-disk format: tensors, the persistables of a program, and inference models.
//!
//! Whatever is written appears under its name complete or not at all: it is made beside its
//! destination, forced to disk, and renamed. What was there before stays until then. Everything that
//! is read is checked, and an error names the file.
//!
//! This crate knows tensors and programs. It knows nothing of training or of running programs, so
//! values come in by lookup and go out as lists.
//!
//! ```
//! use regatta_checkpoint::{Metadata, load_tensors, save_tensors};
//! use regatta_tensor::Tensor;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("weights.safetensors");
//! let w = Tensor::from_f32(&[2], vec![0.5, -0.0])?;
//! save_tensors(&path, [("w", &w)], &Metadata::new())?;
//! let file = load_tensors(&path)?;
//! assert_eq!(file.tensors["w"], w);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order:
//!
//! 1. `tensors`: [`save_tensors`] and [`load_tensors`], the safetensors file
//! 2. `persistables`: [`save_persistables`] and [`load_persistables`], everything a program keeps
//! 3. `inference`: [`save_inference_model`] and [`load_inference_model`], a pruned program with its
//!    parameters
//! 4. `publish`: how a file or directory appears at once
//! 5. `format`: version and program hash, which all of them carry
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod format;
mod inference;
mod persistables;
mod publish;
mod tensors;

pub use error::{Difference, Error};
pub use format::{FORMAT_VERSION, program_hash};
pub use inference::{
    InferenceModel, PARAMS_FILE, PROGRAM_FILE, load_inference_model, save_inference_model,
};
pub use persistables::{PERSISTABLES_FILE, load_persistables, save_persistables};
pub use tensors::{Metadata, TensorFile, load_tensors, save_tensors};
