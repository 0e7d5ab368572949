//! A file of scores: CSV, TSV or Parquet, a row for each example.

use std::path::{Path, PathBuf};

use regatta_predict::Error as PredictError;
use regatta_predict::files::Sheet;
use regatta_rec::zoo::Evaluation;
use regatta_rec::{Config, Error};
use regatta_tensor::Tensor;
use regatta_train::Error as TrainError;
use regatta_train::observe::{Event, Observer};

/// Makes an evaluation one whose scores can be written: all of them, in the order of the data.
pub(super) fn prepare(config: &mut Config) -> Result<(), Error> {
    let epochs = &config.runner.infer_epochs;
    if epochs.end - epochs.start != 1 {
        return Err(Error::Evaluation(format!(
            "--out takes the scores of one epoch, but epochs {} to {} are evaluated: set \
             runner.infer_start_epoch and runner.infer_end_epoch",
            epochs.start,
            epochs.end.saturating_sub(1)
        )));
    }
    if config.model.evaluation == Evaluation::Analogy {
        let name = config.model.name;
        return Err(Error::Evaluation(format!(
            "model {name} is judged by questions and scores no examples: leave out --out"
        )));
    }
    config.runner.test = config.runner.test.in_order();
    Ok(())
}

/// Runs an evaluation, and writes its scores if a file for them is named.
pub(super) fn written<R>(
    path: Option<&Path>,
    observer: &mut dyn Observer,
    evaluate: impl FnOnce(&mut dyn Observer) -> Result<R, Error>,
) -> Result<R, Error> {
    let Some(path) = path else { return evaluate(observer) };
    let (mut file, mut problem) = (ScoreFile::create(path)?, None);
    let mut keep = |event: &Event<'_>| {
        if let (Event::Scores { examples, heads }, None) = (event, &problem) {
            problem = file.write(*examples, &[], heads).err();
        }
        observer.event(event);
    };
    let report = evaluate(&mut keep)?;
    problem.map_or(Ok(()), Err)?;
    observer.event(&Event::Note(&file.finish()?));
    Ok(report)
}

/// The file of one of several workers.
pub(super) fn part(path: &Path, worker: usize, workers: usize) -> PathBuf {
    match workers {
        1 => path.to_path_buf(),
        _ => PathBuf::from(format!("{}.{worker}", path.display())),
    }
}

/// The file of a run's scores.
pub(super) struct ScoreFile {
    path: PathBuf,
    sheet: Sheet,
}

impl ScoreFile {
    pub(super) fn create(path: &Path) -> Result<ScoreFile, Error> {
        let sheet = Sheet::create(path).map_err(|e| failed(path, e))?;
        Ok(ScoreFile { path: path.to_path_buf(), sheet })
    }

    /// Writes a batch: columns of the input, then outputs by name, each with the values of all
    /// examples. The columns of an output with several values are numbered.
    pub(super) fn write(
        &mut self,
        examples: usize,
        kept: &[(&str, Vec<String>)],
        outputs: &[(&str, &Tensor)],
    ) -> Result<(), Error> {
        let mut columns = Vec::new();
        for (name, values) in outputs {
            let (values, width) = (values.f32(), values.numel() / examples.max(1));
            for i in 0..width {
                let name = if width == 1 { name.to_string() } else { format!("{name}.{i}") };
                columns.push((name, values.iter().skip(i).step_by(width).copied().collect()));
            }
        }
        self.sheet.write(kept, &columns).map_err(|e| failed(&self.path, e))
    }

    /// Closes the file; what was written, in words.
    pub(super) fn finish(self) -> Result<String, Error> {
        let path = self.path;
        let rows = self.sheet.finish().map_err(|e| failed(&path, e))?;
        Ok(format!("{rows} scores written to {}", path.display()))
    }
}

fn failed(path: &Path, error: PredictError) -> Error {
    match error {
        PredictError::Write { path, source } => TrainError::Write { path, source }.into(),
        other => Error::key(format!("--out {}", path.display()), other.to_string()),
    }
}
