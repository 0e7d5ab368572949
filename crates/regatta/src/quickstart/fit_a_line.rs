//! Linear regression on 13 features, as in the first chapter of Paddle's book.

use std::fs;
use std::path::{Path, PathBuf};

use regatta_data::Rng;
use regatta_exec::{Executor, Options as ExecOptions, Scope, run_startup};
use regatta_ir::{Act, Programs};
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, Optimizer, clone_for_test, minimize};
use regatta_tensor::{DType, Tensor, Value};

use super::Model;
use crate::io;

/// Features of an example; a row of a table has the price behind them.
pub const FEATURES: usize = 13;

/// A run counts as successful below this loss, as in Paddle's sample.
pub const GOAL: f32 = 10.0;

/// A table that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A line is not a row.
    #[error("{}:{line}: expected 14 numbers, found {found}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is there instead.
        found: String,
    },
    /// There is nothing to learn from, or nothing to test with.
    #[error(
        "{}: {rows} rows are too few: at least 2 are needed, to train and to test",
        path.display()
    )]
    TooFew {
        /// The file.
        path: PathBuf,
        /// Rows found.
        rows: usize,
    },
}

/// Scaled features and prices, row by row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Examples {
    /// `FEATURES` numbers per example.
    pub x: Vec<f32>,
    /// One price per example.
    pub y: Vec<f32>,
}

impl Examples {
    /// Number of examples.
    pub fn len(&self) -> usize {
        self.y.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.y.is_empty()
    }

    /// The rows of the given indices as a batch.
    fn batch(&self, rows: impl ExactSizeIterator<Item = usize> + Clone) -> (Value, Value) {
        let n = rows.len();
        let features = |row| &self.x[row * FEATURES..][..FEATURES];
        let x = rows.clone().flat_map(features).copied().collect();
        let y = rows.map(|row| self.y[row]).collect();
        let tensor =
            |shape, data| Tensor::from_f32(shape, data).expect("as many as the shape holds");
        (tensor(&[n, FEATURES], x).into(), tensor(&[n, 1], y).into())
    }
}

/// The first 80 % of a table to train, the rest to test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Housing {
    /// To learn from.
    pub train: Examples,
    /// To be judged by.
    pub test: Examples,
}

/// What the built-in prices are made of: the price over the whole range of a feature. A perfect fit
/// finds these again.
pub const WEIGHTS: [f32; FEATURES] =
    [-9.0, 4.5, -1.0, 3.0, -7.5, 12.0, 1.5, -8.0, 6.5, -5.0, -6.0, 3.5, -11.0];

/// The average built-in price.
pub const BIAS: f32 = 22.5;

/// Smallest and largest value of the built-in features, after those of the Boston housing table.
const RANGES: [(f32, f32); FEATURES] = [
    (0.0, 89.0),
    (0.0, 100.0),
    (0.5, 27.7),
    (0.0, 1.0),
    (0.39, 0.87),
    (3.6, 8.8),
    (2.9, 100.0),
    (1.1, 12.1),
    (1.0, 24.0),
    (187.0, 711.0),
    (12.6, 22.0),
    (0.3, 396.9),
    (1.7, 38.0),
];

impl Housing {
    /// The built-in table: 506 rows with prices of 5 to 50 from [`WEIGHTS`], with a noise that no
    /// model can learn (its variance is 4).
    pub fn synthetic(seed: u64) -> Housing {
        let row = |i: u64| {
            let mut rng = Rng::new(seed, &[i]);
            let mut row = [0.0; FEATURES + 1];
            let mut price = BIAS;
            for ((value, (low, high)), weight) in row.iter_mut().zip(RANGES).zip(WEIGHTS) {
                let unit = rng.unit() as f32;
                *value = low + unit * (high - low);
                price += weight * (unit - 0.5);
            }
            row[FEATURES] = (price + 2.0 * rng.bell() as f32).clamp(5.0, 50.0);
            row
        };
        Housing::from_rows((0..506).map(row).collect())
    }

