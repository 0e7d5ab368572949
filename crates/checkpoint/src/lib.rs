//! Every on-disk format: checkpoints of whole jobs, tensors, the persistables of a program, and
//! inference models.
//!
//! Whatever is written appears under its name complete or not at all: it is made beside its
//! destination, forced to disk, and renamed. What was there before stays until then. Everything
//! that is read is checked, and an error names the file.
//!
//! This crate knows tensors, tables and programs. It knows nothing of training or of running
//! programs, so values come in by lookup and go out as lists.
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
//! 1. `tensors`: [`save_tensors`] and [`load_tensors`], the safetensors file; `open_tensors`:
//!    [`OpenTensors`], one that is read piece by piece
//! 2. `persistables`: [`save_persistables`] and [`load_persistables`], everything a program keeps
//! 3. `model`: [`save_model`], [`save_inference_model`] and [`open_model`], a pruned program with
//!    its parameters and tables
//! 4. `publish`: how a file or directory appears at once; `private`: a folder that nobody else can
//!    prepare
//! 5. `format`: version and program hash, which all of them carry
//! 6. [`server_parts`]: what parameter servers save
//! 7. `file_sums`: checksums beside files of other formats
//!
//! and for checkpoints of jobs:
//!
//! 1. `config`: [`CheckpointConfig`], when one is made
//! 2. `dir`: [`CheckpointDir`], all of a job, and [`Draft`], one that is being written
//!    and `lock`: [`FolderLock`], so that one job alone works in it
//! 3. `manifest`: [`Manifest`], what a checkpoint says about itself
//! 4. `parts` ([`write_tensors`]) and `table` ([`save_table`], [`SavedTable`]): what is in it
//! 5. `rows`: the file of a table, [`TableWriter`] and [`TableReader`]
//! 6. `checkpoint`: [`Checkpoint`], one that is read
//! 7. `verify`: [`verify_path`], [`verify()`](verify()), and `resume`: [`CheckpointDir::choose`]
//! 8. `diff` ([`diff()`](diff())) and `history` ([`history()`](history())): for people who look
//!    for a cause
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod checkpoint;
mod checksum;
mod config;
mod diff;
mod dir;
mod epoch;
mod error;
mod file_sums;
mod format;
mod history;
mod lock;
mod manifest;
mod model;
mod open_tensors;
mod parts;
mod persistables;
mod private;
mod publish;
mod resume;
mod rows;
pub mod server_parts;
mod spool;
mod table;
mod tensors;
mod verify;

// What files hold and how they are chosen is said in the words of tables.
pub use regatta_table::{Generation, Row, RowBody, SaveMode};

pub use checkpoint::Checkpoint;
pub use checksum::Checksum;
pub use config::CheckpointConfig;
pub use diff::{Change, RowChanges, VariableDiff, diff};
pub use dir::{CheckpointDir, Draft, Entry, State};
pub use epoch::{
    ABOUT_FILE, STATISTICS_FILE, add_checksums, is_epoch, load_about, load_statistics,
    publish_epoch, save_about, save_statistics, try_epoch,
};
pub use error::{Difference, Error};
pub use file_sums::{SUMS_FILE, check_file_sums, write_file_sums};
pub use format::{FORMAT_VERSION, program_hash};
pub use history::{Event, Moment, history};
pub use lock::{FolderLock, LOCK_FILE};
pub use manifest::{
    Content, Kind, LearningRate, MANIFEST_FILE, Manifest, Part, Progress, Topology, WorkerPosition,
    part_name,
};
pub use model::{
    BlockSums, EachRow, Encoding, InferenceModel, ModelAbout, ModelFile, ModelManifest, ModelSpec,
    ModelTable, OpenModel, PARAMS_FILE, PROGRAM_FILE, TableRows, check_file, load_inference_model,
    lookup_tables, open_model, save_inference_model, save_model, verify_model, verify_whole,
};
pub use open_tensors::OpenTensors;
pub use parts::{read_bytes, read_tensors, write_bytes, write_tensors};
pub use persistables::{PERSISTABLES_FILE, load_persistables, not_finite, save_persistables};
pub use private::private_temp_dir;
pub use publish::{publish_dir, publish_file, publish_link, try_dir, try_file, try_link};
pub use resume::{Check, Choice, PassedOver, Resume};
pub use rows::{BlockBuffer, BlockRows, Saved, TableHeader, TableReader, TableWriter};
pub use table::{SavedPart, SavedTable, save_table};
pub use tensors::{Metadata, TensorFile, load_checked, load_tensors, save_tensors};
pub use verify::{Problem, Verification, verify, verify_all, verify_path};
