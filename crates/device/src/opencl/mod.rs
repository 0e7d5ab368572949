//! Devices through OpenCL, whose library is loaded when somebody asks for a device.
#![expect(unsafe_code, reason = "OpenCL is a C interface")]

mod list;

use std::ffi::{CStr, CString, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use opencl3::command_queue::{
    CommandQueue, enqueue_copy_buffer, enqueue_fill_buffer, enqueue_nd_range_kernel,
    enqueue_read_buffer, enqueue_write_buffer,
};
use opencl3::context::Context;
use opencl3::device::{CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, Device as ClDevice};
use opencl3::error_codes::{CL_MAP_FAILURE, ClError};
use opencl3::event::{CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, Event, get_event_info};
use opencl3::kernel::{Kernel, create_kernel, set_kernel_arg};
use opencl3::memory::{
    Buffer, CL_BUFFER_CREATE_TYPE_REGION, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR,
    CL_MEM_READ_WRITE, ClMem, create_sub_buffer,
};
use opencl3::program::{Program, build_program};
use opencl3::types::{cl_buffer_region, cl_device_id, cl_event, cl_kernel, cl_mem, cl_program};

use crate::DeviceInfo;
use crate::backend::{At, Backend, Code, Held, Pinned, Queue, RawArg, Told, Unbuilt};

pub(crate) use list::list;

pub(crate) fn open(info: &DeviceInfo) -> Told<Box<dyn Backend>> {
    let devices = list::all().map_err(|missing| missing.to_string())?;
    let found = devices.iter().find(|(other, _)| other.name == info.name);
    let (_, id) = found.ok_or_else(|| format!("{} is not there", info.name))?;
    OpenCl::new(ClDevice::new(*id as cl_device_id))
        .map(|opened| Box::new(opened) as Box<dyn Backend>)
        .map_err(told)
}

/// An open device: a context of its own and two queues that run in order.
#[derive(Debug)]
struct OpenCl {
    /// Before the context, which they hold themselves too.
    queues: [Arc<CommandQueue>; 2],
    context: Context,
    device: cl_device_id,
    options: &'static str,
}

// SAFETY: a device's id is a number of the driver, which any thread may use; so are the rest.
unsafe impl Send for OpenCl {}
// SAFETY: as above; calls that change a kernel are made one at a time, as `Backend` says.
unsafe impl Sync for OpenCl {}

fn told(e: ClError) -> String {
    e.to_string()
}

impl OpenCl {
    fn new(device: ClDevice) -> Result<OpenCl, ClError> {
        let context = Context::from_device(&device)?;
        let queue = || -> Result<Arc<CommandQueue>, ClError> {
            // SAFETY: the context was made for this device.
            Ok(Arc::new(unsafe { CommandQueue::create(&context, device.id(), 0) }?))
        };
        let queues = [queue()?, queue()?];
        // The CPU's own division and square root, where the device can.
        let rounded = device.single_fp_config()? & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0;
        let options = match rounded {
            true => "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt",
            false => "-cl-std=CL1.2",
        };
        Ok(OpenCl { queues, context, device: device.id(), options })
    }

    fn queue(&self, queue: Queue) -> &CommandQueue {
        &self.queues[queue as usize]
    }

    fn try_alloc(&self, flags: u64, bytes: usize) -> Result<Buffer<u8>, ClError> {
        // SAFETY: no host pointer is given.
        unsafe { Buffer::<u8>::create(&self.context, flags, bytes, null_mut()) }
    }

    fn try_pinned(&self, bytes: usize) -> Result<Pinned, ClError> {
        let buffer = self.try_alloc(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes)?;
        let queue = self.queues[Queue::Transfer as usize].clone();
        let mut start = null_mut();
        let flags = CL_MAP_READ | CL_MAP_WRITE;
        // SAFETY: the buffer has these bytes; the call blocks until they are mapped.
        unsafe { queue.enqueue_map_buffer(&buffer, 1, flags, 0, bytes, &mut start, &[]) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(ClError(CL_MAP_FAILURE))?;
        // SAFETY: the memory is of this size, and nobody else has it.
        unsafe { start.write_bytes(0, bytes) };
        let mapped = Mapped { start: start.as_ptr() as usize, queue, buffer };
        Ok(Pinned { start, bytes, _held: Held::new(0, mapped) })
    }
}

/// A pinned buffer that is unmapped when it goes.
struct Mapped {
    start: usize,
    queue: Arc<CommandQueue>,
    buffer: Buffer<u8>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let start = self.start as *mut c_void;
        // SAFETY: it was mapped there, once; no transfer uses it any more.
        let unmapped =
            unsafe { self.queue.enqueue_unmap_mem_object(self.buffer.get(), start, &[]) };
        // A driver that refuses keeps its memory; there is nobody to tell.
        drop(unmapped);
    }
}

fn code(e: i32) -> String {
    ClError(e).to_string()
}

fn mem(raw: u64) -> cl_mem {
    raw as cl_mem
}

impl Backend for OpenCl {
    fn prelude(&self) -> &'static str {
        include_str!("../../kernels/prelude_opencl.cl")
    }

    fn build(&self, source: &str) -> Result<Code, Unbuilt> {
        let unbuilt = |reason: String, log: String| Unbuilt { reason, log };
        let program = Program::create_from_source(&self.context, source)
            .map_err(|e| unbuilt(told(e), String::new()))?;
        let options = CString::new(self.options).expect("options have no zero byte");
        build_program(program.get(), &[self.device], &options, None, null_mut()).map_err(|e| {
            unbuilt(code(e), program.get_build_log(self.device).unwrap_or_default())
        })?;
        Ok(Held::new(program.get() as u64, program))
    }

    fn kernel(&self, built: &Code, name: &str) -> Told<Held> {
        let name = CString::new(name).map_err(|e| e.to_string())?;
        let kernel = kernel_of(built.raw as cl_program, &name)?;
        Ok(Held::new(kernel.get() as u64, OneAtATime(kernel)))
    }

    fn launch(
        &self,
        queue: Queue,
        kernel: u64,
        groups: [u32; 3],
        local: [u32; 3],
        args: &[RawArg],
    ) -> Told<()> {
        let kernel = kernel as cl_kernel;
        for (idx, arg) in (0_u32..).zip(args) {
            let handle;
            let (size, value): (usize, *const c_void) = match arg {
                RawArg::Buffer(raw) => {
                    handle = mem(*raw);
                    (size_of::<cl_mem>(), (&raw const handle).cast())
                }
                RawArg::Four(bytes) => (4, bytes.as_ptr().cast()),
                RawArg::Eight(bytes) => (8, bytes.as_ptr().cast()),
            };
            // SAFETY: `value` points to `size` bytes; the caller compared them with the kernel's
            // parameters, and holds the kernel alone.
            unsafe { set_kernel_arg(kernel, idx, size, value) }.map_err(code)?;
        }
        let local = local.map(|n| n as usize);
        let global = [0, 1, 2].map(|d| groups[d] as usize * local[d]);
        let queue = self.queue(queue).get();
        // SAFETY: all arguments are set, sizes are of three dimensions, no event is waited for.
        let event = unsafe {
            enqueue_nd_range_kernel(
                queue,
                kernel,
                3,
                null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                null(),
            )
        };
        event.map(released).map_err(code)
    }

    fn alloc(&self, bytes: u64) -> Told<Held> {
        let buffer = self.try_alloc(CL_MEM_READ_WRITE, bytes as usize).map_err(told)?;
        Ok(Held::new(buffer.get() as u64, buffer))
    }

    fn slice(&self, parent: u64, offset: u64, bytes: u64) -> Told<Held> {
        let region = cl_buffer_region { origin: offset as usize, size: bytes as usize };
        let region = (&raw const region).cast();
        let kind = CL_BUFFER_CREATE_TYPE_REGION;
        // SAFETY: the region lies in the parent, and is read before the call returns.
        let part = unsafe { create_sub_buffer(mem(parent), CL_MEM_READ_WRITE, kind, region) };
        let part = Buffer::<u8>::new(part.map_err(code)?);
        Ok(Held::new(part.get() as u64, part))
    }

    fn pinned(&self, bytes: usize) -> Told<Pinned> {
        self.try_pinned(bytes).map_err(told)
    }

    fn upload(&self, queue: Queue, from: NonNull<u8>, to: At, bytes: u64) -> Told<()> {
        let (queue, offset, bytes) = (self.queue(queue).get(), to.offset as usize, bytes as usize);
        let from = from.as_ptr().cast();
        // SAFETY: ranges were checked, and the caller keeps `from` until the transfer is done.
        let event =
            unsafe { enqueue_write_buffer(queue, mem(to.raw), 0, offset, bytes, from, 0, null()) };
        event.map(released).map_err(code)
    }

    fn download(&self, queue: Queue, from: At, to: NonNull<u8>, bytes: u64) -> Told<()> {
        let (queue, offset, bytes) =
            (self.queue(queue).get(), from.offset as usize, bytes as usize);
        let to = to.as_ptr().cast();
        // SAFETY: ranges were checked, and the caller keeps `to` until the transfer is done.
        let event =
            unsafe { enqueue_read_buffer(queue, mem(from.raw), 0, offset, bytes, to, 0, null()) };
        event.map(released).map_err(code)
    }

    fn copy(&self, queue: Queue, from: At, to: At, bytes: u64) -> Told<()> {
        let queue = self.queue(queue).get();
        let [start, end] = [from.offset as usize, to.offset as usize];
        // SAFETY: ranges were checked; the driver refuses those that overlap.
        let event = unsafe {
            enqueue_copy_buffer(
                queue,
                mem(from.raw),
                mem(to.raw),
                start,
                end,
                bytes as usize,
                0,
                null(),
            )
        };
        event.map(released).map_err(code)
    }

    fn fill(&self, queue: Queue, to: At, word: u32, bytes: u64) -> Told<()> {
        let queue = self.queue(queue).get();
        let pattern = (&raw const word).cast();
        let (offset, bytes) = (to.offset as usize, bytes as usize);
        // SAFETY: the range was checked; the pattern is copied before the call returns.
        let event = unsafe {
            enqueue_fill_buffer(queue, mem(to.raw), pattern, 4, offset, bytes, 0, null())
        };
        event.map(released).map_err(code)
    }

    fn mark(&self, queue: Queue) -> Told<Held> {
        let queue = self.queue(queue);
        // SAFETY: no event is waited for but what is on the queue.
        let event = unsafe { queue.enqueue_marker_with_wait_list(&[]) }.map_err(told)?;
        // Whoever waits, on the host or another queue, relies on the work having been started.
        queue.flush().map_err(told)?;
        Ok(Held::new(event.get() as u64, event))
    }

    fn after(&self, queue: Queue, event: u64) -> Told<()> {
        // SAFETY: the caller holds the event.
        let barrier =
            unsafe { self.queue(queue).enqueue_barrier_with_wait_list(&[event as cl_event]) };
        barrier.map(drop).map_err(told)
    }

    fn is_done(&self, event: u64) -> Told<bool> {
        let status = get_event_info(event as cl_event, CL_EVENT_COMMAND_EXECUTION_STATUS);
        match status.map_err(code)?.to_int() {
            CL_COMPLETE => Ok(true),
            failed if failed < 0 => Err(code(failed)),
            _ => Ok(false),
        }
    }
}

/// Nobody waits for this event: the queue's order or a mark says enough.
fn released(event: cl_event) {
    drop(Event::new(event));
}

fn kernel_of(program: cl_program, name: &CStr) -> Told<Kernel> {
    create_kernel(program, name).map(Kernel::new).map_err(code)
}

/// A kernel that is only held here; launches have its handle, one at a time.
struct OneAtATime(#[expect(dead_code, reason = "held until it is dropped")] Kernel);

// SAFETY: nothing is called through a shared reference.
unsafe impl Sync for OneAtATime {}
