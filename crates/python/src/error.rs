//! Errors become exceptions of the kind that a Python user expects.

use std::error::Error as StdError;

use pyo3::exceptions::{PyFileNotFoundError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

/// An error of the crates below as an exception: `ValueError` for what the user wrote,
/// `FileNotFoundError`, `OSError` and `MemoryError` for the machine, `regatta.PeerLost` for other
/// processes, `regatta.RegattaError` for the rest.
pub(crate) fn raise(error: impl StdError + 'static) -> PyErr {
    let message = error.to_string();
    match kind(&error) {
        Kind::Value => PyValueError::new_err(message),
        Kind::NotFound => PyFileNotFoundError::new_err(message),
        Kind::Os => PyOSError::new_err(message),
        Kind::Memory => PyMemoryError::new_err(message),
        Kind::Peer => own("PeerLost", message),
        Kind::Other => own("RegattaError", message),
    }
}

/// An exception of `regatta.errors`.
pub(crate) fn own(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let class = py.import("regatta.errors").and_then(|m| m.getattr(name));
        match class.and_then(|class| class.call1((message.clone(),))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(_) => pyo3::exceptions::PyRuntimeError::new_err(message),
        }
    })
}

/// A wrong argument.
pub(crate) fn wrong(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Value,
    NotFound,
    Os,
    Memory,
    Peer,
    Other,
}

/// The kind of the innermost error that has one.
fn kind(error: &(dyn StdError + 'static)) -> Kind {
    let found = one_kind(error);
    match (found, below(error)) {
        (Kind::Other, Some(below)) => kind(below),
        _ => found,
    }
}

/// What an error is about. Transparent errors have no source of their own.
fn below<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e (dyn StdError + 'static)> {
    if let Some(e) = error.downcast_ref::<regatta_fleet::Error>() {
        return match e {
            regatta_fleet::Error::Train(e) => Some(&**e),
            regatta_fleet::Error::Place(e) => Some(e),
            _ => None,
        };
    }
    if let Some(e) = error.downcast_ref::<regatta_train::Error>() {
        use regatta_train::Error as E;
        return match e {
            E::Program(e) => Some(&**e),
            E::Data(e) => Some(&**e),
            E::InBatch { error, .. } => Some(&**error),
            E::Exec(e) => Some(&**e),
            E::Ps(e) => Some(&**e),
            E::Collective(e) => Some(&**e),
            E::Checkpoint(e) => Some(&**e),
            E::Front(e) => Some(&**e),
            _ => None,
        };
    }
    error.source()
}

fn one_kind(error: &(dyn StdError + 'static)) -> Kind {
    if let Some(e) = error.downcast_ref::<std::io::Error>() {
        return io_kind(e);
    }
    if error.is::<regatta_ir::Error>() || error.is::<regatta_cluster::Error>() {
        return Kind::Value;
    }
    if let Some(e) = error.downcast_ref::<regatta_exec::Error>() {
        return exec_kind(e);
    }
    if let Some(e) = error.downcast_ref::<regatta_fleet::Error>() {
        return match e {
            regatta_fleet::Error::Config(_) | regatta_fleet::Error::Place(_) => Kind::Value,
            _ => Kind::Other,
        };
    }
    if let Some(e) = error.downcast_ref::<regatta_train::Error>() {
        use regatta_train::Error as E;
        return match e {
            E::Config(_) | E::Resume(_) => Kind::Value,
            E::Lost(_) | E::Exchange(_) => Kind::Peer,
            E::Write { source, .. } => io_kind(source),
            _ => Kind::Other,
        };
    }
    if let Some(e) = error.downcast_ref::<regatta_data::Error>() {
        return data_kind(e);
    }
    if let Some(e) = error.downcast_ref::<regatta_ps::Error>() {
        use regatta_ps::Error as E;
        return match e {
            E::Usage(_) => Kind::Value,
            E::Dropped { .. } | E::Peer(_) | E::Malformed { .. } | E::Net(_) => Kind::Peer,
            _ => Kind::Other,
        };
    }
    if let Some(e) = error.downcast_ref::<regatta_collective::Error>() {
        return match e {
            regatta_collective::Error::Config(_) => Kind::Value,
            _ => Kind::Peer,
        };
    }
    checkpoint_kind(error)
}

fn io_kind(error: &std::io::Error) -> Kind {
    match error.kind() {
        std::io::ErrorKind::NotFound => Kind::NotFound,
        std::io::ErrorKind::OutOfMemory => Kind::Memory,
        _ => Kind::Os,
    }
}

fn exec_kind(error: &regatta_exec::Error) -> Kind {
    use regatta_exec::Error as E;
    match error {
        E::Memory(_) | E::Refused { .. } => Kind::Memory,
        E::NotInitialised { .. } | E::NotFinite { .. } => Kind::Other,
        _ => Kind::Value,
    }
}

fn data_kind(error: &regatta_data::Error) -> Kind {
    use regatta_data::Error as E;
    match error {
        E::Config(_) | E::Malformed(_) | E::TooManyBadLines { .. } => Kind::Value,
        E::NoFiles(_) | E::MissingDirectory(_) => Kind::NotFound,
        E::NotAFile { .. } => Kind::Os,
        _ => Kind::Other,
    }
}

fn checkpoint_kind(error: &(dyn StdError + 'static)) -> Kind {
    match error.downcast_ref::<regatta_checkpoint::Error>() {
        Some(regatta_checkpoint::Error::Io { source, .. }) => io_kind(source),
        Some(_) => Kind::Value,
        None => Kind::Other,
    }
}
