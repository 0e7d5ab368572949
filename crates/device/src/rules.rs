//! Update rules on devices: from a rule of `regatta-optim` to launches of `kernels/rules.cl` and
//! `kernels/table_rules.cl`.

use regatta_optim::table_rule::{AdagradConfig, AdamConfig};
use regatta_optim::{Adam, AdamW, Rule, SharedState, TableRule};

use crate::rows::ITEMS;
use crate::{Arena, Arg, Buffer, Device, Error, Grid, Queue};

/// One step of a rule: its kernels, and the scalars that follow from its configuration, the
/// learning rate and what all rows share in this step.
#[derive(Debug, Clone)]
pub struct Step {
    name: &'static str,
    /// `None`: the rule is for rows only.
    dense: Option<&'static str>,
    rows: &'static str,
    n_states: usize,
    scalars: Vec<Arg<'static>>,
    /// One item per row instead of one per weight.
    by_row: bool,
    /// The step changes nothing.
    rests: bool,
}

/// A rule without a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the optimizer '{0}' has no kernel for devices: those that treat every weight alone have one \
     (sgd, momentum, adagrad, adam, adamw, rmsprop, adadelta, ftrl, adam_d2sum, sum, summary)"
)]
pub struct NoKernel(pub &'static str);

macro_rules! step {
    ($name:literal, $n_states:literal, [$($scalar:expr),* $(,)?]) => {
        Step {
            name: $name,
            dense: Some(concat!($name, "_dense")),
            rows: concat!($name, "_rows"),
            n_states: $n_states,
            scalars: vec![$($scalar),*],
            by_row: false,
            rests: false,
        }
    };
}

impl Step {
    /// The step of a rule with this learning rate. `shared` is what rows share before the step;
    /// the caller advances it afterwards, as on the CPU.
    ///
    /// # Errors
    /// [`NoKernel`] for rules with norms over a parameter.
    pub fn new(rule: &Rule, lr: f32, shared: &SharedState) -> Result<Step, NoKernel> {
        let rate = Arg::F32(lr);
        Ok(match *rule {
            Rule::Sgd(_) => step!("sgd", 0, [rate]),
            Rule::Sum(_) => step!("sum", 0, []),
            Rule::Summary(r) => step!("summary", 0, [Arg::F32(r.decay_rate)]),
            Rule::Momentum(r) => {
                step!("momentum", 1, [rate, Arg::F32(r.mu), Arg::I32(r.nesterov.into())])
            }
            Rule::Adagrad(r) => step!("adagrad", 1, [rate, Arg::F32(r.epsilon)]),
            Rule::Adam(adam) => adam_step(&adam, lr, 1.0, shared),
            Rule::AdamW(AdamW { beta1, beta2, epsilon, weight_decay }) => {
                let keep = 1.0 - lr * weight_decay;
                adam_step(&Adam { beta1, beta2, epsilon }, lr, keep, shared)
            }
            Rule::RmsProp(r) => {
                let [rho, epsilon, mu] = [r.rho, r.epsilon, r.momentum].map(Arg::F32);
                step!("rmsprop", 3, [rate, rho, epsilon, mu, Arg::I32(r.centered.into())])
            }
            Rule::Adadelta(r) => {
                step!("adadelta", 2, [rate, Arg::F32(r.rho), Arg::F32(r.epsilon)])
            }
            Rule::Ftrl(r) => {
                let [l1, l2] = [r.l1 + 1e-10, r.l2 + 1e-10].map(Arg::F32);
                let step = step!("ftrl", 2, [rate, l1, l2, Arg::F32(-r.lr_power)]);
                Step { rests: lr == 0.0, ..step }
            }
            Rule::AdamD2Sum(r) => {
                let decays = [r.moment_decay_rate, r.ada_decay_rate, r.epsilon].map(Arg::F32);
                let [moment, ada, epsilon] = decays;
                step!("adam_d2sum", 3, [rate, moment, ada, epsilon])
            }
            _ => return Err(NoKernel(rule.name())),
        })
    }

    /// The step of a rule for rows of a table, for gradients of one impression.
    pub fn of_table(rule: &TableRule, lr: f32) -> Step {
        let rate = Arg::F32(lr);
        let rows = |rows, by_row, scalars: Vec<Arg<'static>>| Step {
            name: rule.name(),
            dense: None,
            rows,
            n_states: 0,
            scalars,
            by_row,
            rests: false,
        };
        let adagrad = |c: &AdagradConfig| {
            let [low, high] = bounds(c.weight_bounds);
            vec![rate, Arg::F32(c.initial_g2sum), low, high]
        };
        let adam = |c: &AdamConfig| {
            let [low, high] = bounds(c.weight_bounds);
            let [beta1, beta2, epsilon] = [c.beta1, c.beta2, c.epsilon].map(Arg::F32);
            vec![rate, beta1, beta2, epsilon, low, high]
        };
        let with = |mut scalars: Vec<Arg<'static>>, after: i32| {
            scalars.push(Arg::I32(after));
            scalars
        };
        match rule {
            TableRule::Naive(r) => {
                let [low, high] = bounds(r.weight_bounds);
                rows("naive_rows", false, vec![rate, low, high])
            }
            TableRule::StdAdagrad(r) => rows("std_adagrad_rows", false, adagrad(&r.0)),
            TableRule::Adagrad(r) => rows("row_adagrad_rows", true, with(adagrad(&r.0), 0)),
            TableRule::AdagradV2(r) => rows("row_adagrad_rows", true, with(adagrad(&r.0), 1)),
            TableRule::Adam(r) => rows("row_adam_rows", true, adam(&r.0)),
            TableRule::SharedAdam(r) => rows("shared_adam_rows", true, adam(&r.0)),
            _ => unreachable!("the rules above are all that regatta-optim has"),
        }
    }

    /// The kernel for dense parameters, if there is one: `(w, g, states.., n, scalars..)`.
    pub fn dense_kernel(&self) -> Option<&'static str> {
        self.dense
    }

    /// The kernel for rows: `(arena, stride, slots, g, rows, dim, scalars..)`.
    pub fn rows_kernel(&self) -> &'static str {
        self.rows
    }

    /// How many states a dense parameter has in buffers of their own.
    pub fn n_states(&self) -> usize {
        self.n_states
    }

    /// The last arguments of both kernels.
    pub fn scalars(&self) -> &[Arg<'static>] {
        &self.scalars
    }

    /// Whether the step leaves everything as it is, so that nothing is to be launched.
    pub fn rests(&self) -> bool {
        self.rests
    }
}

