//! Update ops, one kind per rule of `regatta-optim`, for dense and row-sparse gradients; and
//! `lr_schedule`, which writes the learning rate of the step.
//!
//! Row-sparse gradients of tables move the rows that they name. With `lazy = false` (Adam, AdamW)
//! rows that were named before move, too, as if the gradient were dense: those with anything in
//! their states, since the others would stay where they are.
//!
//! An update is left out, parameter and states untouched, if any of the flags in `Skip` is not 0:
//! the gradients overflowed, or are still being collected.

use regatta_ir::schema::{AttrDef, AttrKind, any, one};
use regatta_ir::{Attr, Error, Layout, Op, Schema, VarType};
use regatta_kernels::prefetch_row;
use regatta_optim::{
    Adadelta, Adagrad, Adam, AdamW, Ftrl, Kernel as UpdateKernel, Lamb, LarsMomentum, Momentum,
    Per, RmsProp, RowLoop, RowRule, RowUpdater, Rule, Schedule, Sgd, StateMut,
};
use regatta_tensor::{DType, RowSparse};

use crate::def::{no_samples, whole};
use crate::{Grad, Infer, Io, Kernel, OpDef, Spec};

/// Factor on the learning rate, from the parameter's own setting.
const LR_SCALE: AttrDef = ("lr_scale", AttrKind::Float(1.0));

/// A kind per rule: its attributes, and the way between a rule and an op.
macro_rules! rules {
    ($($kind:literal => $rule:ident { $($float:ident),* $(; $flag:ident)? } $($lazy:ident)?),*
        $(,)?) => {
        pub(crate) static DEFS: &[OpDef] = &[
            $(update_def($kind, &[LR_SCALE,
                $((stringify!($float), AttrKind::RequiredFloat),)*
                $((stringify!($flag), AttrKind::Bool(false)),)?
                $((stringify!($lazy), AttrKind::Bool(true)),)?]),)*
            LR_SCHEDULE,
        ];

        /// The op that applies a rule, without its variables.
        ///
        /// # Errors
        /// If the rule is one that programs cannot use.
        pub fn update_op(rule: &Rule) -> Result<Op, Error> {
            match rule {
                $(Rule::$rule(r) => {
                    let op = Op::new($kind);
                    $(let op = op.attr(stringify!($float), exact(r.$float));)*
                    $(let op = op.attr(stringify!($flag), r.$flag);)?
                    let _ = r;
                    Ok(op)
                })*
                other => Err(Error::Pass {
                    pass: "optimizer".into(),
                    reason: format!("{other:?} is not a rule for programs"),
                }),
            }
        }

        /// The rule that an op applies, or nothing if it is not an update.
        ///
        /// # Errors
        /// If an attribute is missing.
        pub fn update_rule(op: &Op) -> Result<Option<Rule>, Error> {
            Ok(match op.kind.as_str() {
                $($kind => Some(Rule::$rule($rule {
                    $($float: op.float(stringify!($float))? as f32,)*
                    $($flag: op.bool(stringify!($flag))?,)?
                })),)*
                _ => None,
            })
        }
    };
}

rules! {
    "sgd" => Sgd {},
    "momentum" => Momentum { mu; nesterov },
    "adagrad" => Adagrad { epsilon, initial_accumulator },
    "adam" => Adam { beta1, beta2, epsilon } lazy,
    "adamw" => AdamW { beta1, beta2, epsilon, weight_decay } lazy,
    "rmsprop" => RmsProp { rho, epsilon, momentum; centered },
    "adadelta" => Adadelta { rho, epsilon },
    "ftrl" => Ftrl { l1, l2, lr_power },
    "lamb" => Lamb { beta1, beta2, epsilon, weight_decay },
    "lars_momentum" => LarsMomentum { mu, coeff, weight_decay, epsilon },
}

fn rule_of(op: &Op) -> Result<Rule, Error> {
    Ok(update_rule(op)?.expect("only update ops have this kernel"))
}

/// The decimal that prints like the float: 0.9, not 0.8999999761581421.
fn exact(x: f32) -> Attr {
    Attr::Float(x.to_string().parse().expect("a printed float can be read"))
}

