//! Host memory that travels: pinned where the driver can, and never touched while it is under way.
#![expect(unsafe_code, reason = "slices over memory that a driver gave")]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{Held, Pinned, Queue};
use crate::{Buffer, Device, Error, Event};

/// Bytes of one piece of memory through which [`Device::write`] and [`Device::read`] go.
const PIECE: usize = 1 << 20;

/// Pieces under way at a time; the next write waits for the oldest.
const PIECES: usize = 16;

/// Pinned memory with the events of its transfers.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: ManuallyDrop<Pinned>,
    pending: [Option<Arc<Held>>; 2],
    /// A transfer may be under way that no event tells the end of.
    lost: bool,
}

// SAFETY: the memory belongs to this value alone; drivers give it to any thread.
unsafe impl Send for Staging {}

impl Staging {
    fn new(device: &Device, bytes: usize) -> Result<Staging, Error> {
        let memory = device.inner.backend.pinned(bytes.max(1));
        let memory =
            memory.map_err(|e| device.failed(format!("{bytes} bytes of host memory"), e))?;
        Ok(Staging { memory: ManuallyDrop::new(memory), pending: [None, None], lost: false })
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.bytes
    }

    /// Where a part of it begins; `None` if it is not within.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let fits = offset.checked_add(bytes)? <= self.len();
        // SAFETY: the part lies within the memory.
        fits.then(|| unsafe { self.memory.start.add(offset) })
    }

    /// A queue works in order: its last event says everything.
    pub(crate) fn set_pending(
        &mut self,
        queue: Queue,
        event: Result<Event, Error>,
    ) -> Result<(), Error> {
        self.lost |= event.is_err();
        self.pending[queue as usize] = Some(event?.inner);
        Ok(())
    }

    fn settle(&mut self, device: &Device, what: &str) -> Result<(), Error> {
        if self.lost {
            return Err(device.failed(what, "the driver gave no event for it".into()));
        }
        for pending in &mut self.pending {
            if let Some(event) = pending {
                device.wait_for(event, what)?;
                *pending = None;
            }
        }
        Ok(())
    }

    fn is_settled(&self, device: &Device) -> bool {
        let done = |event: &Arc<Held>| device.inner.backend.is_done(event.raw) == Ok(true);
        !self.lost && self.pending.iter().flatten().all(done)
    }

    /// The bytes, when no transfer is under way.
    fn bytes(&mut self, device: &Device, what: &str) -> Result<&mut [u8], Error> {
        self.settle(device, what)?;
        // SAFETY: the memory is of this length, belongs to this value alone, and no transfer
        // reads or writes it now; it was initialized by `pinned`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.len()) })
    }
}

impl Drop for Staging {
    /// Memory that the device may still use is lost rather than given back.
    fn drop(&mut self) {
        if !self.lost && self.pending.iter().all(Option::is_none) {
            // SAFETY: nobody uses the memory after its owner, and no transfer is under way.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Pieces that are used again and again.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pieces: Mutex<Vec<Staging>>,
}

impl Pool {
    /// A piece that nothing is under way in.
    fn take(&self, device: &Device) -> Result<Staging, Error> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let idx = pieces.iter().position(|piece| piece.is_settled(device));
        let oldest = (pieces.len() >= PIECES).then_some(0);
        match idx.or(oldest).map(|idx| pieces.remove(idx)) {
            Some(piece) => Ok(piece),
            None => Staging::new(device, PIECE),
        }
    }

    fn put(&self, piece: Staging) {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
    }

    /// Waits for what is under way, so that the memory can be given back.
    pub(crate) fn settle(&self, is_done: impl Fn(u64) -> bool) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        for pending in pieces.iter_mut().flat_map(|piece| &mut piece.pending) {
            if pending.as_ref().is_some_and(|event| is_done(event.raw)) {
                *pending = None;
            }
        }
    }
}

/// Host memory for transfers that go on while the host does something else. Whoever looks at the
/// bytes waits for the transfers first, so that nobody sees half of one.
#[derive(Debug)]
pub struct Host {
    staging: Option<Staging>,
    device: Device,
}

impl Host {
    fn staging(&mut self) -> &mut Staging {
        self.staging.as_mut().expect("only Drop takes it")
    }

    /// The bytes, when transfers from and to them are done.
    ///
    /// # Errors
    /// As [`Device::finish`].
    pub fn bytes(&mut self) -> Result<&mut [u8], Error> {
        let device = self.device.clone();
        self.staging().bytes(&device, "a transfer of host memory")
    }