/// Adam's corrections of the step are computed here, once, as `optim/src/adam.rs` does.
fn adam_step(adam: &Adam, lr: f32, keep: f32, shared: &SharedState) -> Step {
    let mut shared = *shared;
    let (beta1_pow, beta2_pow) = match shared.values_mut() {
        &mut [beta1_pow, beta2_pow] => (beta1_pow, beta2_pow),
        _ => (adam.beta1, adam.beta2),
    };
    let root = (1.0 - beta2_pow).sqrt();
    let (lr, epsilon) = (lr * (root / (1.0 - beta1_pow)), adam.epsilon * root);
    let [lr, epsilon, keep] = [lr, epsilon, keep].map(Arg::F32);
    step!("adam", 2, [lr, epsilon, keep, Arg::F32(adam.beta1), Arg::F32(adam.beta2)])
}

fn bounds(bounds: Option<[f32; 2]>) -> [Arg<'static>; 2] {
    bounds.unwrap_or([f32::MIN, f32::MAX]).map(Arg::F32)
}

impl Device {
    /// Puts one step of a dense parameter of `n` weights on a queue; `states` are those per
    /// weight, in the order of the rule.
    ///
    /// # Errors
    /// If buffers are too small or too few, the rule is for rows only, or the driver refuses.
    pub fn update_dense(
        &self,
        queue: Queue,
        step: &Step,
        (w, g): (&Buffer, &Buffer),
        states: &[&Buffer],
        n: u64,
    ) -> Result<(), Error> {
        let what = || format!("an update by '{}'", step.name);
        let Some(name) = step.dense else {
            return Err(self.failed(what(), "it is a rule for rows of tables".into()));
        };
        if states.len() != step.n_states {
            let reason = format!("it has {} states, not {}", step.n_states, states.len());
            return Err(self.failed(what(), reason));
        }
        for buffer in [w, g].iter().chain(states) {
            self.check(buffer, 0, n * 4, &what())?;
        }
        if n == 0 || step.rests {
            return Ok(());
        }
        let mut args = vec![Arg::Buffer(w), Arg::Buffer(g)];
        args.extend(states.iter().map(|state| Arg::Buffer(state)));
        args.push(Arg::U64(n));
        args.extend(&step.scalars);
        self.launch(queue, &self.kernel(name)?, Grid::over(n, ITEMS), &args)
    }

    /// Puts one step of rows in an arena on a queue: row r of the packed gradients `g` moves the
    /// row in slot `slots[r]`. No slot may come twice.
    ///
    /// # Errors
    /// If buffers are too small, or the driver refuses.
    pub fn update_rows(
        &self,
        queue: Queue,
        step: &Step,
        arena: &Arena,
        slots: &Buffer,
        (g, rows): (&Buffer, u32),
    ) -> Result<(), Error> {
        let what = format!("an update of rows by '{}'", step.name);
        let Some(grid) = self.over_rows(&what, rows, arena.dim)? else { return Ok(()) };
        self.check(g, 0, u64::from(rows) * u64::from(arena.dim) * 4, &what)?;
        self.check(slots, 0, u64::from(rows) * 4, &what)?;
        if step.rests {
            return Ok(());
        }
        let grid = if step.by_row { Grid::over(rows.into(), ITEMS) } else { grid };
        let mut args = vec![
            Arg::Buffer(&arena.buffer),
            arena.stride_arg(),
            Arg::Buffer(slots),
            Arg::Buffer(g),
            Arg::U32(rows),
            Arg::U32(arena.dim),
        ];
        args.extend(&step.scalars);
        self.launch(queue, &self.kernel(step.rows)?, grid, &args)
    }
}