const fn update_def(kind: &'static str, attrs: &'static [AttrDef]) -> OpDef {
    OpDef {
        schema: Schema {
            kind,
            inputs: const {
                &[one("Param"), one("Grad"), one("LearningRate"), any("States"), any("Skip")]
            },
            outputs: const { &[one("ParamOut"), any("StatesOut")] },
            attrs,
        },
        infer,
        grad: Grad::None("an update is not differentiated"),
        kernel: update,
        batch: whole,
        samples: no_samples,
    }
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let param = i.floats("Param")?;
    let grad = i.ty("Grad");
    if grad.shape != param.shape || grad.dtype != DType::F32 || grad.layout == Layout::Ragged {
        return Err(i.wrong("Grad", &format!("the gradient of {param}")));
    }
    i.expect("LearningRate", &VarType::f32([1]))?;
    expect_flags(i)?;
    let rule = rule_of(i.op)?;
    rule.validate().map_err(|e| i.bad_attr("rule", e.to_string()))?;
    let n = param.numel().ok_or_else(|| i.wrong("Param", "f32 of known size"))?;
    let wanted = rule.states();
    let given = i.many("States");
    if given.len() != wanted.len() {
        let names: Vec<_> = wanted.iter().map(|s| s.name).collect();
        return Err(Error::Slot {
            op: i.op.kind.clone(),
            slot: "States".into(),
            reason: format!("holds {} variables, but takes {names:?}", given.len()),
        });
    }
    for (k, (have, want)) in given.iter().zip(&wanted).enumerate() {
        let len = want.len_for(n);
        if have.numel() != Some(len) {
            return Err(Error::Type {
                op: i.op.kind.clone(),
                slot: "States".into(),
                var: i.op.ins("States")[k].clone(),
                expected: format!("{len} floats ({})", want.name),
                actual: have.to_string(),
            });
        }
    }
    Ok(std::iter::once(param).chain(given).cloned().collect())
}

/// Checks that `Skip` holds flags only.
pub(super) fn expect_flags(i: &Infer<'_>) -> Result<(), Error> {
    let flag = VarType::f32([1]);
    match i.many("Skip").iter().position(|ty| *ty != flag) {
        Some(n) => Err(i.wrong_nth("Skip", n, &flag.to_string())),
        None => Ok(()),
    }
}

/// The positions of the flags among all inputs.
pub(super) fn flags(s: &Spec<'_>) -> std::ops::Range<usize> {
    let first = s.at("Skip").unwrap_or(0);
    first..first + s.op.ins("Skip").len()
}

/// Whether one of the flags is set. A flag that is NaN counts.
pub(super) fn skips(io: &Io<'_>, mut flags: std::ops::Range<usize>) -> bool {
    flags.any(|i| io.f32(i)[0] != 0.0)
}

fn update(s: &Spec<'_>) -> Result<Kernel, Error> {
    let rule = rule_of(s.op)?;
    let lr_scale = s.op.float("lr_scale")? as f32;
    let n_states = s.op.ins("States").len();
    // No rule for programs has states per row: those that rows share follow those per weight.
    let n_own = rule.states().iter().filter(|state| state.per == Per::Element).count();
    let flags = flags(s);
    // Only some rules can be anything but lazy.
    let is_lazy = s.op.bool("lazy").unwrap_or(true);
    let mut all = AllRows::default();
    Ok(Box::new(move |io, _| {
        if skips(io, flags.clone()) {
            return Ok(());
        }
        let lr = io.f32(2)[0] * lr_scale;
        let w = io.out_f32(0);
        if !io.is_rows(1) {
            let states = (0..n_states).map(|i| io.out_f32(1 + i)).collect();
            rule.update(lr, w, io.f32(1), states);
            return Ok(());
        }
        let states = (0..n_own).map(|i| io.out_f32(1 + i)).collect();
        let mut shared = rule.shared_state();
        let scalars: StateMut<'_> = (n_own..n_states).map(|i| io.out_f32(1 + i)).collect();
        let scalars = scalars.into_slices();
        let values = shared.values_mut().iter_mut();
        values.zip(&scalars).for_each(|(value, scalar)| *value = scalar[0]);
        let rows = LazyRows { w, grad: io.rows(1), states };
        match is_lazy {
            true => rule.run_rows(lr, &shared, rows),
            false => rule.run_rows(lr, &shared, all.with(rows, rule.moves_without_gradient())),
        }
        rule.advance(&mut shared);
        let values = shared.values_mut().iter();
        values.zip(scalars).for_each(|(value, scalar)| scalar[0] = *value);
        Ok(())
    }))
}

/// Updates only the rows that the gradient names; the moments of others rest. What rows share, such
/// as the powers of Adam's betas, counts the steps of the table, as it does on a parameter server.
struct LazyRows<'a> {
    w: &'a mut [f32],
    grad: &'a RowSparse,
    states: StateMut<'a>,
}

