//! A model as data: programs of ops over typed variables, a builder that reads like layers, a text
//! form that can be printed and parsed back, and a verifier.
//!
//! Nothing here runs anything, and nothing knows of ranks, files, threads or time.
//!
//! Reading order: [`VarDef`] and [`VarType`], [`Op`], [`Program`], [`Schema`] (what an op kind
//! looks like), [`Builder`] with its `layers`, [`text`], [`verify()`].

mod array_layers;
mod builder;
mod error;
mod image_layers;
mod initializer;
mod layers;
mod op;
mod program;
pub mod schema;
pub mod text;
mod var;
mod verify;

pub use builder::{Builder, Var};
pub use error::{Error, nearest};
pub use initializer::Initializer;
pub use layers::{Act, Embedding, Fc, ParamAttr, Pool};
pub use op::{Attr, Op, Role};
pub use program::{Block, Program, Programs};
pub use schema::{OpSet, Schema};
pub use var::{Layout, Origin, ParamInfo, Regularizer, VarDef, VarType, grad_name};
pub use verify::{complete, verify};
