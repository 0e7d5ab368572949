//! Resuming: the checkpoint that a run continues from, and what each worker finds in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regatta_checkpoint::{Check, Checkpoint, Resume, WorkerPosition, program_hash};
use regatta_tensor::Tensor;
use serde_json::Value as Settings;

use crate::Error;
use crate::checkpoints::{Checkpointing, DATA, MODEL_PART, STATE};
use crate::front::RunSpec;
use crate::remote::Mirror;
use crate::state::WorkerState;

/// The checkpoint that a run resumes from, and the state of each worker in it.
pub(crate) struct ResumePoint {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) states: Vec<WorkerState>,
}

/// Kinds of jobs that can resume from each other's checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One process, or ranks that all have everything.
    Whole,
    /// Servers.
    Servers,
}

impl ResumePoint {
    /// The checkpoint that a run is to resume from, if any; `note` receives those that cannot be
    /// used.
    ///
    /// # Errors
    /// If the requested one is not good, or belongs to another model or kind of job.
    pub(crate) fn choose(
        wanted: Option<&Checkpointing>,
        spec: &RunSpec,
        family: Family,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<ResumePoint>, Error> {
        let Some(wanted) = wanted else { return Ok(None) };
        if wanted.resume == Resume::None {
            return Ok(None);
        }
        if let (Some(store), Resume::Auto | Resume::Latest) = (&wanted.store, &wanted.resume) {
            Mirror::new(store, &wanted.config.dir).fetch(note)?;
        }
        let choice = wanted.config.open().choose(&wanted.resume, Check::Checksums)?;
        choice.passed_over.iter().for_each(|passed| note(&passed.to_string()));
        let Some(checkpoint) = choice.checkpoint else { return Ok(None) };
        ResumePoint::open(checkpoint, spec, family).map(Some)
    }

    /// The checkpoint that another process has chosen.
    ///
    /// # Errors
    /// If it cannot be read, or belongs to another model or kind of job.
    pub(crate) fn open_at(
        path: &Path,
        spec: &RunSpec,
        family: Family,
    ) -> Result<ResumePoint, Error> {
        ResumePoint::open(Checkpoint::open(path)?, spec, family)
    }

    fn open(checkpoint: Checkpoint, spec: &RunSpec, family: Family) -> Result<ResumePoint, Error> {
        let path = checkpoint.path().to_path_buf();
        let manifest = checkpoint.manifest();
        if let Err(error) = manifest.check_program(&path, &program_hash(&spec.program)) {
            let changes = changed_settings(&manifest.config, &spec.settings);
            return Err(match changes.is_empty() {
                true => error.into(),
                false => Error::Resume(format!("{error}; changed: {}", changes.join(", "))),
            });
        }
        let of_servers = manifest.topology.servers > 0;
        if of_servers != (family == Family::Servers) {
            let with = |servers: bool| if servers { "with" } else { "without" };
            return Err(Error::Resume(format!(
                "{}: this checkpoint is of a job {} parameter servers, and this job is one {} \
                 them; start from its parameters with runner.model_init_path or \
                 runner.warmup_model_path, or begin again with --resume none",
                path.display(),
                with(of_servers),
                with(!of_servers)
            )));
        }
        let state = |worker: &WorkerPosition| {
            let text = worker.reader.get(STATE).and_then(|value| value.as_str());
            text.and_then(|text| serde_json::from_str::<WorkerState>(text).ok())
        };
        let states = manifest.progress.workers.iter().map(state).collect::<Option<Vec<_>>>();
        let states = states.filter(|states| !states.is_empty()).ok_or_else(|| {
            Error::Resume(format!(
                "{}: the checkpoint lacks the positions of the workers",
                path.display()
            ))
        })?;
        Ok(ResumePoint { checkpoint, states })
    }

    /// What is different in the run that resumes, in words: settings that make it another run, and
    /// its data.
    pub(crate) fn changes(&self, spec: &RunSpec, data: Option<&str>) -> Vec<String> {
        let manifest = self.checkpoint.manifest();
        let value = |settings: &serde_json::Value, name: &str| {
            let path = format!("/{}", name.replace('.', "/"));
            settings.pointer(&path).map(serde_json::Value::to_string)
        };
        let changed = |name: &&str| {
            let (old, new) = (value(&manifest.config, name)?, value(&spec.settings, name)?);
            (old != new).then(|| format!("{name} was {old} and is {new}"))
        };
        let mut changes: Vec<String> = spec.fixed.iter().filter_map(changed).collect();
        let first = manifest.progress.workers.first();
        let old = first.and_then(|worker| worker.reader.get(DATA)).and_then(|v| v.as_str());
        if let (Some(old), Some(new)) = (old, data)
            && old != new
        {
            changes.push(format!("the data were {old} and are {new}"));
        }
        changes
    }

    /// An error for a run that is another than the one of the checkpoint, unless this checkpoint
    /// was asked for; then a note.
    ///
    /// # Errors
    /// Names what has changed.
    pub(crate) fn check_same(
        &self,
        spec: &RunSpec,
        data: Option<&str>,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let changes = self.changes(spec, data);
        if changes.is_empty() {
            return Ok(());
        }
        let (path, changes) = (self.checkpoint.path().display(), changes.join("; "));
        let found = format!("{path} is of another run: {changes}");
        if spec.checkpoint.as_ref().is_some_and(|wanted| wanted.resume != Resume::Auto) {
            note(&found);
            return Ok(());
        }
        Err(Error::Resume(format!(
            "{found}; begin anew with --resume none or in another --checkpoint-dir, or continue that \
             run with these settings by --resume latest"
        )))
    }

    /// Whether the job has reached its end, which is N data passes.
    pub(crate) fn is_finished(&self, epochs: u64) -> bool {
        self.states[0].finished && self.states[0].epoch >= epochs
    }

    /// These variables of a run without servers.
    ///
    /// # Errors
    /// If the part is damaged, or a variable is missing.
    pub(crate) fn tensors_of(&self, names: &[String]) -> Result<Vec<(String, Tensor)>, Error> {
        let mut saved = self.checkpoint.tensors(MODEL_PART)?.tensors;
        let take = |name: &String| match saved.remove(name) {
            Some(tensor) => Ok((name.clone(), tensor)),
            None => {
                let path = self.checkpoint.path().display();
                Err(Error::Resume(format!("{path} has no '{name}'")))
            }
        };
        names.iter().map(take).collect()
    }

    /// What a worker had kept for itself, if its part is there.
    ///
    /// # Errors
    /// If the part is damaged.
    pub(crate) fn own_part(&self, name: &str) -> Result<Option<Vec<(String, Tensor)>>, Error> {
        if self.checkpoint.part(name).is_err() {
            return Ok(None);
        }
        Ok(Some(self.checkpoint.tensors(name)?.tensors.into_iter().collect()))
    }

    /// A line for the user.
    pub(crate) fn describe(&self) -> String {
        let progress = &self.checkpoint.manifest().progress;
        let batches = if progress.step == 1 { "batch" } else { "batches" };
        format!(
            "resuming from {} (epoch {}, {} {batches} of it done, step {})",
            self.checkpoint.path().display(),
            progress.epoch,
            progress.step,
            progress.global_step
        )
    }
}

/// Settings of the network that are not what they were, each with both values.
fn changed_settings(old: &Settings, new: &Settings) -> Vec<String> {
    let (mut before, mut now) = (BTreeMap::new(), BTreeMap::new());
    flatten("", old, &mut before);
    flatten("", new, &mut now);
    let text = |value: Option<&String>| value.map_or("not set", String::as_str).to_string();
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let is_of_network = |name: &&String| !name.starts_with("runner.") || name.ends_with(".amp");
    let changed = names.into_iter().filter(is_of_network).filter(|n| before.get(*n) != now.get(*n));
    changed
        .map(|n| format!("{n} was {} and is {}", text(before.get(n)), text(now.get(n))))
        .collect()
}

/// All values of a tree by their names with dots between the parts.
fn flatten(name: &str, value: &Settings, out: &mut BTreeMap<String, String>) {
    let Some(section) = value.as_object() else {
        out.insert(name.to_string(), value.to_string());
        return;
    };
    for (key, value) in section {
        let dot = if name.is_empty() { "" } else { "." };
        flatten(&format!("{name}{dot}{key}"), value, out);
    }
}