    /// A table of 14 columns with blanks between them, such as the UCI housing file.
    ///
    /// # Errors
    /// If it cannot be read, a line is malformed (named with its number), or it is too short.
    pub fn read(path: impl AsRef<Path>) -> Result<Housing, DataError> {
        let path = path.as_ref().to_path_buf();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(DataError::Io { path, source }),
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut rows = Vec::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match parse_row(line) {
                Ok(row) => rows.push(row),
                Err(found) => return Err(DataError::Line { path, line: i + 1, found }),
            }
        }
        if rows.len() < 2 {
            return Err(DataError::TooFew { path, rows: rows.len() });
        }
        Ok(Housing::from_rows(rows))
    }

    /// Scales the features as Paddle does, `(x - mean) / (max - min)` over all rows, and splits.
    fn from_rows(mut rows: Vec<[f32; FEATURES + 1]>) -> Housing {
        for feature in 0..FEATURES {
            let column = || rows.iter().map(|row| f64::from(row[feature]));
            let mean = column().sum::<f64>() / rows.len() as f64;
            let (min, max) = (column().fold(f64::MAX, f64::min), column().fold(f64::MIN, f64::max));
            // A feature that is the same everywhere says nothing.
            let scale = if max > min { 1.0 / (max - min) } else { 0.0 };
            for row in &mut rows {
                row[feature] = ((f64::from(row[feature]) - mean) * scale) as f32;
            }
        }
        let (train, test) = rows.split_at(rows.len() * 8 / 10);
        let examples = |rows: &[[f32; FEATURES + 1]]| Examples {
            x: rows.iter().flat_map(|row| &row[..FEATURES]).copied().collect(),
            y: rows.iter().map(|row| row[FEATURES]).collect(),
        };
        Housing { train: examples(train), test: examples(test) }
    }
}

/// The numbers of a line, or what it holds instead.
fn parse_row(line: &str) -> Result<[f32; FEATURES + 1], String> {
    let mut row = [0.0; FEATURES + 1];
    let mut count = 0;
    for word in line.split_whitespace() {
        match word.parse::<f32>() {
            Ok(x) if x.is_finite() => row.get_mut(count).map(|value| *value = x),
            _ => return Err(format!("'{word}' in column {}", count + 1)),
        };
        count += 1;
    }
    if count == row.len() { Ok(row) } else { Err(count.to_string()) }
}

/// `y = x w + b`, and the mean of the squared errors.
///
/// # Errors
/// None, unless this file is wrong.
pub fn model(seed: u64) -> Result<Model, regatta_ir::Error> {
    let mut b = regatta_ops::builder(seed);
    let x = b.data("x", DType::F32, &[-1, FEATURES as i64])?;
    let prediction = b.fc(&x, 1, Act::None)?;
    let y = b.data("y", DType::F32, &[-1, 1])?;
    let cost = b.square_error_cost(&prediction, &y)?;
    let loss = b.mean(&cost)?;
    let (loss, prediction) = (loss.name().into(), prediction.name().into());
    Ok(Model { programs: b.finish(), loss, prediction })
}

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Examples per step.
    pub batch_size: usize,
    /// Step length of gradient descent.
    pub learning_rate: f64,
    /// Threads that share a batch.
    pub threads: usize,
    /// Decides the initial weights and the order of the examples.
    pub seed: u64,
}

/// The gradient descent of the sample.
pub fn optimizer(learning_rate: f64) -> Optimizer {
    Optimizer::new(Rule::Sgd(Sgd {}), learning_rate)
}

/// A model in training.
pub struct FitALine {
    model: Model,
    programs: Programs,
    train: Executor,
    test: Executor,
    scope: Scope,
    data: Housing,
    options: Options,
}

impl FitALine {
    /// A model with its initial weights.
    ///
    /// # Errors
    /// If the options make no sense.
    pub fn new(data: Housing, options: &Options) -> Result<FitALine, regatta_exec::Error> {
        let model = model(options.seed)?;
        let optimizer = optimizer(options.learning_rate);
        let programs =
            minimize(&model.programs, &model.loss, &optimizer, &Backward::default())?.programs;
        let mut scope = Scope::new();
        run_startup(&programs.startup, &mut scope)?;
        let threads = ExecOptions { threads: options.threads, ..ExecOptions::default() };
        let train = Executor::new(programs.main.clone(), threads)?;
        let test = Executor::new(clone_for_test(&programs.main)?, ExecOptions::default())?;
        Ok(FitALine { model, programs, train, test, scope, data, options: options.clone() })
    }

