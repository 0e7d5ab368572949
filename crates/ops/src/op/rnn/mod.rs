//! `lstm`, `gru` and `simple_rnn`: one direction of one recurrent layer over sequences
//! `[batch, time, width]`.
//!
//! Weights are `[gates * hidden, width]` of the input and `[gates * hidden, hidden]` of the state,
//! each with an optional bias; gates stand in the order of PaddlePaddle: `i, f, c, o` and
//! `r, z, c`.
//!
//! ```text
//! lstm:       c = f * c + i * tanh(..)         h = o * tanh(c)
//! gru:        n = tanh(Wx x + bx + r * (Wh h + bh))   h = (h - n) * z + n
//! simple_rnn: h = tanh(..) or relu(..)
//! ```
//!
//! States begin with `InitH` and `InitC`, or 0. With `is_reverse` time runs from the last step to
//! the first; results stay at their steps. Steps at and beyond an example's `SequenceLength` are
//! passed over: the state stays, and `Out` is 0. `Reserve` keeps what the gradient needs.

mod gradient;
mod run;

use regatta_ir::schema::{AttrDef, AttrKind, SlotDef, one, optional};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_kernels::rnn::Cell;
use regatta_tensor::DType;

use super::window::bad;
use crate::def::{NO_SECOND, no_samples, per_example, spread};
use crate::{Grad, GradCtx, Infer, OpDef, Sample, Spec};

const REVERSE: AttrDef = ("is_reverse", AttrKind::Bool(false));
const ATTRS: &[AttrDef] = &[REVERSE];
const SIMPLE_ATTRS: &[AttrDef] = &[REVERSE, ("activation", AttrKind::Str("tanh"))];

const INPUTS: &[SlotDef] = &[
    one("X"),
    one("WeightIh"),
    one("WeightHh"),
    optional("BiasIh"),
    optional("BiasHh"),
    optional("InitH"),
    optional("SequenceLength"),
];
const LSTM_INPUTS: &[SlotDef] = &[
    one("X"),
    one("WeightIh"),
    one("WeightHh"),
    optional("BiasIh"),
    optional("BiasHh"),
    optional("InitH"),
    optional("InitC"),
    optional("SequenceLength"),
];
const OUTPUTS: &[SlotDef] = &[one("Out"), one("LastH"), one("Reserve")];
const LSTM_OUTPUTS: &[SlotDef] = &[one("Out"), one("LastH"), one("LastC"), one("Reserve")];
const GRAD_INPUTS: &[SlotDef] = &[
    one("X"),
    one("WeightIh"),
    one("WeightHh"),
    optional("InitH"),
    optional("InitC"),
    optional("SequenceLength"),
    one("Out"),
    one("Reserve"),
    optional("dOut"),
    optional("dLastH"),
    optional("dLastC"),
];
const GRAD_OUTPUTS: &[SlotDef] = &[
    optional("dX"),
    optional("dWeightIh"),
    optional("dWeightHh"),
    optional("dBiasIh"),
    optional("dBiasHh"),
    optional("dInitH"),
    optional("dInitC"),
];

pub(crate) static DEFS: &[OpDef] = &[
    forward_def("lstm", LSTM_INPUTS, LSTM_OUTPUTS, ATTRS, lstm_samples),
    backward_def("lstm_grad", ATTRS),
    forward_def("gru", INPUTS, OUTPUTS, ATTRS, samples),
    backward_def("gru_grad", ATTRS),
    forward_def("simple_rnn", INPUTS, OUTPUTS, SIMPLE_ATTRS, simple_samples),
    backward_def("simple_rnn_grad", SIMPLE_ATTRS),
];

const fn forward_def(
    kind: &'static str,
    inputs: &'static [SlotDef],
    outputs: &'static [SlotDef],
    attrs: &'static [AttrDef],
    samples: fn() -> Vec<Sample>,
) -> OpDef {
    OpDef {
        schema: Schema { kind, inputs, outputs, attrs },
        infer,
        grad: Grad::Rule(grad),
        kernel: run::kernel,
        batch: per_example,
        samples,
    }
}

const fn backward_def(kind: &'static str, attrs: &'static [AttrDef]) -> OpDef {
    OpDef {
        schema: Schema { kind, inputs: GRAD_INPUTS, outputs: GRAD_OUTPUTS, attrs },
        infer: infer_grad,
        grad: NO_SECOND,
        kernel: gradient::kernel,
        batch: per_example,
        samples: no_samples,
    }
}

/// The cell of an op or of its gradient.
fn cell(op: &Op) -> Result<Cell, Error> {
    Ok(match op.kind.as_str() {
        "lstm" | "lstm_grad" => Cell::Lstm,
        "gru" | "gru_grad" => Cell::Gru,
        _ => match op.str("activation")? {
            "tanh" => Cell::Tanh,
            "relu" => Cell::Relu,
            other => {
                let reason = format!("is '{other}', but should be tanh or relu");
                return Err(bad(op, "activation", reason));
            }
        },
    })
}

fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let cell = cell(i.op)?;
    let x = i.floats_of_rank("X", 3)?;
    let &[batch, time, width] = &x.shape[..] else { unreachable!("three dimensions") };
    if (time < 1 && time != -2) || width < 1 {
        return Err(i.wrong("X", "f32[batch, time, width] with known width, and time"));
    }
    let hidden = i.floats_of_rank("WeightHh", 2)?.shape[1];
    if hidden < 1 {
        return Err(i.wrong("WeightHh", "f32[gates * hidden, hidden] with a known size"));
    }
    let gates = cell.gates() as i64 * hidden;
    i.expect("WeightHh", &VarType::f32([gates, hidden]))?;
    i.expect("WeightIh", &VarType::f32([gates, width]))?;
    let state = VarType::f32([batch, hidden]);
    let optional = [
        ("BiasIh", VarType::f32([gates])),
        ("BiasHh", VarType::f32([gates])),
        ("InitH", state.clone()),
        ("InitC", state.clone()),
        ("SequenceLength", VarType::dense(DType::I64, [batch])),
    ];
    for (slot, ty) in optional {
        if i.opt(slot).is_some() {
            i.expect(slot, &ty)?;
        }
    }
    let wide = |n: usize| VarType::f32([batch, time, n as i64 * hidden]);
    let mut outs = vec![wide(1), state.clone()];
    if cell == Cell::Lstm {
        outs.push(state);
    }
    outs.push(wide(cell.kept()));
    Ok(outs)
}

fn infer_grad(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let of = |slot: &str| match slot {
        "dX" | "dWeightIh" | "dWeightHh" => i.ty(&slot[1..]).clone(),
        "dBiasIh" | "dBiasHh" => VarType::f32([i.ty("WeightHh").shape[0]]),
        _ => VarType::f32([i.ty("X").shape[0], i.ty("WeightHh").shape[1]]),
    };
    Ok(i.op.outputs.iter().map(|(slot, _)| of(slot)).collect())
}

fn grad(g: &GradCtx<'_>) -> Result<Vec<Op>, Error> {
    let mut op = g.grad_op();
    for slot in ["X", "WeightIh", "WeightHh", "InitH", "InitC", "SequenceLength"] {
        if let Some(var) = g.op.input_var(slot) {
            op = op.input(slot, var);
        }
    }
    for slot in ["Out", "Reserve"] {
        op = op.input(slot, &g.op.outs(slot)[0]);
    }
    let mut any = false;
    for slot in ["Out", "LastH", "LastC"] {
        if let Some(d) = g.dout(slot) {
            op = op.input(&format!("d{slot}"), &d);
            any = true;
        }
    }
    for slot in ["X", "WeightIh", "WeightHh", "BiasIh", "BiasHh", "InitH", "InitC"] {
        if let Some(d) = g.din(slot) {
            op = op.output(&format!("d{slot}"), &d);
        }
    }
    Ok(if any && !op.outputs.is_empty() { vec![op] } else { vec![] })
}

/// What both kernels know.
#[derive(Clone, Copy)]
struct Sizes {
    cell: Cell,
    examples: usize,
    steps: usize,
    width: usize,
    hidden: usize,
    is_reverse: bool,
}

impl Sizes {
    fn of(s: &Spec<'_>) -> Result<Sizes, Error> {
        let x = s.dims(0);
        Ok(Sizes {
            cell: cell(s.op)?,
            examples: x[0],
            steps: x[1],
            width: x[2],
            hidden: s.dims(2)[1],
            is_reverse: s.op.bool("is_reverse")?,
        })
    }

    /// Height of the weights.
    fn gates(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Width of what a step of an example keeps.
    fn kept(&self) -> usize {
        self.cell.kept() * self.hidden
    }

    /// The time of the `i`-th step.
    fn time(&self, i: usize) -> usize {
        if self.is_reverse { self.steps - 1 - i } else { i }
    }
}

/// Whether an example has a step.
fn has_step(lengths: Option<&[i64]>, example: usize, time: usize) -> bool {
    lengths.is_none_or(|lengths| (time as i64) < lengths[example])
}

fn sample(name: &'static str, gates: usize) -> Sample {
    Sample::x(name, spread(&[2, 3, 2], -1.0, 1.0))
        .with("WeightIh", spread(&[gates * 3, 2], -0.6, 0.6))
        .with("WeightHh", spread(&[gates * 3, 3], -0.5, 0.5))
        .ignore("Reserve")
}

/// With everything that is optional.
fn full(sample: Sample, gates: usize) -> Sample {
    let lengths = regatta_tensor::Tensor::from_i64(&[2], vec![2, 3]).expect("lengths agree");
    sample
        .with("BiasIh", spread(&[gates * 3], -0.3, 0.3))
        .with("BiasHh", spread(&[gates * 3], -0.4, 0.4))
        .with("InitH", spread(&[2, 3], -0.5, 0.5))
        .with("SequenceLength", lengths)
}

fn lstm_samples() -> Vec<Sample> {
    let state = || spread(&[2, 3], -0.7, 0.7);
    vec![
        sample("from nothing", 4),
        full(sample("lengths", 4), 4).with("InitC", state()),
        full(sample("backwards", 4), 4).with("InitC", state()).attr("is_reverse", true),
    ]
}

fn samples() -> Vec<Sample> {
    vec![
        sample("from nothing", 3),
        full(sample("lengths", 3), 3),
        full(sample("backwards", 3), 3).attr("is_reverse", true),
    ]
}

fn simple_samples() -> Vec<Sample> {
    vec![
        sample("from nothing", 1),
        full(sample("lengths", 1), 1),
        full(sample("backwards", 1), 1).attr("is_reverse", true),
        sample("relu", 1).attr("activation", "relu"),
    ]
}
