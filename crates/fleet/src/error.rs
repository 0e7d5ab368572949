//! What can go wrong in training.

/// A failed training run.
///
/// Its [`Debug`](std::fmt::Debug) form is the message, which is what a program shows whose `main`
/// returns it.
#[derive(thiserror::Error)]
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
    /// The place of this process in its job is not clear.
    #[error(transparent)]
    Place(#[from] regatta_cluster::Error),
    /// Files, or what should go into them.
    #[error(transparent)]
    Checkpoint(Box<regatta_checkpoint::Error>),
    /// A call that comes too early or too late.
    #[error("{call}: {reason}")]
    Order {
        /// The call.
        call: &'static str,
        /// What to do first, or why it is too late.
        reason: String,
    },
    /// Ranks could not work together.
    #[error(transparent)]
    Collective(Box<regatta_collective::Error>),
    /// The loop failed.
    #[error(transparent)]
    Train(Box<regatta_train::Error>),
    /// A setting that cannot be used.
    #[error("{0}")]
    Config(String),
    /// A mistake in this code.
    #[error("internal error: {0}; please report it")]
    Internal(String),
}

impl Error {
    /// An error of the caller on its way through the loop.
    pub(crate) fn in_loop(self) -> regatta_train::Error {
        match self {
            Error::Train(e) => *e,
            other => regatta_train::Error::front(other),
        }
    }
}

impl From<regatta_train::Error> for Error {
    fn from(e: regatta_train::Error) -> Error {
        use regatta_train::Error as Inner;
        match e {
            Inner::Front(e) => match e.downcast::<Error>() {
                Ok(own) => *own,
                Err(e) => Error::Train(Box::new(Inner::Front(e))),
            },
            Inner::Config(text) => Error::Config(text),
            Inner::Program(e) => Error::Program(*e),
            Inner::Exec(e) => Error::Exec(e),
            Inner::Data(e) => Error::Data(e),
            Inner::Ps(e) => Error::Ps(e),
            Inner::Checkpoint(e) => Error::Checkpoint(e),
            Inner::Collective(e) => Error::Collective(e),
            other => Error::Train(Box::new(other)),
        }
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
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
    Exec(regatta_exec::Error),
    Data(regatta_data::Error),
    Ps(regatta_ps::Error),
    Checkpoint(regatta_checkpoint::Error),
    Collective(regatta_collective::Error)
);