    /// The bytes as numbers: `f32`, `u32`, `u64`; what is left over at the end is left out.
    ///
    /// # Errors
    /// As [`Device::finish`].
    pub fn values<T: bytemuck::Pod>(&mut self) -> Result<&mut [T], Error> {
        let bytes = self.bytes()?;
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        Ok(bytemuck::cast_slice_mut(&mut bytes[..whole]))
    }

    /// Its size.
    pub fn len(&self) -> usize {
        self.staging.as_ref().map_or(0, Staging::len)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut staging) = self.staging.take() {
            // Without an answer the memory is lost, which `Staging` does.
            let _ = staging.settle(&self.device, "a transfer of host memory");
        }
    }
}

impl Device {
    /// Host memory for [`Device::upload`] and [`Device::download`].
    ///
    /// # Errors
    /// If the driver has none.
    pub fn host(&self, bytes: usize) -> Result<Host, Error> {
        let staging = Some(Staging::new(self, bytes)?);
        Ok(Host { staging, device: self.clone() })
    }

    /// Puts a transfer from host memory to the device on a queue and returns.
    ///
    /// # Errors
    /// If a range does not fit, or the driver refuses.
    pub fn upload(
        &self,
        queue: Queue,
        (from, host_offset): (&mut Host, usize),
        to: (&Buffer, u64),
        bytes: usize,
    ) -> Result<(), Error> {
        self.start_upload(queue, from.staging(), host_offset, to, bytes)
    }

    /// Puts a transfer from the device to host memory on a queue and returns; whoever looks at the
    /// bytes of `to` waits for it.
    ///
    /// # Errors
    /// If a range does not fit, or the driver refuses.
    pub fn download(
        &self,
        queue: Queue,
        from: (&Buffer, u64),
        (to, host_offset): (&mut Host, usize),
        bytes: usize,
    ) -> Result<(), Error> {
        self.start_download(queue, from, to.staging(), host_offset, bytes)
    }

    /// Writes bytes at `offset` of a buffer. They are copied: when this returns the slice may
    /// change, though the device may still be busy with what came before.
    ///
    /// # Errors
    /// If they do not fit, or the driver refuses.
    pub fn write(&self, queue: Queue, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        for (idx, part) in bytes.chunks(PIECE).enumerate() {
            let mut piece = self.inner.pool.take(self)?;
            piece.bytes(self, "an earlier upload")?[..part.len()].copy_from_slice(part);
            let at = offset + (idx * PIECE) as u64;
            self.start_upload(queue, &mut piece, 0, (to, at), part.len())?;
            self.inner.pool.put(piece);
        }
        Ok(())
    }

    /// Reads bytes from `offset` of a buffer, when what was put on `queue` before is done.
    ///
    /// # Errors
    /// If they are not in the buffer, or as [`Device::finish`].
    pub fn read(
        &self,
        queue: Queue,
        from: &Buffer,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Error> {
        for (idx, part) in out.chunks_mut(PIECE).enumerate() {
            let mut piece = self.inner.pool.take(self)?;
            let at = offset + (idx * PIECE) as u64;
            self.start_download(queue, (from, at), &mut piece, 0, part.len())?;
            let what = format!("a download of {} bytes and what comes before it", part.len());
            part.copy_from_slice(&piece.bytes(self, &what)?[..part.len()]);
            self.inner.pool.put(piece);
        }
        Ok(())
    }

    /// Writes numbers at an offset in bytes: [`Device::write`] of `f32`, `u32`, `u64`.
    ///
    /// # Errors
    /// As [`Device::write`].
    pub fn write_values<T: bytemuck::Pod>(
        &self,
        queue: Queue,
        to: &Buffer,
        offset: u64,
        values: &[T],
    ) -> Result<(), Error> {
        self.write(queue, to, offset, bytemuck::cast_slice(values))
    }

    /// A buffer with these numbers.
    ///
    /// # Errors
    /// As [`Device::alloc`] and [`Device::write`].
    pub fn buffer_of<T: bytemuck::Pod>(&self, values: &[T]) -> Result<Buffer, Error> {
        let buffer = self.alloc(size_of_val(values) as u64)?;
        self.write_values(Queue::Compute, &buffer, 0, values)?;
        Ok(buffer)
    }

    /// `n` floats from an offset in bytes.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub fn read_floats(
        &self,
        queue: Queue,
        from: &Buffer,
        offset: u64,
        n: usize,
    ) -> Result<Vec<f32>, Error> {
        let mut out = vec![0.0_f32; n];
        self.read(queue, from, offset, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }
}
