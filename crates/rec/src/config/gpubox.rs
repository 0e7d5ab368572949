//! `sync_mode: gpubox`: which device holds the hottest rows, and what the mode takes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::keys;
use super::resolver::Resolver;
use crate::HyperValue;

/// The only reader of the mode.
const READER: &str = "InmemoryDataset";
pub(super) const DEVICE: &str = "runner.device";
const USE_GPU: &str = "runner.use_gpu";

/// Settings of `sync_mode: gpubox`.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuBox {
    /// What computes, and holds the rows of the batches in flight.
    pub device: DeviceChoice,
    /// Bytes of the device for the rows of a table, by its name.
    pub device_bytes: BTreeMap<String, u64>,
}

/// What computes in `sync_mode: gpubox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first kind of graphics card that is there.
    Auto,
    /// The processors: rows are in memory and on disk only.
    Cpu,
    /// Devices of a kind: the one of this number, or those that the environment selects.
    Kind(DeviceKind, Option<usize>),
}

/// Kinds of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// Graphics cards and accelerators with a driver for OpenCL.
    OpenCl,
    /// Processors with a driver for OpenCL, which compute as a graphics card would.
    OpenClCpu,
    /// Graphics cards with NVIDIA's driver.
    Cuda,
}

impl DeviceKind {
    /// The word for it in `runner.device`.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::OpenCl => "opencl",
            DeviceKind::OpenClCpu => "opencl-cpu",
            DeviceKind::Cuda => "cuda",
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Kind(kind, None) => f.write_str(kind.name()),
            DeviceChoice::Kind(kind, Some(n)) => write!(f, "{}:{n}", kind.name()),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let wrong = || {
            format!(
                "should be auto, cpu, opencl, opencl-cpu or cuda, the last three with :NUMBER if \
                 one device is meant, but is '{text}'"
            )
        };
        let lower = text.to_ascii_lowercase();
        let (name, number) = match lower.split_once(':') {
            Some((name, n)) => (name, Some(n.parse::<usize>().map_err(|_| wrong())?)),
            None => (lower.as_str(), None),
        };
        match (name, number) {
            ("auto", None) => Ok(DeviceChoice::Auto),
            ("cpu", None) => Ok(DeviceChoice::Cpu),
            ("opencl", n) => Ok(DeviceChoice::Kind(DeviceKind::OpenCl, n)),
            ("opencl-cpu", n) => Ok(DeviceChoice::Kind(DeviceKind::OpenClCpu, n)),
            ("cuda", n) => Ok(DeviceChoice::Kind(DeviceKind::Cuda, n)),
            _ => Err(wrong()),
        }
    }
}

/// The settings of the mode; reports what does not go with it.
pub(super) fn resolve_gpubox(r: &mut Resolver) -> GpuBox {
    let reader = r.settings.iter().find(|s| s.key == "runner.reader_type").map(|s| &s.value);
    if let Some(HyperValue::Str(reader)) = reader
        && reader != READER
    {
        let reason = format!(
            "{reader} cannot be honoured: sync_mode gpubox reads {READER} only; use -o \
             runner.reader_type={READER}"
        );
        r.problem("runner.reader_type", reason);
    }
    GpuBox { device: resolve_device(r), device_bytes: resolve_device_bytes(r) }
}

/// `table_parameters.<table>.device_mb` of all tables.
fn resolve_device_bytes(r: &mut Resolver) -> BTreeMap<String, u64> {
    let table = |key: &str| {
        let name = key.strip_prefix("table_parameters.")?.strip_suffix(".device_mb")?;
        Some((name.to_string(), key.to_string()))
    };
    let written: Vec<(String, String)> = r.written_keys().filter_map(table).collect();
    let kind = keys::find("table_parameters.<table>.device_mb").map(|key| key.kind);
    let mut all = BTreeMap::new();
    for (name, key) in written {
        match kind.and_then(|kind| r.field(&key, kind, None)) {
            Some(HyperValue::Float(mb)) if mb > 0.0 && mb < 1e9 => {
                all.insert(name, (mb * f64::from(1 << 20)) as u64);
            }
            Some(value) => r.problem(&key, format!("should be more than 0, but is {value}")),
            None => {}
        }
    }
    all
}

/// `use_gpu` says whether there is a device, `device` which one; a named device is enough.
fn resolve_device(r: &mut Resolver) -> DeviceChoice {
    let use_gpu = r.bool(USE_GPU);
    let named = r.text(DEVICE).map(|text| text.parse::<DeviceChoice>());
    let device = match named.transpose() {
        Ok(named) => named,
        Err(reason) => {
            r.problem(DEVICE, reason);
            return DeviceChoice::Cpu;
        }
    };
    match (use_gpu, device) {
        (Some(false), Some(device @ (DeviceChoice::Auto | DeviceChoice::Kind(..)))) => {
            let reason =
                format!("{device} contradicts {USE_GPU}: False; use -o {USE_GPU}=True, or cpu");
            r.problem(DEVICE, reason);
            DeviceChoice::Cpu
        }
        (_, Some(device)) => device,
        (Some(true), None) => DeviceChoice::Auto,
        (_, None) => DeviceChoice::Cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_name() {
        for text in ["auto", "cpu", "opencl", "opencl:2", "opencl-cpu", "opencl-cpu:0", "cuda:7"] {
            let device: DeviceChoice = text.parse().unwrap();
            assert_eq!(device.to_string(), text);
        }
        for text in ["gpu", "cpu:0", "cuda:", "cuda:-1", "opencl:x", ""] {
            let error = text.parse::<DeviceChoice>().unwrap_err();
            assert!(error.contains("should be auto, cpu, opencl"), "{error}");
        }
    }
}
