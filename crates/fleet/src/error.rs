//! What can go wrong in training.

/// A failed training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is wrong.
    #[error(transparent)]
    Program(#[from] regatta_ir::Error),
    /// A step failed.
    #[error(transparent)]
    Exec(#[from] regatta_exec::Error),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] regatta_data::Error),
    /// An exchange with servers failed.
    #[error(transparent)]
    Ps(#[from] regatta_ps::Error),
    /// What was asked for cannot be done.
    #[error("{0}")]
    Config(String),
}