    /// The rows of each batch of a data pass, in an order of its own. The last batch may be
    /// smaller.
    pub fn batches(&self, pass: usize) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.data.train.len()).collect();
        Rng::new(self.options.seed, &[pass as u64]).shuffle(&mut order);
        order.chunks(self.options.batch_size.max(1)).map(<[usize]>::to_vec).collect()
    }

    /// One step on the given training rows; returns their mean squared error before it.
    ///
    /// # Errors
    /// None for rows of the table.
    pub fn train_batch(&mut self, rows: &[usize]) -> Result<f32, regatta_exec::Error> {
        let (x, y) = self.data.train.batch(rows.iter().copied());
        let feeds = [("x", &x), ("y", &y)];
        Ok(self.train.run(&mut self.scope, &feeds, &[&self.model.loss])?[0].f32()[0])
    }

    /// The mean squared error of the test rows, and the predictions that it comes from.
    ///
    /// # Errors
    /// None.
    pub fn test(&mut self) -> Result<(f32, Vec<f32>), regatta_exec::Error> {
        let (x, y) = self.data.test.batch(0..self.data.test.len());
        let fetch = [self.model.loss.as_str(), &self.model.prediction];
        let fetched = self.test.run(&mut self.scope, &[("x", &x), ("y", &y)], &fetch)?;
        Ok((fetched[0].f32()[0], fetched[1].f32().to_vec()))
    }

    /// The table.
    pub fn data(&self) -> &Housing {
        &self.data
    }

    /// The training program and its startup program.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The weights and the bias.
    pub fn weights(&self) -> Vec<f32> {
        let params = self.programs.main.param_names();
        params
            .iter()
            .filter_map(|name| self.scope.get(name))
            .flat_map(|t| t.f32())
            .copied()
            .collect()
    }

    /// Saves `dir/persistables.safetensors`, to train on, and `dir/inference/`, to predict with.
    /// The saved model takes scaled features.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<(), io::Error> {
        let dir = dir.as_ref();
        io::save_persistables(&self.programs.main, &self.scope, dir)?;
        let (main, fetch) = (&self.programs.main, self.model.prediction.as_str());
        io::save_inference_model(dir.join("inference"), main, &["x"], &[fetch], &self.scope)
    }

    /// Loads the persistables that [`FitALine::save`] wrote.
    ///
    /// # Errors
    /// If they cannot be read or are of another model.
    pub fn load(&mut self, dir: impl AsRef<Path>) -> Result<(), io::Error> {
        io::load_persistables(&self.programs.main, &mut self.scope, dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_scaled_as_in_paddle() {
        let data = Housing::synthetic(1);
        assert_eq!((data.train.len(), data.test.len()), (404, 102));
        let all: Vec<f32> = data.train.x.iter().chain(&data.test.x).copied().collect();
        for feature in 0..FEATURES {
            let column = || all.iter().skip(feature).step_by(FEATURES).copied();
            let (min, max) = (column().fold(1.0, f32::min), column().fold(-1.0, f32::max));
            assert!((max - min - 1.0).abs() < 1e-5, "feature {feature}: {min} to {max}");
            assert!(column().sum::<f32>().abs() < 1e-3);
        }
        let prices = || data.train.y.iter().chain(&data.test.y).copied();
        assert!(prices().all(|y| (5.0..=50.0).contains(&y)));
        let mean = prices().sum::<f32>() / 506.0;
        assert!((mean - BIAS).abs() < 1.0, "{mean}");
    }

    #[test]
    fn a_constant_feature_becomes_zero() {
        let mut rows = vec![[1.0; FEATURES + 1]; 10];
        rows[3][0] = 2.0;
        let data = Housing::from_rows(rows);
        assert_eq!(data.train.x[0], -0.1);
        assert!(data.train.x.iter().skip(1).step_by(FEATURES).all(|x| *x == 0.0));
    }

    #[test]
    fn rows_that_are_none() {
        let numbers = |n: usize| vec!["1.5"; n].join("  ");
        assert!(parse_row(&numbers(14)).is_ok());
        assert_eq!(parse_row(&numbers(13)).unwrap_err(), "13");
        assert_eq!(parse_row(&numbers(15)).unwrap_err(), "15");
        let with_word = numbers(14).replacen("1.5", "1,5", 1);
        assert_eq!(parse_row(&with_word).unwrap_err(), "'1,5' in column 1");
        let with_nan = format!("{} nan", numbers(13));
        assert_eq!(parse_row(&with_nan).unwrap_err(), "'nan' in column 14");
    }

    #[test]
    fn every_pass_sees_every_row_once() {
        let options = Options { batch_size: 20, learning_rate: 0.01, threads: 1, seed: 3 };
        let fit = FitALine::new(Housing::synthetic(3), &options).unwrap();
        let mut rows = fit.batches(1).concat();
        assert_ne!(rows, fit.batches(2).concat());
        rows.sort();
        assert_eq!(rows, (0..404).collect::<Vec<_>>());
    }
}
