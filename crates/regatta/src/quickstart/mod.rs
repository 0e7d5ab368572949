//! Two small models with built-in data: what `regatta fit-a-line` and `regatta mlp` train.

pub mod fit_a_line;
pub mod mlp;

pub use fit_a_line::FitALine;
pub use mlp::Mlp;

use regatta_ir::Programs;

/// A model before `minimize`, and the names one needs to train and to use it.
#[derive(Debug, Clone)]
pub struct Model {
    /// The forward program and the initial values of its parameters.
    pub programs: Programs,
    /// The number to be made small.
    pub loss: String,
    /// The prediction of the model.
    pub prediction: String,
}
