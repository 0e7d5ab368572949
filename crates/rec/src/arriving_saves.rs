//! What is saved while data arrive: by days in PaddleRec's folders, else now and then.
//!
//! ```text
//! <model_save_path>/20190720/6/         after pass 6 of the day: to continue from
//! <model_save_path>/20190720/delta-6/   what has changed since the last delta or base: to serve
//! <model_save_path>/20190721/base/      after the day before, when tables have shrunk: to serve
//! <model_save_path>/20190721/0/         the same moment: to continue from
//! ```

use std::path::{Path, PathBuf};
use std::time::Instant;

use regatta_data::arrivals::{PassOfDay, PassPlan};
use regatta_table::SaveMode;
use regatta_train::{SaveMoment, TrainedModel};

use crate::config::{Arrivals, DayTraining, Streaming};
use crate::donefile::{DoneFiles, base_key};
use crate::save::{Files, epoch_folder};
use crate::{Config, Error};

/// What was saved of a stream, and when.
pub(crate) struct StreamSaves {
    examples: u64,
    last: Instant,
    /// The data pass of the last saved model.
    epoch: Option<u64>,
}

impl Default for StreamSaves {
    fn default() -> StreamSaves {
        StreamSaves { examples: 0, last: Instant::now(), epoch: None }
    }
}

/// Refuses what only servers can do, and says what is not done without them.
///
/// # Errors
/// Names the key.
pub(crate) fn check_without_servers(config: &Config) -> Result<Option<String>, Error> {
    let Some(Arrivals::Days(days)) = &config.runner.arrivals else { return Ok(None) };
    if days.save_delta_frequency.is_some() {
        let reason = "only parameter servers know what has changed in a table: start the job with \
                      servers (--servers 1 --workers 1), or leave it out";
        return Err(Error::key("runner.save_delta_frequency", reason));
    }
    Ok(Some("tables shrink at the end of a day only on parameter servers".to_string()))
}

impl Files<'_> {
    /// Saves what is due of a model whose data arrive while training; says where the last of it is.
    pub(crate) fn save_arriving(
        &mut self,
        arrivals: &Arrivals,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<PathBuf>, Error> {
        match (arrivals, model.moment) {
            (Arrivals::Days(days), SaveMoment::Before(plan)) => {
                self.save_first(days, plan, model, note)
            }
            (Arrivals::Days(days), SaveMoment::After(plan, _)) => {
                self.save_after(days, plan, model, note)
            }
            (Arrivals::Stream(stream), SaveMoment::After(_, examples)) => {
                self.stream.examples += examples;
                let is_due = stream.save_examples.is_some_and(|n| self.stream.examples >= n)
                    || self.stream.last.elapsed() >= stream.save_every;
                if is_due { self.save_stream(stream, model, note) } else { Ok(None) }
            }
            (Arrivals::Stream(stream), SaveMoment::End) => {
                let folder = epoch_folder(self.root, model.epoch);
                let is_saved = self.stream.epoch == Some(model.epoch)
                    || self.stream.examples == 0 && folder.is_dir();
                if model.step == 0 || is_saved {
                    Ok(None)
                } else {
                    self.save_stream(stream, model, note)
                }
            }
            _ => Ok(None),
        }
    }

    fn save_stream(
        &mut self,
        stream: &Streaming,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<PathBuf>, Error> {
        let root = self.root;
        let folder = epoch_folder(root, model.epoch);
        self.save_as(SaveMode::All, model, &folder, note)?;
        self.stream = StreamSaves { epoch: Some(model.epoch), ..StreamSaves::default() };
        if let Some(keep) = stream.keep_models {
            remove_older(root, model.epoch, keep)?;
        }
        Ok(Some(folder))
    }

    /// A model to serve before anything is trained.
    fn save_first(
        &mut self,
        days: &DayTraining,
        plan: &PassPlan,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<PathBuf>, Error> {
        if !days.save_first_base {
            return Ok(None);
        }
        let root = self.root.to_path_buf();
        let folder = root.join(PassOfDay::of(plan)?.day).join("base");
        self.save_as(SaveMode::Base, model, &folder, note)?;
        DoneFiles::new(&root).base(&folder, base_key())?;
        Ok(Some(folder))
    }

    fn save_after(
        &mut self,
        days: &DayTraining,
        plan: &PassPlan,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<PathBuf>, Error> {
        let at = PassOfDay::of(plan)?;
        let root = self.root.to_path_buf();
        let (day, done) = (root.join(&at.day), DoneFiles::new(&root));
        let ends_day = at.pass >= days.passes_per_day;
        let mut saved: Vec<PathBuf> = Vec::new();
        if at.pass.is_multiple_of(days.checkpoint_per_pass) && !ends_day {
            let folder = day.join(at.pass.to_string());
            self.save_as(SaveMode::All, model, &folder, note)?;
            done.model(&at.day, i64::from(at.pass), &folder)?;
            saved.push(folder);
        }
        if days.save_delta_frequency.is_some_and(|n| at.pass.is_multiple_of(n)) {
            let folder = day.join(format!("delta-{}", at.pass));
            self.save_as(SaveMode::Delta, model, &folder, note)?;
            done.delta(&folder)?;
            saved.push(folder);
        }
        if ends_day {
            saved.extend(self.end_day(&at, model, note)?);
        }
        let last = saved.pop();
        saved.iter().for_each(|folder| note(&format!("saved {}", folder.display())));
        Ok(last)
    }

    /// A day is over: tables shrink, and the next day begins with what is saved then.
    fn end_day(
        &mut self,
        at: &PassOfDay,
        model: &TrainedModel<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<[PathBuf; 2], Error> {
        if let Some(client) = model.backend.client() {
            let removed = client.shrink(None)?;
            let rows = if removed == 1 { "row" } else { "rows" };
            note(&format!("day {} is over: {removed} {rows} removed from the tables", at.day));
        }
        let root = self.root.to_path_buf();
        let (next, done) = (at.next_day()?, DoneFiles::new(&root));
        let [base, batch] = ["base", "0"].map(|name| root.join(&next).join(name));
        self.save_as(SaveMode::Base, model, &base, note)?;
        done.base(&base, base_key())?;
        self.save_as(SaveMode::Day, model, &batch, note)?;
        done.model(&next, -1, &batch)?;
        Ok([base, batch])
    }
}

/// Removes the oldest saved models, but for so many.
fn remove_older(root: &Path, newest: u64, keep: usize) -> Result<(), Error> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let epoch = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
    let mut epochs: Vec<u64> = entries.filter_map(epoch).filter(|n| *n <= newest).collect();
    epochs.sort_unstable();
    epochs.truncate(epochs.len().saturating_sub(keep));
    for epoch in epochs {
        let path = epoch_folder(root, epoch);
        let fail = |source| regatta_train::Error::Write { path: path.clone(), source };
        std::fs::remove_dir_all(&path).map_err(fail)?;
    }
    Ok(())
}
