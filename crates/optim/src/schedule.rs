//! Learning-rate schedules: a base rate and a step number go in, the rate of that step comes out.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::Check;

/// How the learning rate changes with the steps; the formulas of Paddle's `fluid.layers.*_decay`.
///
/// Steps count from 0. `t` below is `step / decay_steps`, rounded down if `staircase`. In
/// configuration files a map with the name under `schedule`, for instance
/// `{schedule: exponential, decay_steps: 1000, decay_rate: 0.9}`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "schedule", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Schedule {
    /// `base`
    #[default]
    Constant,
    /// `base * decay_rate^t`
    Exponential {
        /// Steps until one factor of `decay_rate` is reached.
        decay_steps: u64,
        /// The factor.
        decay_rate: f64,
        /// Fall in stairs instead of smoothly.
        #[serde(default)]
        staircase: bool,
    },
    /// `base * exp(-decay_rate * t)`
    NaturalExp {
        /// Steps until one factor of `exp(-decay_rate)` is reached.
        decay_steps: u64,
        /// The exponent.
        decay_rate: f64,
        /// Fall in stairs instead of smoothly.
        #[serde(default)]
        staircase: bool,
    },
    /// `base / (1 + decay_rate * t)`
    InverseTime {
        /// Steps after which the divisor has grown by `decay_rate`.
        decay_steps: u64,
        /// Growth of the divisor.
        decay_rate: f64,
        /// Fall in stairs instead of smoothly.
        #[serde(default)]
        staircase: bool,
    },
    /// `(base - end_lr) * (1 - t)^power + end_lr`, with `t` at most 1; if `cycle`, `decay_steps` is
    /// stretched to its next multiple instead, and the rate jumps up again.
    Polynomial {
        /// Steps until `end_lr` is reached.
        decay_steps: u64,
        /// The rate at the end.
        #[serde(default = "default_end_lr")]
        end_lr: f64,
        /// 1 is a straight line.
        #[serde(default = "default_power")]
        power: f64,
        /// Start again after the end.
        #[serde(default)]
        cycle: bool,
    },
    /// `values[i]` for the first `i` with `step < boundaries[i]`, else the last value. The base
    /// rate plays no part.
    Piecewise {
        /// Steps at which the next value begins, rising.
        boundaries: Vec<u64>,
        /// One rate more than there are boundaries.
        values: Vec<f64>,
    },
    /// `base * 0.5 * (cos(epoch * pi / epochs) + 1)` with `epoch = floor(step / step_each_epoch)`.
    /// As in Paddle the cosine rises again after `epochs`.
    Cosine {
        /// Steps that make one epoch.
        step_each_epoch: u64,
        /// Epochs until the rate is zero.
        epochs: u64,
    },
    /// `base * d_model^-0.5 * min(n^-0.5, n * warmup_steps^-1.5)` with `n = step + 1`, as Paddle's
    /// counter of this schedule begins with 1.
    Noam {
        /// Width of the model.
        d_model: u64,
        /// The step at which the rate is highest.
        warmup_steps: u64,
    },
    /// From `start_lr` to `end_lr` in a straight line, then the inner schedule, whose steps have
    /// been counting all the while.
    LinearWarmup {
        /// What follows the warm-up.
        #[serde(default)]
        inner: Box<Schedule>,
        /// Length of the warm-up.
        warmup_steps: u64,
        /// The rate of step 0.
        start_lr: f64,
        /// The rate that the line reaches at `warmup_steps`.
        end_lr: f64,
    },
}

fn default_end_lr() -> f64 {
    1e-4
}

fn default_power() -> f64 {
    1.0
}

impl Schedule {
    /// The learning rate of a step, computed in `f64`.
    ///
    /// # Panics
    /// Possibly, if [`validate`](Schedule::validate) has not accepted the schedule.
    pub fn lr(&self, base: f64, step: u64) -> f32 {
        self.lr_f64(base, step) as f32
    }

