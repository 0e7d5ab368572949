//! Which device: from a name to a device that is open.

use std::fmt;
use std::str::FromStr;

use crate::listing::{Api, DeviceInfo, Listing};
use crate::{Device, Error, opencl};

/// A device as users name it: `auto`, `cuda[:n]`, `opencl[:n]`, `opencl-cpu[:n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The first CUDA device, else the first OpenCL device that is no software.
    Auto,
    /// A CUDA device by its number.
    Cuda(usize),
    /// An OpenCL device that is no software.
    OpenCl(usize),
    /// An OpenCL device that is software: for tests, and only when it is named.
    OpenClCpu(usize),
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Choice, Error> {
        let wrong = || Error::Choice { text: text.to_string() };
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        match (name, number) {
            ("auto", None) => Ok(Choice::Auto),
            ("cuda", n) => Ok(Choice::Cuda(n.unwrap_or(0))),
            ("opencl", n) => Ok(Choice::OpenCl(n.unwrap_or(0))),
            ("opencl-cpu", n) => Ok(Choice::OpenClCpu(n.unwrap_or(0))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Cuda(n) => write!(f, "cuda:{n}"),
            Choice::OpenCl(n) => write!(f, "opencl:{n}"),
            Choice::OpenClCpu(n) => write!(f, "opencl-cpu:{n}"),
        }
    }
}

impl Choice {
    /// The device of this name.
    ///
    /// # Errors
    /// [`Error::NotThere`] says what was looked for, what is there instead, and the remedy.
    pub fn find(self, listing: &Listing) -> Result<DeviceInfo, Error> {
        let found = match self {
            Choice::Auto => {
                listing.of(Api::Cuda, false).chain(listing.of(Api::OpenCl, false)).next()
            }
            Choice::Cuda(n) => listing.of(Api::Cuda, false).nth(n),
            Choice::OpenCl(n) => listing.of(Api::OpenCl, false).nth(n),
            Choice::OpenClCpu(n) => listing.of(Api::OpenCl, true).nth(n),
        };
        found.cloned().ok_or_else(|| Error::NotThere {
            asked: self.to_string(),
            looked_for: self.looked_for(listing),
        })
    }

    /// Finds and opens the device of this name.
    ///
    /// # Errors
    /// If it is not there, or its driver refuses.
    pub fn open(self) -> Result<Device, Error> {
        open(self.find(&Listing::take())?)
    }

    fn looked_for(self, listing: &Listing) -> String {
        let apis: &[Api] = match self {
            Choice::Auto => &[Api::Cuda, Api::OpenCl],
            Choice::Cuda(_) => &[Api::Cuda],
            Choice::OpenCl(_) | Choice::OpenClCpu(_) => &[Api::OpenCl],
        };
        let mut said = Vec::new();
        for &api in apis {
            let missing = listing.missing.iter().filter(|missing| missing.api == api);
            said.extend(missing.map(ToString::to_string));
            let here: Vec<_> = listing.devices.iter().filter(|d| d.api == api).collect();
            if !here.is_empty() {
                let here: Vec<_> = here.iter().map(ToString::to_string).collect();
                said.push(format!("{api} has {}", here.join(", ")));
            }
        }
        said.join("; ")
    }
}

fn open(info: DeviceInfo) -> Result<Device, Error> {
    let failed = |reason| Error::Call {
        device: info.to_string(),
        what: "it cannot be opened".into(),
        reason,
    };
    let backend = match info.api {
        Api::OpenCl => opencl::open(&info).map_err(failed)?,
        #[cfg(feature = "cuda")]
        Api::Cuda => crate::cuda::open(&info).map_err(failed)?,
        #[cfg(not(feature = "cuda"))]
        Api::Cuda => return Err(failed("this binary was built without CUDA".into())),
    };
    Ok(Device::new(info, backend))
}

/// The device numbers that remain when `CUDA_VISIBLE_DEVICES` says `visible` and the launcher
/// selected `selected` (`FLAGS_selected_gpus`): numbers count the visible ones, as in CUDA.
///
/// CUDA itself ends its list at the first number that it does not know; here that is an error.
///
/// # Errors
/// The sentence says which entry is no device.
pub fn visible(
    n_devices: usize,
    visible: Option<&str>,
    selected: Option<&str>,
) -> Result<Vec<usize>, String> {
    let all: Vec<usize> = (0..n_devices).collect();
    let seen = match visible {
        Some(list) => pick(&all, list, "CUDA_VISIBLE_DEVICES")?,
        None => all,
    };
    match selected {
        Some(list) if !list.trim().is_empty() => pick(&seen, list, "FLAGS_selected_gpus"),
        _ => Ok(seen),
    }
}

fn pick(from: &[usize], list: &str, name: &str) -> Result<Vec<usize>, String> {
    let mut picked = Vec::new();
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let number: usize =
            entry.parse().map_err(|_| format!("{name}={list}: '{entry}' is no number"))?;
        let device = *from.get(number).ok_or_else(|| {
            format!("{name}={list}: there is no device {number}, but {}", from.len())
        })?;
        if picked.contains(&device) {
            return Err(format!("{name}={list}: device {number} twice"));
        }
        picked.push(device);
    }
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, choice) in [
            ("auto", Choice::Auto),
            ("cuda", Choice::Cuda(0)),
            ("cuda:3", Choice::Cuda(3)),
            ("opencl:1", Choice::OpenCl(1)),
            ("opencl-cpu", Choice::OpenClCpu(0)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "gpu", "auto:1", "opencl:", "opencl:x", "opencl-cpu:-1"] {
            assert!(text.parse::<Choice>().is_err(), "{text}");
        }
    }

    #[test]
    fn selection_counts_what_is_visible() {
        assert_eq!(visible(3, None, None), Ok(vec![0, 1, 2]));
        assert_eq!(visible(4, Some("2,3"), Some("1")), Ok(vec![3]));
        assert_eq!(visible(2, None, Some("0,1")), Ok(vec![0, 1]));
        assert_eq!(visible(2, Some(""), None), Ok(vec![]));
        assert!(visible(2, None, Some("2")).unwrap_err().contains("there is no device 2, but 2"));
        assert!(visible(2, Some("0,0"), None).unwrap_err().contains("twice"));
    }
}
