//! Which checkpoint a job resumes from, and why not from another one.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dir::{CheckpointDir, State};
use crate::verify::verify;
use crate::{Checkpoint, Error};

/// What a user wants to resume from: `auto`, `latest`, `none`, or the path of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum Resume {
    /// The newest good checkpoint; from the beginning if there is none yet.
    #[default]
    Auto,
    /// The newest good checkpoint; an error if there is none.
    Latest,
    /// This checkpoint; an error if it is not good.
    Path(PathBuf),
    /// From the beginning, whatever there is.
    None,
}

impl FromStr for Resume {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Resume, Infallible> {
        Ok(match text {
            "auto" => Resume::Auto,
            "latest" => Resume::Latest,
            "none" => Resume::None,
            path => Resume::Path(path.into()),
        })
    }
}

impl From<String> for Resume {
    fn from(text: String) -> Resume {
        text.parse().unwrap_or_else(|never: Infallible| match never {})
    }
}

impl From<Resume> for String {
    fn from(resume: Resume) -> String {
        resume.to_string()
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resume::Auto => f.write_str("auto"),
            Resume::Latest => f.write_str("latest"),
            Resume::None => f.write_str("none"),
            Resume::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How well checkpoints are looked at before one is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Names and sizes of files.
    Sizes,
    /// Every byte.
    Checksums,
}

/// Where a job begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The checkpoint to resume from; none to begin at step 0.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that cannot be used, and why: to be shown to the user.
    pub passed_over: Vec<PassedOver>,
}

/// A checkpoint that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// Where it is.
    pub path: PathBuf,
    /// Why not.
    pub reason: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not used: {}", self.path.display(), self.reason)
    }
}

impl CheckpointDir {
    /// The checkpoint that a job resumes from.
    ///
    /// # Errors
    /// If the wanted one is not good, or there are checkpoints but none of them is: to begin at
    /// step 0 then takes the user's word (`none`), for the next checkpoints would replace what may
    /// be repaired.
    pub fn choose(&self, resume: &Resume, check: Check) -> Result<Choice, Error> {
        match resume {
            Resume::None => Ok(Choice { checkpoint: None, passed_over: Vec::new() }),
            Resume::Path(path) => {
                let checkpoint = usable(path, check).map_err(|reason| {
                    Error::refused(path, format!("cannot go on from it: {reason}"))
                })?;
                Ok(Choice { checkpoint: Some(checkpoint), passed_over: Vec::new() })
            }
            Resume::Auto | Resume::Latest => self.newest_good(resume, check),
        }
    }

    fn newest_good(&self, resume: &Resume, check: Check) -> Result<Choice, Error> {
        let mut passed_over = Vec::new();
        let mut published = 0;
        for entry in self.list()?.into_iter().rev() {
            published += usize::from(!entry.is_draft());
            let reason = match entry.state {
                State::Incomplete(reason) => reason,
                State::Complete(_) => match usable(&entry.path, check) {
                    Ok(checkpoint) => {
                        return Ok(Choice { checkpoint: Some(checkpoint), passed_over });
                    }
                    Err(reason) => reason,
                },
            };
            passed_over.push(PassedOver { path: entry.path, reason });
        }
        if published == 0 && *resume == Resume::Auto {
            return Ok(Choice { checkpoint: None, passed_over });
        }
        let reasons: Vec<String> = passed_over.iter().map(|p| format!("\n  {p}")).collect();
        let reason = match published {
            0 => format!("there is no checkpoint to resume from{}", reasons.concat()),
            n => format!(
                "none of {n} checkpoints can be used (--resume none begins anew){}",
                reasons.concat()
            ),
        };
        Err(Error::refused(self.path(), reason))
    }
}

/// The checkpoint in a directory, if it is good to resume from.
fn usable(path: &Path, check: Check) -> Result<Checkpoint, String> {
    let checkpoint = Checkpoint::open(path).map_err(|error| match error {
        Error::Corrupt { path: own, reason } if own == path => reason,
        other => other.to_string(),
    })?;
    if !checkpoint.manifest().is_resumable() {
        let mode = checkpoint.manifest().mode;
        return Err(format!(
            "it was saved in mode `{mode}`, which is for serving, not for training"
        ));
    }
    let problems = verify(path, check);
    match problems.first() {
        None => Ok(checkpoint),
        Some(first) if problems.len() == 1 => Err(first.to_string()),
        Some(first) => Err(format!("{first} (and {} more problems)", problems.len() - 1)),
    }
}
