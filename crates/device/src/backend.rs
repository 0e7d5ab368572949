//! What OpenCL and CUDA have to give. [`Device`](crate::Device) checks, counts and waits for both.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// The two queues of a device. Each runs what was put on it in order; events order them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Launches of a step, and what must lie between them.
    Compute,
    /// Rows and batches that travel while a step computes.
    Transfer,
}

/// Something of a driver: its handle, and what releases it when nobody holds it any more.
pub(crate) struct Held {
    /// A pointer or a number, as the driver has it.
    pub(crate) raw: u64,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Held {
    pub(crate) fn new(raw: u64, keep: impl Any + Send + Sync) -> Held {
        Held { raw, _keep: Box::new(keep) }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:#x})", self.raw)
    }
}

/// Host memory that a device reads and writes fast.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) start: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(crate) _held: Held,
}

/// A built text: its kernels by name are asked of the backend.
pub(crate) type Code = Held;

/// A place in the memory of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) raw: u64,
    pub(crate) offset: u64,
}

/// An argument as the driver takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RawArg {
    Buffer(u64),
    Four([u8; 4]),
    Eight([u8; 8]),
}

/// Why a text could not be built.
pub(crate) struct Unbuilt {
    pub(crate) reason: String,
    pub(crate) log: String,
}

/// A driver's reason.
pub(crate) type Told<T> = Result<T, String>;

/// One open device of a driver. Callers have checked ranges, owners and kinds of arguments; the
/// transfers return before they are done, and whoever calls keeps the host memory until then.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    fn prelude(&self) -> &'static str;
    fn build(&self, source: &str) -> Result<Code, Unbuilt>;
    fn kernel(&self, code: &Code, name: &str) -> Told<Held>;
    /// Nobody else launches this kernel now.
    fn launch(
        &self,
        queue: Queue,
        kernel: u64,
        groups: [u32; 3],
        local: [u32; 3],
        args: &[RawArg],
    ) -> Told<()>;

    fn alloc(&self, bytes: u64) -> Told<Held>;
    fn slice(&self, parent: u64, offset: u64, bytes: u64) -> Told<Held>;
    fn pinned(&self, bytes: usize) -> Told<Pinned>;
    fn upload(&self, queue: Queue, from: NonNull<u8>, to: At, bytes: u64) -> Told<()>;
    fn download(&self, queue: Queue, from: At, to: NonNull<u8>, bytes: u64) -> Told<()>;
    fn copy(&self, queue: Queue, from: At, to: At, bytes: u64) -> Told<()>;
    /// Fills words of four bytes.
    fn fill(&self, queue: Queue, to: At, word: u32, bytes: u64) -> Told<()>;

    /// An event that happens when everything put on `queue` so far is done.
    fn mark(&self, queue: Queue) -> Told<Held>;
    /// What is put on `queue` from now on waits for `event`.
    fn after(&self, queue: Queue, event: u64) -> Told<()>;
    fn is_done(&self, event: u64) -> Told<bool>;
}