    fn lr_f64(&self, base: f64, step: u64) -> f64 {
        match *self {
            Schedule::Constant => base,
            Schedule::Exponential { decay_steps, decay_rate, staircase } => {
                base * decay_rate.powf(elapsed(step, decay_steps, staircase))
            }
            Schedule::NaturalExp { decay_steps, decay_rate, staircase } => {
                base * (-decay_rate * elapsed(step, decay_steps, staircase)).exp()
            }
            Schedule::InverseTime { decay_steps, decay_rate, staircase } => {
                base / (1.0 + decay_rate * elapsed(step, decay_steps, staircase))
            }
            Schedule::Polynomial { decay_steps, end_lr, power, cycle } => {
                let cycles = if cycle { step.div_ceil(decay_steps).max(1) } else { 1 };
                let whole = decay_steps as f64 * cycles as f64;
                let t = (step as f64 / whole).min(1.0);
                (base - end_lr) * (1.0 - t).powf(power) + end_lr
            }
            Schedule::Piecewise { ref boundaries, ref values } => {
                values[boundaries.partition_point(|&boundary| boundary <= step)]
            }
            Schedule::Cosine { step_each_epoch, epochs } => {
                let epoch = (step / step_each_epoch) as f64;
                base * 0.5 * ((epoch * PI / epochs as f64).cos() + 1.0)
            }
            Schedule::Noam { d_model, warmup_steps } => {
                let n = step as f64 + 1.0;
                let rising = n * (warmup_steps as f64).powf(-1.5);
                base * (d_model as f64).powf(-0.5) * n.powf(-0.5).min(rising)
            }
            Schedule::LinearWarmup { ref inner, warmup_steps, start_lr, end_lr } => {
                if step < warmup_steps {
                    start_lr + (end_lr - start_lr) * step as f64 / warmup_steps as f64
                } else {
                    inner.lr_f64(base, step)
                }
            }
        }
    }

    /// Checks the base rate and every field; a schedule that passes gives a finite rate, not below
    /// zero, at every step.
    ///
    /// # Errors
    /// An [`Error`] that names the schedule and the field.
    pub fn validate(&self, base: f64) -> Result<(), Error> {
        let check = Check { of: self.name() };
        check.non_negative("learning_rate", base)?;
        match *self {
            Schedule::Constant => Ok(()),
            Schedule::Exponential { decay_steps, decay_rate, .. } => {
                check.at_least_one("decay_steps", decay_steps)?;
                check.decay_or_one("decay_rate", decay_rate)
            }
            Schedule::NaturalExp { decay_steps, decay_rate, .. }
            | Schedule::InverseTime { decay_steps, decay_rate, .. } => {
                check.at_least_one("decay_steps", decay_steps)?;
                check.non_negative("decay_rate", decay_rate)
            }
            Schedule::Polynomial { decay_steps, end_lr, power, .. } => {
                check.at_least_one("decay_steps", decay_steps)?;
                check.non_negative("end_lr", end_lr)?;
                check.positive("power", power)
            }
            Schedule::Piecewise { ref boundaries, ref values } => {
                for pair in boundaries.windows(2) {
                    check.rising("boundaries", pair[0] as f64, pair[1] as f64)?;
                }
                let (actual, expected) = (values.len(), boundaries.len() + 1);
                if actual != expected {
                    return Err(Error::WrongCount {
                        of: check.of,
                        field: "values",
                        actual,
                        expected,
                    });
                }
                values.iter().try_for_each(|&value| check.non_negative("values", value))
            }
            Schedule::Cosine { step_each_epoch, epochs } => {
                check.at_least_one("step_each_epoch", step_each_epoch)?;
                check.at_least_one("epochs", epochs)
            }
            Schedule::Noam { d_model, warmup_steps } => {
                check.at_least_one("d_model", d_model)?;
                check.at_least_one("warmup_steps", warmup_steps)
            }
            Schedule::LinearWarmup { ref inner, start_lr, end_lr, .. } => {
                check.non_negative("start_lr", start_lr)?;
                check.non_negative("end_lr", end_lr)?;
                inner.validate(base)
            }
        }
    }

    /// The name in configuration files.
    pub fn name(&self) -> &'static str {
        match self {
            Schedule::Constant => "constant",
            Schedule::Exponential { .. } => "exponential",
            Schedule::NaturalExp { .. } => "natural_exp",
            Schedule::InverseTime { .. } => "inverse_time",
            Schedule::Polynomial { .. } => "polynomial",
            Schedule::Piecewise { .. } => "piecewise",
            Schedule::Cosine { .. } => "cosine",
            Schedule::Noam { .. } => "noam",
            Schedule::LinearWarmup { .. } => "linear_warmup",
        }
    }
}

/// `step / decay_steps`, rounded down in stairs.
fn elapsed(step: u64, decay_steps: u64, staircase: bool) -> f64 {
    if staircase { (step / decay_steps) as f64 } else { step as f64 / decay_steps as f64 }
}
