//! Devices through CUDA's driver: the same kernel texts, compiled by NVRTC when a device needs
//! them. Both libraries are loaded when a device is asked for. Never run on hardware by its
//! authors: what is tested is that all texts compile and that missing libraries are told.
#![expect(unsafe_code, reason = "CUDA is a C interface")]

mod nvrtc;

use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::result::{
    self, DriverError, ctx, device, event, free_host, free_sync, launch_kernel, malloc_host,
    malloc_sync, module, primary_ctx, stream,
};
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::backend::{At, Backend, Code, Held, Pinned, Queue, RawArg, Told, Unbuilt};
use crate::{Api, DeviceInfo, Error, Kind, Missing, Text};

/// The PTX of a kernel text for an architecture such as `compute_80`, by NVRTC.
///
/// # Errors
/// [`Error::Build`] if there is no NVRTC, or it refuses the text.
pub fn ptx(text: &Text, arch: &str) -> Result<String, Error> {
    let source = format!("{}{}", nvrtc::PRELUDE, text.source);
    let ptx = nvrtc::compile(&source, arch).map_err(|Unbuilt { reason, log }| Error::Build {
        device: arch.to_string(),
        text: text.name.to_string(),
        reason,
        log,
    })?;
    Ok(String::from_utf8_lossy(&ptx).trim_end_matches('\0').to_string())
}

fn missing(reason: impl Into<String>, remedy: &str) -> Missing {
    Missing { api: Api::Cuda, reason: reason.into(), remedy: remedy.into() }
}

/// All devices that the driver shows.
pub(crate) fn list() -> Result<Vec<DeviceInfo>, Missing> {
    let no_driver = "install NVIDIA's driver; in a container, ask for the capability 'compute'";
    // SAFETY: it only tries to open the library. All calls below panic without it.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("there is no libcuda.so.1", no_driver));
    }
    let refused = |e: DriverError| missing(format!("libcuda.so.1 was found, but {e:?}"), no_driver);
    result::init().map_err(refused)?;
    let n_devices = device::get_count().map_err(refused)?;
    if n_devices == 0 {
        return Err(missing("libcuda.so.1 was found, but no device", no_driver));
    }
    if !nvrtc::is_there() {
        return Err(missing(
            "libcuda.so.1 was found, but no libnvrtc.so, which compiles kernels",
            "install CUDA's NVRTC (PyPI: nvidia-cuda-nvrtc-cu12) and put its folder into \
             LD_LIBRARY_PATH",
        ));
    }
    (0..n_devices).map(|number| describe(number).map_err(refused)).collect()
}

fn describe(number: i32) -> Result<DeviceInfo, DriverError> {
    let handle = device::get(number)?;
    // SAFETY: the device was given by the driver.
    let attribute = |of| unsafe { device::get_attribute(handle, of) };
    // SAFETY: as above.
    let memory = unsafe { device::total_mem(handle) }? as u64;
    let mut version = 0;
    // SAFETY: the driver writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(DeviceInfo {
        name: format!("cuda:{number}"),
        api: Api::Cuda,
        kind: Kind::Gpu,
        number: number as usize,
        model: device::get_name(handle)?,
        driver: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
        memory,
        max_buffer: memory,
        align: 256,
        max_group: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as usize,
        units: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
    })
}

pub(crate) fn open(info: &DeviceInfo) -> Told<Box<dyn Backend>> {
    let number = i32::try_from(info.number).map_err(|e| e.to_string())?;
    Cuda::new(number).map(|cuda| Box::new(cuda) as Box<dyn Backend>).map_err(told)
}

fn told(e: DriverError) -> String {
    format!("{e:?}")
}

/// The context of a device, which everything made in it holds.
#[derive(Debug)]
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: handles of the driver may be used by any thread that has made the context current.
unsafe impl Send for Context {}
// SAFETY: as above; the driver orders the calls.
unsafe impl Sync for Context {}

impl Context {
    /// Makes it the context of this thread, as all calls below want it.
    fn enter(&self) -> Told<()> {
        // SAFETY: it is retained until it is dropped.
        unsafe { ctx::set_current(self.context) }.map_err(told)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. There is nobody to tell of a failure.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// Something of a context that is given back when it goes.
struct Owned {
    what: What,
    raw: u64,
    context: Arc<Context>,
}

#[derive(Clone, Copy)]
enum What {
    Memory,
    Host,
    Module,
    Event,
    Stream,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // There is nobody to tell of a failure.
        let _ = self.context.enter();
        let pointer = self.raw as *mut c_void;
        // SAFETY: the handle is of this kind, was made once, and nobody has it after its owner.
        let _ = unsafe {
            match self.what {
                What::Memory => free_sync(self.raw),
                What::Host => free_host(pointer),
                What::Module => module::unload(pointer.cast()),
                What::Event => event::destroy(pointer.cast()),
                What::Stream => stream::destroy(pointer.cast()),
            }
        };
    }
}

/// An open device: its primary context and two streams.
struct Cuda {
    streams: [Owned; 2],
    arch: String,
    context: Arc<Context>,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({}, {})", self.context.device, self.arch)
    }
}

impl Cuda {
    fn new(number: i32) -> Result<Cuda, DriverError> {
        let device = device::get(number)?;
        // SAFETY: the device was given by the driver.
        let context = unsafe { primary_ctx::retain(device) }?;
        let context = Arc::new(Context { device, context });
        // SAFETY: it is retained.
        unsafe { ctx::set_current(context.context) }?;
        // SAFETY: the device was given by the driver.
        let attribute = |of| unsafe { device::get_attribute(device, of) };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let stream = || -> Result<Owned, DriverError> {
            let raw = stream::create(StreamKind::NonBlocking)? as u64;
            Ok(Owned { what: What::Stream, raw, context: context.clone() })
        };
        let streams = [stream()?, stream()?];
        Ok(Cuda { streams, arch: format!("compute_{major}{minor}"), context })
    }

