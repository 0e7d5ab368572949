//! What can go wrong in training.

use std::path::PathBuf;

use regatta_exec::Error as ExecError;

use crate::input::Input;

/// A failed run. Three families: *you* (a setting or program that cannot be used), *them* (a peer,
/// a disk, data), *us* (a mistake in this code).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// You: a setting that cannot be used.
    #[error("{0}")]
    Config(String),
    /// You: the program is wrong.
    #[error(transparent)]
    Program(Box<regatta_ir::Error>),
    /// You: a checkpoint that this run cannot resume from.
    #[error("{0}")]
    Resume(String),
    /// You or them: the data could not be read.
    #[error(transparent)]
    Data(Box<regatta_data::Error>),
    /// You or them: the loss is no number any more, and neither are the parameters.
    #[error(
        "step {step}, epoch {epoch}, batch {batch}: the loss '{name}' is {loss}; \
         check_nan_inf=True names the op that writes the first such value (a lower learning rate \
         or clipping often helps), allow_non_finite_loss=True continues all the same"
    )]
    NonFiniteLoss {
        /// Steps since training began.
        step: u64,
        /// The variable.
        name: String,
        /// The data pass.
        epoch: u64,
        /// The batch in it, from 0.
        batch: u64,
        /// NaN or an infinity.
        loss: f32,
    },
    /// You or them: parameters are no numbers any more, though the last loss was one.
    #[error(
        "step {step}, epoch {epoch}: '{variable}' holds NaN or infinity, so the epoch is not \
         saved; a lower learning rate or clipping often helps, allow_non_finite_loss=True saves \
         it all the same"
    )]
    NonFiniteValue {
        /// The data pass.
        epoch: u64,
        /// Steps since training began.
        step: u64,
        /// The parameter, or a part of the optimizer's state.
        variable: String,
    },
    /// A step failed on values of a file.
    #[error("{error}; in a batch of {examples} examples, read up to {place}")]
    InBatch {
        /// What happened.
        error: Box<Error>,
        /// Examples of the batch.
        examples: usize,
        /// The file and the line of its last example.
        place: String,
    },
    /// You or them: a step failed.
    #[error(transparent)]
    Exec(Box<regatta_exec::Error>),
    /// Them: an exchange with servers failed.
    #[error(transparent)]
    Ps(Box<regatta_ps::Error>),
    /// Them: ranks could not work together.
    #[error(transparent)]
    Collective(Box<regatta_collective::Error>),
    /// Them: an exchange within a step failed.
    #[error("{0}")]
    Exchange(String),
    /// Them: a model or checkpoint could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(Box<regatta_checkpoint::Error>),
    /// Them: a file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Them: data were lost with a worker.
    #[error("{0}")]
    Lost(String),
    /// Them: a remote store cannot be reached, refuses, or holds something else.
    #[error("{0}")]
    Store(String),
    /// Them: the system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Whatever a front end met while the loop called it.
    #[error(transparent)]
    Front(Box<dyn std::error::Error + Send + Sync>),
    /// Us: the loop has lost its way.
    #[error("internal error: {0}; please report it")]
    Internal(String),
}

/// A device fails in a step, or before one.
impl From<regatta_device::Error> for Error {
    fn from(error: regatta_device::Error) -> Error {
        ExecError::from(error).into()
    }
}

impl Error {
    /// Wraps an error of a front end.
    pub fn front(e: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Front(Box::new(e))
    }

    /// Whether servers have lost this worker and continue without it.
    pub(crate) fn is_dropped(&self) -> bool {
        matches!(self, Error::Ps(e) if matches!(**e, regatta_ps::Error::Dropped { .. }))
    }

    /// Says where the values came from that a step failed on.
    pub(crate) fn in_batch(self, input: &Input) -> Error {
        let values = match &self {
            Error::Exec(e) => matches!(**e, ExecError::Kernel { .. } | ExecError::NotFinite { .. }),
            Error::NonFiniteLoss { .. } => true,
            _ => false,
        };
        match input.read_up_to() {
            Some(place) if values => {
                Error::InBatch { error: Box::new(self), examples: input.examples(), place }
            }
            _ => self,
        }
    }

    /// Whether the user must change what was written, rather than the data or the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Config(_) => true,
            Error::Data(e) => matches!(**e, regatta_data::Error::Config(_)),
            _ => false,
        }
    }
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
boxed_from!(
    Program(regatta_ir::Error),
    Exec(regatta_exec::Error),
    Data(regatta_data::Error),
    Ps(regatta_ps::Error),
    Checkpoint(regatta_checkpoint::Error),
    Collective(regatta_collective::Error)
);

/// Lets the error of a front end take in those of the loop and of everything below it: the enum has
/// a variant `Train(Box<regatta_train::Error>)`. Its own errors pass through the loop unchanged.
#[macro_export]
macro_rules! front_error {
    ($error:ident) => {
        impl From<$crate::Error> for $error {
            fn from(error: $crate::Error) -> $error {
                match error {
                    // What the front end met while the loop called it.
                    $crate::Error::Front(e) => match e.downcast::<$error>() {
                        Ok(own) => *own,
                        Err(e) => $error::Train(Box::new($crate::Error::Front(e))),
                    },
                    other => $error::Train(Box::new(other)),
                }
            }
        }

        impl $error {
            /// On its way through the loop.
            pub(crate) fn in_loop(self) -> $crate::Error {
                match self {
                    $error::Train(e) => *e,
                    other => $crate::Error::front(other),
                }
            }
        }

        $crate::front_error!($error: regatta_ir, regatta_data, regatta_exec, regatta_checkpoint);
        $crate::front_error!($error: regatta_ps, regatta_collective);
    };
    ($error:ident: $($below:ident),*) => {$(
        impl From<$below::Error> for $error {
            fn from(e: $below::Error) -> $error {
                $error::Train(Box::new(e.into()))
            }
        }
    )*};
}
