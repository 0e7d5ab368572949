//! An open device: memory, kernels, launches, events. What both backends need is here once.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{At, Backend, Code, Held, Queue, RawArg, Unbuilt};
use crate::host::{Pool, Staging};
use crate::text::{Param, Signature, Text, texts};
use crate::{Counters, DeviceInfo, Error};

/// How long a wait takes at most, unless [`Device::set_limit`] says otherwise.
const LIMIT: Duration = Duration::from_secs(120);

/// An open device. Clones are the same device; threads may share it.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) info: DeviceInfo,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) counters: Counters,
    pub(crate) pool: Pool,
    limit_millis: AtomicU64,
    built: Mutex<HashMap<String, Kernel>>,
}

/// Memory of a device, or a part of some. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct Buffer {
    inner: Arc<BufferInner>,
}

#[derive(Debug)]
struct BufferInner {
    /// First: released before the parent.
    held: Held,
    bytes: u64,
    owner: usize,
    _parent: Option<Buffer>,
}

/// A kernel that is built for a device. Clones are the same.
#[derive(Debug, Clone)]
pub struct Kernel {
    inner: Arc<KernelInner>,
}

#[derive(Debug)]
struct KernelInner {
    /// A driver keeps the arguments of a launch in the kernel.
    held: Mutex<Held>,
    signature: Signature,
    owner: usize,
    _code: Arc<Code>,
}

/// A moment of a queue: everything that was put on it before is done.
#[derive(Debug, Clone)]
pub struct Event {
    pub(crate) inner: Arc<Held>,
    device: Device,
}

/// How many work items run a kernel: groups of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Groups along x, y and z.
    pub groups: [u32; 3],
    /// Work items of a group along x, y and z.
    pub local: [u32; 3],
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// Memory.
    Buffer(&'a Buffer),
    /// `uint`.
    U32(u32),
    /// `int`.
    I32(i32),
    /// `ulong`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl Grid {
    /// Groups of `local` work items along x that cover `n` of them; at least one group.
    pub fn over(n: u64, local: u32) -> Grid {
        let groups = n.div_ceil(u64::from(local)).clamp(1, u64::from(u32::MAX));
        Grid { groups: [groups as u32, 1, 1], local: [local, 1, 1] }
    }

    /// Groups of `local` along x and y that cover `n` of them.
    pub fn over_2d(n: [u64; 2], local: [u32; 2]) -> Grid {
        let [x, y] = [Grid::over(n[0], local[0]), Grid::over(n[1], local[1])];
        Grid { groups: [x.groups[0], y.groups[0], 1], local: [local[0], local[1], 1] }
    }
}

impl Arg<'_> {
    fn param(&self) -> Param {
        match self {
            Arg::Buffer(_) => Param::Buffer,
            Arg::U32(_) => Param::U32,
            Arg::I32(_) => Param::I32,
            Arg::U64(_) => Param::U64,
            Arg::F32(_) => Param::F32,
        }
    }

    fn raw(&self) -> RawArg {
        match self {
            Arg::Buffer(buffer) => RawArg::Buffer(buffer.inner.held.raw),
            Arg::U32(x) => RawArg::Four(x.to_ne_bytes()),
            Arg::I32(x) => RawArg::Four(x.to_ne_bytes()),
            Arg::F32(x) => RawArg::Four(x.to_ne_bytes()),
            Arg::U64(x) => RawArg::Eight(x.to_ne_bytes()),
        }
    }
}

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    pub(crate) fn at(&self, offset: u64) -> At {
        At { raw: self.inner.held.raw, offset }
    }
}

impl Kernel {
    /// Its name and parameters.
    pub fn signature(&self) -> &Signature {
        &self.inner.signature
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.inner.info)
    }
}

impl Drop for Inner {
    /// Transfers that are still under way are waited for a moment; see [`Pool::settle`].
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        let backend = &self.backend;
        self.pool.settle(|event| {
            loop {
                match backend.is_done(event) {
                    Ok(false) if Instant::now() < end => {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    done => return done == Ok(true),
                }
            }
        });
    }
}