    /// The stream of a queue, in the context of this thread.
    fn stream(&self, queue: Queue) -> Told<sys::CUstream> {
        self.context.enter()?;
        Ok(self.streams[queue as usize].raw as sys::CUstream)
    }

    fn held(&self, what: What, raw: u64) -> Held {
        Held::new(raw, Owned { what, raw, context: self.context.clone() })
    }
}

impl Backend for Cuda {
    fn prelude(&self) -> &'static str {
        nvrtc::PRELUDE
    }

    fn build(&self, source: &str) -> Result<Code, Unbuilt> {
        let unbuilt = |reason: String| Unbuilt { reason, log: String::new() };
        let ptx = nvrtc::compile(source, &self.arch)?;
        self.context.enter().map_err(unbuilt)?;
        // SAFETY: the text ends with a zero byte, as the driver wants it.
        let module = unsafe { module::load_data(ptx.as_ptr().cast()) };
        let module = module.map_err(|e| unbuilt(told(e)))?;
        Ok(self.held(What::Module, module as u64))
    }

    fn kernel(&self, code: &Code, name: &str) -> Told<Held> {
        self.context.enter()?;
        let name = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the caller holds the module, and keeps it as long as the kernel.
        let kernel = unsafe { module::get_function(code.raw as sys::CUmodule, name) };
        Ok(Held::new(kernel.map_err(told)? as u64, ()))
    }

    fn launch(
        &self,
        queue: Queue,
        kernel: u64,
        groups: [u32; 3],
        local: [u32; 3],
        args: &[RawArg],
    ) -> Told<()> {
        let stream = self.stream(queue)?;
        let pointer = |arg: &RawArg| -> *mut c_void {
            match arg {
                RawArg::Buffer(raw) => (&raw const *raw).cast_mut().cast(),
                RawArg::Four(bytes) => bytes.as_ptr().cast_mut().cast(),
                RawArg::Eight(bytes) => bytes.as_ptr().cast_mut().cast(),
            }
        };
        let mut args: Vec<*mut c_void> = args.iter().map(pointer).collect();
        let ([gx, gy, gz], [lx, ly, lz]) = (groups, local);
        let kernel = kernel as sys::CUfunction;
        // SAFETY: the caller compared the arguments with the kernel's parameters; the driver
        // copies them before the call returns.
        let launched =
            unsafe { launch_kernel(kernel, (gx, gy, gz), (lx, ly, lz), 0, stream, &mut args) };
        launched.map_err(told)
    }

    fn alloc(&self, bytes: u64) -> Told<Held> {
        self.context.enter()?;
        // SAFETY: any content is allowed: it is numbers.
        let raw = unsafe { malloc_sync(bytes as usize) }.map_err(told)?;
        Ok(self.held(What::Memory, raw))
    }

    fn slice(&self, parent: u64, offset: u64, _: u64) -> Told<Held> {
        Ok(Held::new(parent + offset, ()))
    }

    fn pinned(&self, bytes: usize) -> Told<Pinned> {
        self.context.enter()?;
        // SAFETY: the memory is written below before anybody sees it.
        let start = unsafe { malloc_host(bytes, 0) }.map_err(told)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or("no host memory")?;
        // SAFETY: the memory is of this size, and nobody else has it.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, _held: self.held(What::Host, start.as_ptr() as u64) })
    }

    fn upload(&self, queue: Queue, from: NonNull<u8>, to: At, bytes: u64) -> Told<()> {
        let stream = self.stream(queue)?;
        let (to, from) = (to.raw + to.offset, from.as_ptr().cast());
        // SAFETY: ranges were checked, and the caller keeps `from` until the transfer is done.
        let sent = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes as usize, stream) };
        sent.result().map_err(told)
    }

    fn download(&self, queue: Queue, from: At, to: NonNull<u8>, bytes: u64) -> Told<()> {
        let stream = self.stream(queue)?;
        let (to, from) = (to.as_ptr().cast(), from.raw + from.offset);
        // SAFETY: ranges were checked, and the caller keeps `to` until the transfer is done.
        let sent = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes as usize, stream) };
        sent.result().map_err(told)
    }

    fn copy(&self, queue: Queue, from: At, to: At, bytes: u64) -> Told<()> {
        let stream = self.stream(queue)?;
        let (to, from) = (to.raw + to.offset, from.raw + from.offset);
        // SAFETY: ranges were checked.
        let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream) };
        copied.result().map_err(told)
    }

    fn fill(&self, queue: Queue, to: At, word: u32, bytes: u64) -> Told<()> {
        let stream = self.stream(queue)?;
        let words = (bytes / 4) as usize;
        // SAFETY: the range was checked.
        let filled = unsafe { sys::cuMemsetD32Async(to.raw + to.offset, word, words, stream) };
        filled.result().map_err(told)
    }

    fn mark(&self, queue: Queue) -> Told<Held> {
        let stream = self.stream(queue)?;
        let made = event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(told)?;
        let held = self.held(What::Event, made as u64);
        // SAFETY: both were made above and are held.
        unsafe { event::record(made, stream) }.map_err(told)?;
        Ok(held)
    }

    fn after(&self, queue: Queue, event: u64) -> Told<()> {
        let stream = self.stream(queue)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the caller holds the event.
        unsafe { stream::wait_event(stream, event as sys::CUevent, flags) }.map_err(told)
    }

    fn is_done(&self, event: u64) -> Told<bool> {
        self.context.enter()?;
        // SAFETY: the caller holds the event.
        match unsafe { event::query(event as sys::CUevent) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(told(e)),
        }
    }
}
