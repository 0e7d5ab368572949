//! A file of scores: CSV, a line for each example.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

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
    let (mut file, mut failed) = (ScoreFile::create(path)?, None);
    let mut keep = |event: &Event<'_>| {
        if let (Event::Scores { examples, heads }, None) = (event, &failed) {
            failed = file.write(*examples, heads).err();
        }
        observer.event(event);
    };
    let report = evaluate(&mut keep)?;
    failed.map_or(Ok(()), Err)?;
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

pub(super) struct ScoreFile {
    path: PathBuf,
    file: BufWriter<File>,
    examples: u64,
}

impl ScoreFile {
    pub(super) fn create(path: &Path) -> Result<ScoreFile, Error> {
        match File::create(path) {
            Ok(file) => {
                Ok(ScoreFile { path: path.into(), file: BufWriter::new(file), examples: 0 })
            }
            Err(source) => Err(TrainError::Write { path: path.into(), source }.into()),
        }
    }

    /// Writes a batch: outputs by name, each with the values of all examples.
    pub(super) fn write(
        &mut self,
        examples: usize,
        outputs: &[(&str, &Tensor)],
    ) -> Result<(), Error> {
        self.write_lines(examples, outputs)
            .map_err(|source| TrainError::Write { path: self.path.clone(), source })?;
        self.examples += examples as u64;
        Ok(())
    }

    fn write_lines(&mut self, examples: usize, outputs: &[(&str, &Tensor)]) -> std::io::Result<()> {
        if self.examples == 0 && examples > 0 {
            writeln!(self.file, "{}", header(examples, outputs))?;
        }
        for example in 0..examples {
            let mut separator = "";
            for (_, values) in outputs {
                let width = values.numel() / examples;
                for x in &values.f32()[example * width..(example + 1) * width] {
                    write!(self.file, "{separator}{x}")?;
                    separator = ",";
                }
            }
            writeln!(self.file)?;
        }
        Ok(())
    }

    /// Closes the file; what was written, in words.
    pub(super) fn finish(self) -> Result<String, Error> {
        let path = self.path;
        match self.file.into_inner() {
            Ok(_) => Ok(format!("{} scores written to {}", self.examples, path.display())),
            Err(e) => Err(TrainError::Write { path, source: e.into_error() }.into()),
        }
    }
}

/// Names of the columns: those of the outputs, numbered where an output has several.
fn header(examples: usize, outputs: &[(&str, &Tensor)]) -> String {
    let mut names = Vec::new();
    for (name, values) in outputs {
        match values.numel() / examples {
            1 => names.push((*name).to_string()),
            width => names.extend((0..width).map(|i| format!("{name}.{i}"))),
        }
    }
    names.join(",")
}