impl RowLoop for LazyRows<'_> {
    #[inline(always)]
    fn run<K: UpdateKernel>(self, update: RowUpdater<'_, K>) {
        let (width, n_states) = (self.grad.width, self.states.len());
        let mut slices = self.states.into_slices();
        for (i, (row, g)) in self.grad.iter().enumerate() {
            if let Some(&soon) = self.grad.rows.get(i + ROWS_AHEAD) {
                let at = soon as usize * width;
                prefetch_row(self.w, at, width);
                slices[..n_states].iter().for_each(|state| prefetch_row(state, at, width));
            }
            let at = row as usize * width;
            let states = slices[..n_states].iter_mut().map(|state| &mut state[at..at + width]);
            update.with_states(&mut self.w[at..at + width], g, states.collect());
        }
    }
}

/// Room for an update of all rows that a gradient has ever named.
#[derive(Default)]
struct AllRows {
    /// Positions of the rows of a gradient, in the order of the table.
    order: Vec<u32>,
    /// The gradient of a row that is not named.
    zeros: Vec<f32>,
}

impl AllRows {
    fn with<'a>(&'a mut self, rows: LazyRows<'a>, every_row: bool) -> TouchedRows<'a> {
        self.order.clear();
        self.order.extend(0..rows.grad.rows.len() as u32);
        self.order.sort_unstable_by_key(|at| rows.grad.rows[*at as usize]);
        self.zeros.clear();
        self.zeros.resize(rows.grad.width, 0.0);
        TouchedRows { rows, order: &self.order, zeros: &self.zeros, every_row }
    }
}

/// Updates the rows that the gradient names and those that have states.
struct TouchedRows<'a> {
    rows: LazyRows<'a>,
    order: &'a [u32],
    zeros: &'a [f32],
    /// Whether rows without states move as well.
    every_row: bool,
}

impl RowLoop for TouchedRows<'_> {
    #[inline(always)]
    fn run<K: UpdateKernel>(self, update: RowUpdater<'_, K>) {
        let LazyRows { w, grad, states } = self.rows;
        let (width, n_states) = (grad.width.max(1), states.len());
        let mut slices = states.into_slices();
        let mut named = self.order.iter().map(|at| *at as usize).peekable();
        for (row, w) in w.chunks_exact_mut(width).enumerate() {
            let own = row * width..(row + 1) * width;
            let g = match named.next_if(|at| grad.rows[*at] == row as u64) {
                Some(at) => &grad.values[at * width..(at + 1) * width],
                None => {
                    let has = |state: &&mut [f32]| state[own.clone()].iter().any(|x| *x != 0.0);
                    if !self.every_row && !slices[..n_states].iter().any(has) {
                        continue;
                    }
                    self.zeros
                }
            };
            let states = slices[..n_states].iter_mut().map(|state| &mut state[own.clone()]);
            update.with_states(w, g, states.collect());
        }
    }
}

/// Rows of a large table are not in the cache: they are prefetched this many updates early.
const ROWS_AHEAD: usize = 16;

const LR_SCHEDULE: OpDef = OpDef {
    schema: Schema {
        kind: "lr_schedule",
        inputs: &[one("Step"), one("LearningRate")],
        outputs: &[one("StepOut"), one("LearningRateOut")],
        attrs: &[("base", AttrKind::RequiredFloat), ("schedule", AttrKind::RequiredStr)],
    },
    infer: |i| {
        i.expect("Step", &VarType::dense(DType::I64, [1]))?;
        i.expect("LearningRate", &VarType::f32([1]))?;
        let schedule = schedule_of(i.op)?;
        schedule
            .validate(i.op.float("base")?)
            .map_err(|e| i.bad_attr("schedule", e.to_string()))?;
        Ok(vec![i.ty("Step").clone(), i.ty("LearningRate").clone()])
    },
    grad: Grad::None("a schedule is not differentiated"),
    kernel: |s| {
        let (schedule, base) = (schedule_of(s.op)?, s.op.float("base")?);
        let kernel: Kernel = Box::new(move |io, _| {
            let step = &mut io.out_i64(0)[0];
            io.out_f32(1)[0] = schedule.lr(base, *step as u64);
            *step += 1;
            Ok(())
        });
        Ok(kernel)
    },
    batch: whole,
    samples: no_samples,
};

/// The schedule of an `lr_schedule` op.
///
/// # Errors
/// If its text cannot be read.
pub fn schedule_of(op: &Op) -> Result<Schedule, Error> {
    serde_json::from_str(op.str("schedule")?).map_err(|e| Error::Attr {
        op: op.kind.clone(),
        attr: "schedule".into(),
        reason: format!("is no schedule: {e}"),
    })
}

/// The op that writes the learning rate of a step, without its variables.
pub fn schedule_op(base: f64, schedule: &Schedule) -> Op {
    let text = serde_json::to_string(schedule).expect("a schedule can be written");
    Op::new("lr_schedule").attr("base", base).attr("schedule", text)
}
