//! Which OpenCL devices are there.

use std::sync::OnceLock;

use opencl3::device::{
    CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, Device as ClDevice,
};
use opencl3::error_codes::{
    CL_DEVICE_NOT_FOUND, CL_PLATFORM_NOT_FOUND_KHR, ClError, DLOPEN_RUNTIME_LOAD_FAILED,
};
use opencl3::platform::{Platform, get_platforms};

use crate::{Api, DeviceInfo, Kind, Missing};

const LIBRARY: &str = "libOpenCL.so.1";

/// Devices with the handles of their drivers, as numbers.
type Found = Vec<(DeviceInfo, usize)>;

/// All OpenCL devices, in the order of platforms.
pub(crate) fn list() -> Result<Vec<DeviceInfo>, Missing> {
    Ok(all()?.iter().map(|(info, _)| info.clone()).collect())
}

/// Looks once: devices stay while a process runs, and PoCL 3.1 crashes when two threads look for
/// the first time at once.
pub(super) fn all() -> Result<&'static Found, Missing> {
    static FOUND: OnceLock<Result<Found, Missing>> = OnceLock::new();
    FOUND.get_or_init(look).as_ref().map_err(Clone::clone)
}

fn missing(reason: impl Into<String>, remedy: &str) -> Missing {
    Missing { api: Api::OpenCl, reason: reason.into(), remedy: remedy.into() }
}

fn look() -> Result<Found, Missing> {
    let no_driver = "install the OpenCL driver of your device; software for tests: \
                     pocl-opencl-icd (Debian's name)";
    let no_platform = || {
        let reason = format!("{LIBRARY} was found, but no platform: no driver is registered");
        missing(reason, no_driver)
    };
    let platforms = get_platforms().map_err(|ClError(code)| match code {
        DLOPEN_RUNTIME_LOAD_FAILED => missing(
            format!("{LIBRARY} cannot be loaded"),
            "install the driver of your device and ocl-icd-libopencl1 (Debian's name), or set \
             OPENCL_DYLIB_PATH to the library",
        ),
        CL_PLATFORM_NOT_FOUND_KHR => no_platform(),
        _ => missing(format!("{LIBRARY} was found, but {}", ClError(code)), no_driver),
    })?;
    if platforms.is_empty() {
        return Err(no_platform());
    }
    let mut found = Vec::new();
    for platform in platforms {
        of_platform(&platform, &mut found)?;
    }
    if found.is_empty() {
        return Err(missing("no platform has a device", no_driver));
    }
    Ok(found)
}

fn of_platform(platform: &Platform, found: &mut Found) -> Result<(), Missing> {
    let name = platform.name().unwrap_or_default();
    let ids = match platform.get_devices(CL_DEVICE_TYPE_ALL) {
        Ok(ids) => ids,
        Err(ClError(CL_DEVICE_NOT_FOUND)) => return Ok(()),
        Err(e) => return Err(missing(format!("{name}: {e}"), "look at its driver")),
    };
    for id in ids {
        let device = ClDevice::new(id);
        let software = device.dev_type().unwrap_or_default() & CL_DEVICE_TYPE_CPU != 0;
        let same = |(info, _): &&(DeviceInfo, _)| (info.kind == Kind::Cpu) == software;
        let number = found.iter().filter(same).count();
        let info = describe(&device, &name, number)
            .map_err(|e| missing(format!("{name}: {e}"), "look at its driver"))?;
        found.push((info, id as usize));
    }
    Ok(())
}

fn describe(device: &ClDevice, platform: &str, number: usize) -> Result<DeviceInfo, ClError> {
    let kind = match device.dev_type()? {
        kind if kind & CL_DEVICE_TYPE_GPU != 0 => Kind::Gpu,
        kind if kind & CL_DEVICE_TYPE_CPU != 0 => Kind::Cpu,
        _ => Kind::Accelerator,
    };
    let name = if kind == Kind::Cpu { "opencl-cpu" } else { "opencl" };
    Ok(DeviceInfo {
        name: format!("{name}:{number}"),
        api: Api::OpenCl,
        kind,
        number,
        model: device.name()?.trim().to_string(),
        driver: format!("{platform} {}", device.driver_version()?.trim()),
        memory: device.global_mem_size()?,
        max_buffer: device.max_mem_alloc_size()?,
        align: u64::from(device.mem_base_addr_align()? / 8).max(4),
        max_group: device.max_work_group_size()?,
        units: device.max_compute_units()?,
    })
}
