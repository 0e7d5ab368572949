//! What can go wrong when a program is run.

use crate::memory::gigabytes;

/// A program that cannot be run on what it was given.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program itself is wrong.
    #[error(transparent)]
    Program(#[from] regatta_ir::Error),
    /// A parameter or state has no value yet.
    #[error("{what} '{name}' is not initialised: run the startup program or load it first")]
    NotInitialised {
        /// `parameter` or `state`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A parameter has another shape or type than the program declares.
    #[error("'{name}' should be {expected}, but the value at hand is {actual}")]
    Persistable {
        /// Its name.
        name: String,
        /// As declared.
        expected: String,
        /// As found.
        actual: String,
    },
    /// A fed name that is not an input.
    #[error("feed '{name}' is not an input of this program{}", hint(.nearest, .inputs))]
    UnknownFeed {
        /// The name.
        name: String,
        /// The nearest input.
        nearest: Option<String>,
        /// All inputs.
        inputs: Vec<String>,
    },
    /// An input that was not fed.
    #[error("input '{name}' ({ty}) was not fed")]
    MissingFeed {
        /// Its name.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A fed value of the wrong type.
    #[error("feed '{name}' should be {expected}, but is {actual}")]
    FeedType {
        /// Its name.
        name: String,
        /// As declared.
        expected: String,
        /// As given.
        actual: String,
    },
    /// A negative id.
    #[error("id {id} of '{name}' is negative; ids count from 0")]
    NegativeId {
        /// The input.
        name: String,
        /// The id.
        id: i64,
    },
    /// Fed values with different numbers of examples.
    #[error("feed '{name}' has {rows} examples, but '{other}' has {other_rows}")]
    BatchSize {
        /// One input.
        name: String,
        /// Its examples.
        rows: usize,
        /// Another input.
        other: String,
        /// Its examples.
        other_rows: usize,
    },
    /// A variable that cannot be fetched.
    #[error("fetch '{name}': {reason}")]
    Fetch {
        /// The name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A kernel met a value it cannot work with.
    #[error("step {step}: op {op} making '{output}': {reason}")]
    Kernel {
        /// Step number.
        step: u64,
        /// Kind of the op.
        op: String,
        /// Its first output.
        output: String,
        /// What is wrong.
        reason: String,
    },
    /// `check_nan_inf` found one.
    #[error("step {step}: op {op} wrote {value} to '{var}' at element {at}")]
    NotFinite {
        /// Step number.
        step: u64,
        /// Kind of the op.
        op: String,
        /// The variable.
        var: String,
        /// Index of the element.
        at: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// The values of a program need more memory than there is.
    #[error("{0}")]
    Memory(Box<crate::MemoryShortage>),
    /// The system refused memory for a parameter or state.
    #[error("the system refuses {} of memory for '{name}' {shape:?}", gigabytes(*.bytes))]
    Refused {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<i64>,
        /// Its size.
        bytes: u64,
    },
    /// A fed value that the program cannot work with.
    #[error("feed '{name}': {reason}")]
    FeedValue {
        /// The input.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An op that devices do not run.
    #[error(
        "op {op} making '{output}' has no kernel for devices; these have one: {}",
        .kinds.join(", ")
    )]
    NoDeviceKernel {
        /// Kind of the op.
        op: String,
        /// Its first output.
        output: String,
        /// Kinds that devices run.
        kinds: Vec<&'static str>,
    },
    /// An op that devices do not run in this way.
    #[error("op {op} making '{output}' cannot run on a device: {reason}")]
    DeviceOp {
        /// Kind of the op.
        op: String,
        /// Its first output.
        output: String,
        /// Why not.
        reason: String,
    },
    /// The device itself.
    #[error(transparent)]
    Device(#[from] regatta_device::Error),
    /// An option that makes no sense.
    #[error("{0}")]
    Options(String),
}

fn hint(nearest: &Option<String>, inputs: &[String]) -> String {
    match nearest {
        Some(name) => format!("; did you mean '{name}'?"),
        None => format!(" (inputs: {})", inputs.join(", ")),
    }
}
