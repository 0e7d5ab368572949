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
    Exec(Box<regatta_exec::Error>),
    /// The data could not be read.
    #[error(transparent)]
    Data(Box<regatta_data::Error>),
    /// An exchange with servers failed.
    #[error(transparent)]
    Ps(Box<regatta_ps::Error>),
    /// What was asked for cannot be done.
    #[error("{0}")]
    Config(String),
}

/// Boxed, so that results stay small on the way of every batch.
macro_rules! boxed_from {
    ($($variant:ident($error:ty)),*) => {$(
        impl From<$error> for Error {
            fn from(e: $error) -> Error {
                Error::$variant(Box::new(e))
            }
        }
    )*};
}
boxed_from!(Exec(regatta_exec::Error), Data(regatta_data::Error), Ps(regatta_ps::Error));
