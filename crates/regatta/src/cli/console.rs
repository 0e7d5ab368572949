//! What a run shows: lines on standard output, a progress bar on a terminal, curves for
//! TensorBoard.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use regatta_rec::{Config, Error};
use regatta_train::observe::{Event, Interval, Observer};
use regatta_train::report::EpochReport;
use regatta_train::tensorboard::EventWriter;

#[expect(clippy::disallowed_methods, reason = "curves are drawn over the time of day")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Lines on standard output; on a terminal a bar on standard error instead of most of them.
pub(super) struct Console {
    bar: Option<ProgressBar>,
    drawn: Instant,
    /// Data passes of the run, as far as known.
    epochs: Option<u64>,
    /// Examples of earlier data passes.
    before: u64,
    /// Examples of a data pass, as far as known.
    total: Option<u64>,
    events: Option<EventWriter>,
    stages: bool,
    failed: Option<Error>,
}

impl Console {
    fn new(events: Option<EventWriter>, stages: bool) -> Console {
        let bar = io::stderr().is_terminal().then(ProgressBar::no_length);
        let (drawn, failed) = (Instant::now(), None);
        Console { bar, drawn, epochs: None, before: 0, total: None, events, stages, failed }
    }

    /// With curves in a folder and the details that the configuration asks for, if this process
    /// speaks for the job.
    pub(super) fn for_run(
        curves: Option<&Path>,
        config: &Config,
        speaks: bool,
    ) -> Result<Console, Error> {
        let events =
            curves.filter(|_| speaks).map(|dir| EventWriter::create(dir, now)).transpose()?;
        let console = Console::new(events, config.runner.dataset_debug);
        if speaks {
            console.line(config.to_string().trim_end());
        }
        Ok(console)
    }

    /// Reports if curves could not be written.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn line(&self, text: &str) {
        // Training continues when nobody reads its lines any more.
        let write = || {
            let _ = writeln!(io::stdout(), "{text}");
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn set_total(&mut self) {
        if let (Some(bar), Some(total), Some(epochs)) = (&self.bar, self.total, self.epochs) {
            // The whole run, so that what is left is the time until its end.
            bar.set_length(total * epochs);
            let template = "{prefix} {bar:30} {percent}%  {msg}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
        } else if let Some(bar) = &self.bar
            && let Ok(style) = ProgressStyle::with_template("{prefix} {pos} examples  {msg}")
        {
            bar.set_style(style);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let Some(bar) = &self.bar else {
            self.line(&interval.to_string());
            return self.curves(interval);
        };
        let loss = interval.loss.map(|x| format!(", loss {x:.4}")).unwrap_or_default();
        let metrics: String =
            interval.metrics.iter().map(|(n, v)| format!(", {n} {v:.4}")).collect();
        bar.set_message(format!("{:.0} examples/s{loss}{metrics}", interval.examples_per_sec()));
        self.curves(interval);
    }

    fn curves(&mut self, interval: &Interval) {
        let named: Vec<(String, f64)> = interval
            .loss
            .map(|x| ("loss".to_string(), f64::from(x)))
            .into_iter()
            .chain(interval.metrics.iter().cloned())
            .chain([("examples_per_sec".to_string(), interval.examples_per_sec())])
            .map(|(name, value)| (format!("batch/{name}"), value))
            .collect();
        self.write_curves(interval.step, &named);
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.line(&report.to_string());
        if self.stages {
            let stages: Vec<String> =
                report.stages.iter().map(|(name, s)| format!("{name} {s:.4} s")).collect();
            self.line(&format!("epoch: {} stages: {}", report.epoch, stages.join(", ")));
        }
        let named = epoch_values("epoch", report);
        self.write_curves(report.epoch, &named);
        if let Some(validation) = report.validation.as_deref() {
            self.line(&format!("validation: {validation}"));
            self.write_curves(report.epoch, &epoch_values("validation", validation));
        }
        self.total = Some(report.examples);
        self.before += report.examples;
        self.set_total();
    }

    fn write_curves(&mut self, step: u64, values: &[(String, f64)]) {
        let Some(events) = &mut self.events else { return };
        let values: Vec<(&str, f64)> = values.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let written = events.scalars(step, &values).and_then(|()| events.flush());
        if let Err(error) = written {
            self.failed.get_or_insert(error.into());
            self.events = None;
        }
    }
}

/// The numbers of a data pass, for curves of that group.
fn epoch_values(group: &str, report: &EpochReport) -> Vec<(String, f64)> {
    [("loss", report.loss), ("auc", report.auc)]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_string(), value?)))
        .chain(report.metrics.iter().map(|(n, v)| (n.clone(), *v)))
        .chain([("examples_per_sec".to_string(), report.examples_per_sec)])
        .map(|(name, value)| (format!("{group}/{name}"), value))
        .collect()
}

impl Observer for Console {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Begin { model, parameters, epochs, examples } => {
                self.line(&format!("model {model}, {parameters} parameters"));
                (self.epochs, self.total) = (*epochs, *examples);
                self.set_total();
            }
            Event::Batch(batch) => {
                if let Some(bar) = &self.bar
                    && self.drawn.elapsed() > Duration::from_millis(100)
                {
                    let of = self.epochs.map(|n| format!("/{n}")).unwrap_or_default();
                    bar.set_prefix(format!("epoch {}{of}", batch.epoch + 1));
                    bar.set_position(self.before + batch.examples);
                    self.drawn = Instant::now();
                }
            }
            Event::Interval(interval) => self.interval(interval),
            Event::Epoch(report) => self.epoch(report),
            Event::BadLines(bad) => {
                self.line(&format!("skipped {} malformed lines, among them:", bad.count));
                bad.first.iter().for_each(|line| self.line(&format!("  {line}")));
            }
            Event::Saved(path) => self.line(&format!("saved {}", path.display())),
            Event::Checkpoint(report) => self.line(&report.to_string()),
            Event::Note(text) => self.line(&format!("note: {text}")),
            _ => {}
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
