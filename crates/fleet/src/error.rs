//! What can go wrong in training.

/// A failed training run.
///
/// Its [`Debug`](std::fmt::Debug) form is the message, which is what a program shows whose `main`
/// returns it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The place of this process in its job is not clear.
    #[error(transparent)]
    Place(#[from] regatta_cluster::Error),
    /// A call that comes too early or too late.
    #[error("{call}: {reason}")]
    Order {
        /// The call.
        call: &'static str,
        /// What to do first, or why it is too late.
        reason: String,
    },
    /// The loop failed, or something below it: program, data, step, exchange, file.
    #[error(transparent)]
    Train(Box<regatta_train::Error>),
    /// A setting that cannot be used.
    #[error("{0}")]
    Config(String),
    /// A mistake in this code.
    #[error("internal error: {0}; please report it")]
    Internal(String),
}

regatta_train::front_error!(Error);

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
