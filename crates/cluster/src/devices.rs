//! Which devices of its machine a process may use.

use crate::names::{SELECTED_GPUS, VISIBLE_DEVICES};
use crate::{Env, Error};

/// The devices that the environment leaves to a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// `CUDA_VISIBLE_DEVICES`: which devices of the machine there are for this process, in this
    /// order; all if it is not set. Drivers of NVIDIA leave out the others by themselves.
    pub visible: Option<Vec<usize>>,
    /// `FLAGS_selected_gpus`: which of the visible ones are used, counted from 0.
    pub selected: Option<Vec<usize>>,
}

impl Devices {
    /// What the variables say.
    ///
    /// # Errors
    /// If one of them is no list of different numbers, or selects a device that is not visible.
    pub fn from_env(env: &Env) -> Result<Devices, Error> {
        let visible = numbers(env, VISIBLE_DEVICES)?;
        let selected = numbers(env, SELECTED_GPUS)?;
        if let (Some(visible), Some(selected)) = (&visible, &selected)
            && let Some(missing) = selected.iter().find(|n| **n >= visible.len())
        {
            let reason = format!("{missing} is selected, numbered from 0, of {}", visible.len());
            return Err(Error::contradiction(SELECTED_GPUS, VISIBLE_DEVICES, reason));
        }
        Ok(Devices { visible, selected })
    }
}

fn numbers(env: &Env, name: &str) -> Result<Option<Vec<usize>>, Error> {
    let Some(text) = env.get(name) else { return Ok(None) };
    let wrong = |reason: &str| Error::invalid(name, text, reason);
    let mut list = Vec::new();
    for entry in text.split(',') {
        let Ok(number) = entry.trim().parse::<usize>() else {
            return Err(wrong("it must be numbers of devices, separated by commas"));
        };
        if list.contains(&number) {
            return Err(wrong(&format!("device {number} is there twice")));
        }
        list.push(number);
    }
    Ok(Some(list))
}
