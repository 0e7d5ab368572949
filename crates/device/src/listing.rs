//! What devices are there, and why others are not.

use std::fmt;

use crate::opencl;

/// The interface to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// CUDA's driver.
    Cuda,
    /// An OpenCL platform.
    OpenCl,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Api::Cuda => "CUDA",
            Api::OpenCl => "OpenCL",
        })
    }
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A graphics processor.
    Gpu,
    /// Another device made for computing.
    Accelerator,
    /// Software on the CPU: used only when it is named.
    Cpu,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Gpu => "gpu",
            Kind::Accelerator => "accelerator",
            Kind::Cpu => "cpu",
        })
    }
}

/// A device that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// How to ask for it: `opencl-cpu:0`.
    pub name: String,
    /// How it is reached.
    pub api: Api,
    /// What it is.
    pub kind: Kind,
    /// Its number among the devices that such names count.
    pub number: usize,
    /// What the driver calls it.
    pub model: String,
    /// Version of the driver, with its platform.
    pub driver: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of the largest buffer.
    pub max_buffer: u64,
    /// Parts of a buffer begin at multiples of this many bytes.
    pub align: u64,
    /// Work items of a group, at most.
    pub max_group: usize,
    /// How many groups run at a time.
    pub units: u32,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.model)
    }
}

/// Why an interface offers no device, or fewer than one may think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The interface.
    pub api: Api,
    /// What was looked for and what was found.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.api, self.reason, self.remedy)
    }
}

/// All devices of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Those that are there.
    pub devices: Vec<DeviceInfo>,
    /// What is not there.
    pub missing: Vec<Missing>,
}

impl Listing {
    /// Looks for devices; loads the libraries of vendors.
    pub fn take() -> Listing {
        let mut listing = Listing::default();
        listing.add(cuda());
        listing.add(opencl::list());
        listing
    }

    /// The devices of one interface and kind, in the order of their numbers.
    pub fn of(&self, api: Api, software: bool) -> impl Iterator<Item = &DeviceInfo> {
        let wanted = move |d: &&DeviceInfo| d.api == api && (d.kind == Kind::Cpu) == software;
        self.devices.iter().filter(wanted)
    }

    fn add(&mut self, found: Result<Vec<DeviceInfo>, Missing>) {
        match found {
            Ok(devices) => self.devices.extend(devices),
            Err(missing) => self.missing.push(missing),
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Vec<DeviceInfo>, Missing> {
    crate::cuda::list()
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Vec<DeviceInfo>, Missing> {
    Err(Missing {
        api: Api::Cuda,
        reason: "this binary was built without CUDA".into(),
        remedy: "build with --features cuda; NVIDIA's driver offers its GPUs by OpenCL too".into(),
    })
}