impl Device {
    pub(crate) fn new(info: DeviceInfo, backend: Box<dyn Backend>) -> Device {
        let inner = Inner {
            info,
            backend,
            counters: Counters::default(),
            pool: Pool::default(),
            limit_millis: AtomicU64::new(LIMIT.as_millis() as u64),
            built: Mutex::default(),
        };
        Device { inner: Arc::new(inner) }
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// What it was asked for.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// How long every wait for this device takes at most.
    pub fn set_limit(&self, limit: Duration) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.inner.limit_millis.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, what: impl Into<String>, reason: String) -> Error {
        Error::Call { device: self.inner.info.to_string(), what: what.into(), reason }
    }

    /// Identifies the device that buffers and kernels belong to.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.inner) as usize
    }

    /// Memory of `bytes` bytes with any content.
    ///
    /// # Errors
    /// If the device has no room, or its buffers are smaller.
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, Error> {
        let info = &self.inner.info;
        if bytes > info.max_buffer {
            let reason = format!("a buffer has at most {} bytes here", info.max_buffer);
            return Err(self.failed(format!("a buffer of {bytes} bytes"), reason));
        }
        // Drivers refuse buffers without a byte; an empty variable is none of their business.
        let held = self.inner.backend.alloc(bytes.max(4));
        let held = held.map_err(|e| self.failed(format!("a buffer of {bytes} bytes"), e))?;
        Ok(self.buffer(held, bytes, None))
    }

    /// A part of a buffer as a buffer; `offset` is a multiple of [`DeviceInfo::align`].
    ///
    /// # Errors
    /// If the part does not lie in `parent`, or `offset` is no such multiple.
    pub fn slice(&self, parent: &Buffer, offset: u64, bytes: u64) -> Result<Buffer, Error> {
        self.check(parent, offset, bytes, "a part of it")?;
        let align = self.inner.info.align;
        let what = || format!("a part of a buffer at {offset} of {bytes} bytes");
        if !offset.is_multiple_of(align) {
            return Err(self.failed(what(), format!("parts begin at multiples of {align} bytes")));
        }
        if bytes == 0 || (offset == 0 && bytes == parent.bytes()) {
            let inner = BufferInner {
                held: Held::new(parent.inner.held.raw, ()),
                bytes,
                owner: self.id(),
                _parent: Some(parent.clone()),
            };
            return Ok(Buffer { inner: Arc::new(inner) });
        }
        let held = self.inner.backend.slice(parent.inner.held.raw, offset, bytes);
        let held = held.map_err(|e| self.failed(what(), e))?;
        Ok(self.buffer(held, bytes, Some(parent.clone())))
    }

    fn buffer(&self, held: Held, bytes: u64, parent: Option<Buffer>) -> Buffer {
        let inner = BufferInner { held, bytes, owner: self.id(), _parent: parent };
        Buffer { inner: Arc::new(inner) }
    }

    /// A kernel of [`texts`] by its name; its text is built when it is first asked for.
    ///
    /// # Errors
    /// If no text has it, or the text cannot be built: the error carries the compiler's messages.
    pub fn kernel(&self, name: &str) -> Result<Kernel, Error> {
        if let Some(kernel) = self.lock_built().get(name) {
            return Ok(kernel.clone());
        }
        for text in texts() {
            if text.signatures()?.iter().any(|signature| signature.name == name) {
                self.build(text)?;
            }
        }
        let built = self.lock_built();
        built.get(name).cloned().ok_or_else(|| Error::NoKernel {
            device: self.inner.info.to_string(),
            kernel: name.to_string(),
        })
    }

    /// Builds a text; from then on [`Device::kernel`] knows its kernels. Drivers keep what they
    /// compiled in files of their own, so that the next process is quick.
    ///
    /// # Errors
    /// If it does not compile.
    pub fn build(&self, text: &Text) -> Result<(), Error> {
        let signatures = text.signatures()?;
        let prelude = self.inner.backend.prelude();
        let code = self.inner.backend.build(&format!("{prelude}{}", text.source));
        let code = Arc::new(code.map_err(|e| self.unbuilt(text, e))?);
        for signature in signatures {
            let held = self.inner.backend.kernel(&code, &signature.name);
            let held = held.map_err(|e| self.failed(format!("kernel '{}'", signature.name), e))?;
            let name = signature.name.clone();
            let kernel = KernelInner {
                held: Mutex::new(held),
                signature,
                owner: self.id(),
                _code: code.clone(),
            };
            self.lock_built().insert(name, Kernel { inner: Arc::new(kernel) });
        }
        Ok(())
    }

    fn lock_built(&self) -> std::sync::MutexGuard<'_, HashMap<String, Kernel>> {
        self.inner.built.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unbuilt(&self, text: &Text, Unbuilt { reason, log }: Unbuilt) -> Error {
        let (device, text) = (self.inner.info.to_string(), text.name.to_string());
        Error::Build { device, text, reason, log }
    }

    /// Puts a launch on a queue and returns before it is done.
    ///
    /// # Errors
    /// If the arguments are not what the kernel takes, or the driver refuses.
    pub fn launch(
        &self,
        queue: Queue,
        kernel: &Kernel,
        grid: Grid,
        args: &[Arg<'_>],
    ) -> Result<(), Error> {
        self.check_launch(kernel, grid, args)?;
        let raw: Vec<RawArg> = args.iter().map(Arg::raw).collect();
        let held = kernel.inner.held.lock().unwrap_or_else(PoisonError::into_inner);
        let launched = self.inner.backend.launch(queue, held.raw, grid.groups, grid.local, &raw);
        launched
            .map_err(|e| self.failed(format!("kernel '{}'", kernel.inner.signature.name), e))?;
        self.inner.counters.launch();
        Ok(())
    }

    fn check_launch(&self, kernel: &Kernel, grid: Grid, args: &[Arg<'_>]) -> Result<(), Error> {
        let signature = &kernel.inner.signature;
        let wrong = |wrong: String| Error::Launch {
            device: self.inner.info.to_string(),
            kernel: signature.name.clone(),
            wrong,
        };
        if kernel.inner.owner != self.id() {
            return Err(wrong("was built for another device".into()));
        }
        if args.len() != signature.params.len() {
            let expected = signature.params.len();
            return Err(wrong(format!("takes {expected} arguments, not {}", args.len())));
        }
        for (i, (arg, &expected)) in args.iter().zip(&signature.params).enumerate() {
            if arg.param() != expected {
                let given = arg.param();
                return Err(wrong(format!("takes {expected:?} as argument {i}, not {given:?}")));
            }
            if matches!(arg, Arg::Buffer(buffer) if buffer.inner.owner != self.id()) {
                return Err(wrong(format!("got a buffer of another device as argument {i}")));
            }
        }
        let [x, y, z] = grid.local;
        match signature.local {
            Some(local) if grid.local != [local[0], local[1], 1] => {
                Err(wrong(format!("runs in groups of {local:?}, not {:?}", grid.local)))
            }
            _ if (x * y * z) as usize > self.inner.info.max_group => {
                let most = self.inner.info.max_group;
                Err(wrong(format!("cannot run in groups of {}: at most {most}", x * y * z)))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check(
        &self,
        buffer: &Buffer,
        start: u64,
        bytes: u64,
        what: &str,
    ) -> Result<(), Error> {
        if buffer.inner.owner != self.id() {
            return Err(self.failed(what, "the buffer belongs to another device".into()));
        }
        let end = start.saturating_add(bytes);
        if end > buffer.bytes() {
            return Err(Error::Range {
                device: self.inner.info.to_string(),
                what: what.into(),
                start,
                end,
                bytes: buffer.bytes(),
            });
        }
        Ok(())
    }

    /// Copies within the device; the ranges must not overlap.
    ///
    /// # Errors
    /// If a range does not lie in its buffer, or the driver refuses.
    pub fn copy(
        &self,
        queue: Queue,
        (from, from_offset): (&Buffer, u64),
        (to, to_offset): (&Buffer, u64),
        bytes: u64,
    ) -> Result<(), Error> {
        self.check(from, from_offset, bytes, "the source of a copy")?;
        self.check(to, to_offset, bytes, "the target of a copy")?;
        if bytes == 0 {
            return Ok(());
        }
        let copied = self.inner.backend.copy(queue, from.at(from_offset), to.at(to_offset), bytes);
        copied.map_err(|e| self.failed(format!("a copy of {bytes} bytes"), e))?;
        self.inner.counters.copy();
        Ok(())
    }

    /// Writes the same four bytes to all of a buffer; 0 makes zeros of any type.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn fill(&self, queue: Queue, buffer: &Buffer, word: u32) -> Result<(), Error> {
        let bytes = buffer.bytes() / 4 * 4;
        self.check(buffer, 0, bytes, "a fill")?;
        if bytes == 0 {
            return Ok(());
        }
        let filled = self.inner.backend.fill(queue, buffer.at(0), word, bytes);
        filled.map_err(|e| self.failed(format!("a fill of {bytes} bytes"), e))?;
        self.inner.counters.copy();
        Ok(())
    }

    /// Puts an upload from host memory on a queue; the memory stays until it is done.
    pub(crate) fn start_upload(
        &self,
        queue: Queue,
        from: &mut Staging,
        host_offset: usize,
        (to, offset): (&Buffer, u64),
        bytes: usize,
    ) -> Result<(), Error> {
        self.check(to, offset, bytes as u64, "an upload")?;
        let start = from.part(host_offset, bytes).ok_or_else(|| self.outside(from, bytes))?;
        if bytes == 0 {
            return Ok(());
        }
        let sent = self.inner.backend.upload(queue, start, to.at(offset), bytes as u64);
        sent.map_err(|e| self.failed(format!("an upload of {bytes} bytes"), e))?;
        from.set_pending(queue, self.mark(queue))?;
        self.inner.counters.upload(bytes as u64);
        Ok(())
    }

    /// Puts a download into host memory on a queue.
    pub(crate) fn start_download(
        &self,
        queue: Queue,
        (from, offset): (&Buffer, u64),
        to: &mut Staging,
        host_offset: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        self.check(from, offset, bytes as u64, "a download")?;
        let start = to.part(host_offset, bytes).ok_or_else(|| self.outside(to, bytes))?;
        if bytes == 0 {
            return Ok(());
        }
        let sent = self.inner.backend.download(queue, from.at(offset), start, bytes as u64);
        sent.map_err(|e| self.failed(format!("a download of {bytes} bytes"), e))?;
        to.set_pending(queue, self.mark(queue))?;
        self.inner.counters.download(bytes as u64);
        Ok(())
    }

    fn outside(&self, host: &Staging, bytes: usize) -> Error {
        let reason = format!("the host memory has {} bytes", host.len());
        self.failed(format!("a transfer of {bytes} bytes"), reason)
    }

    /// The moment at which everything put on `queue` so far is done.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn mark(&self, queue: Queue) -> Result<Event, Error> {
        let held = self.inner.backend.mark(queue);
        let held = held.map_err(|e| self.failed("an event", e))?;
        Ok(Event { inner: Arc::new(held), device: self.clone() })
    }

    /// What is put on `queue` from now on waits for `event`, on the device.
    ///
    /// # Errors
    /// If the event belongs to another device, or the driver refuses.
    pub fn after(&self, queue: Queue, event: &Event) -> Result<(), Error> {
        if event.device.id() != self.id() {
            let reason = format!("the event belongs to {}", event.device.info());
            return Err(self.failed("waiting for an event", reason));
        }
        let put = self.inner.backend.after(queue, event.inner.raw);
        put.map_err(|e| self.failed("waiting for an event", e))
    }

    /// Waits until everything put on `queue` so far is done; `what` says in an error what it was.
    ///
    /// # Errors
    /// [`Error::Timeout`] after the limit, or what the driver says about the work.
    pub fn finish(&self, queue: Queue, what: &str) -> Result<(), Error> {
        self.mark(queue)?.wait(what)
    }

    pub(crate) fn wait_for(&self, event: &Held, what: &str) -> Result<(), Error> {
        let limit = Duration::from_millis(self.inner.limit_millis.load(Ordering::Relaxed));
        let begin = Instant::now();
        let mut n_looks = 0_u32;
        loop {
            let done = self.inner.backend.is_done(event.raw);
            if done.map_err(|e| self.failed(what, e))? {
                return Ok(());
            }
            if begin.elapsed() >= limit {
                let device = self.inner.info.to_string();
                return Err(Error::Timeout { device, what: what.into(), limit });
            }
            // Short work is over within a few looks; software devices need the core themselves.
            n_looks += 1;
            match n_looks {
                0..50 => std::thread::yield_now(),
                50..200 => std::thread::sleep(Duration::from_micros(20)),
                _ => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }
}

impl Event {
    /// Whether it has happened.
    ///
    /// # Errors
    /// What the driver says about the work.
    pub fn is_done(&self) -> Result<bool, Error> {
        let done = self.device.inner.backend.is_done(self.inner.raw);
        done.map_err(|e| self.device.failed("an event", e))
    }

    /// Waits for it; `what` says in an error what was waited for.
    ///
    /// # Errors
    /// As [`Device::finish`].
    pub fn wait(&self, what: &str) -> Result<(), Error> {
        self.device.wait_for(&self.inner, what)
    }
}
