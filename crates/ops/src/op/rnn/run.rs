//! The steps forward.

use regatta_ir::Error;
use regatta_kernels::gemm::{Epilogue, GemmScratch, Mat, gemm};
use regatta_kernels::rnn::Cell;

use super::{Sizes, has_step};
use crate::{Io, Kernel, Spec};

/// What a kernel keeps between runs.
struct Room {
    /// Both biases, added where they are not needed apart.
    bias: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
}

pub(super) fn kernel(s: &Spec<'_>) -> Result<Kernel, Error> {
    let sizes = Sizes::of(s)?;
    let n = sizes.examples * sizes.hidden;
    let slots = ["BiasIh", "BiasHh", "InitH", "InitC", "SequenceLength"].map(|slot| s.at(slot));
    let last_c = s.out_at("LastC");
    let reserve = s.out_at("Reserve").expect("a slot of the schema");
    let c = if sizes.cell == Cell::Lstm { n } else { 0 };
    let mut room = Room { bias: vec![0.0; sizes.gates()], h: vec![0.0; n], c: vec![0.0; c] };
    Ok(Box::new(move |io, ctx| {
        let [bias_ih, bias_hh, init_h, init_c] =
            [0, 1, 2, 3].map(|i| slots[i].map(|at| io.f32(at)));
        let lengths = slots[4].map(|at| io.i64(at));
        let (out, kept) = (io.out_f32(0), io.out_f32(reserve));
        begin(&mut room.h, init_h);
        begin(&mut room.c, init_c);
        add_bias(&sizes, bias_ih, bias_hh, &mut room.bias);
        inputs(&sizes, io, &room.bias, kept, &mut ctx.gemm);
        for i in 0..sizes.steps {
            let time = sizes.time(i);
            let of_time = kept.get_mut(time * sizes.kept()..).unwrap_or_default();
            states(&sizes, io.f32(2), bias_hh, &room.h, of_time, &mut ctx.gemm);
            step(&sizes, time, lengths, kept, out, &mut room);
        }
        io.out_f32(1).copy_from_slice(&room.h);
        if let Some(at) = last_c {
            io.out_f32(at).copy_from_slice(&room.c);
        }
        Ok(())
    }))
}

fn begin(state: &mut [f32], init: Option<&[f32]>) {
    match init {
        Some(init) => state.copy_from_slice(init),
        None => state.fill(0.0),
    }
}

/// The bias that goes with the inputs. The last gate of a [`Cell::Gru`] needs that of the state
/// apart.
fn add_bias(sizes: &Sizes, of_x: Option<&[f32]>, of_h: Option<&[f32]>, sum: &mut [f32]) {
    let apart = if sizes.cell == Cell::Gru { 2 * sizes.hidden } else { sum.len() };
    sum.fill(0.0);
    for bias in [of_x, of_h.map(|bias| &bias[..apart])].into_iter().flatten() {
        sum.iter_mut().zip(bias).for_each(|(sum, x)| *sum += x);
    }
}

/// The part of the inputs in the gates of all steps.
fn inputs(sizes: &Sizes, io: &Io<'_>, bias: &[f32], kept: &mut [f32], scratch: &mut GemmScratch) {
    let (m, n, k) = (sizes.examples * sizes.steps, sizes.gates(), sizes.width);
    let epilogue = Epilogue { bias: Some(bias), ..Epilogue::default() };
    let (a, b) = (Mat::new(io.f32(0), k), Mat::transposed(io.f32(1), k));
    gemm(m, n, k, a, b, false, kept, sizes.kept(), epilogue, scratch);
}

/// The part of the states in the gates of one step, whose first example is at the start of `kept`.
fn states(
    sizes: &Sizes,
    w: &[f32],
    bias: Option<&[f32]>,
    h: &[f32],
    kept: &mut [f32],
    scratch: &mut GemmScratch,
) {
    let &Sizes { cell, examples, hidden, .. } = sizes;
    let row = sizes.steps * sizes.kept();
    let added = if cell == Cell::Gru { 2 * hidden } else { sizes.gates() };
    let a = Mat::new(h, hidden);
    let b = Mat::transposed(w, hidden);
    gemm(examples, added, hidden, a, b, true, kept, row, Epilogue::default(), scratch);
    if cell == Cell::Gru && !kept.is_empty() {
        let b = Mat::transposed(&w[added * hidden..], hidden);
        let epilogue = Epilogue { bias: bias.map(|bias| &bias[added..]), ..Epilogue::default() };
        let of_h = &mut kept[3 * hidden..];
        gemm(examples, hidden, hidden, a, b, false, of_h, row, epilogue, scratch);
    }
}

/// Ends a step of all examples that have it.
fn step(
    sizes: &Sizes,
    time: usize,
    lengths: Option<&[i64]>,
    kept: &mut [f32],
    out: &mut [f32],
    room: &mut Room,
) {
    let &Sizes { cell, examples, steps, hidden, .. } = sizes;
    for example in 0..examples {
        let at = example * steps + time;
        let out = &mut out[at * hidden..][..hidden];
        let kept = &mut kept[at * sizes.kept()..][..sizes.kept()];
        if !has_step(lengths, example, time) {
            // A kernel writes all of its outputs: the memory held something else before.
            out.fill(0.0);
            kept.fill(0.0);
            continue;
        }
        let h = &mut room.h[example * hidden..][..hidden];
        let c =
            if cell == Cell::Lstm { &mut room.c[example * hidden..][..hidden] } else { &mut [] };
        cell.forward(kept, h, c);
        out.copy_from_slice(h);
    }
}
