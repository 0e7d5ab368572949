//! The steps backwards, and the gradients of the weights from all of them at once.

use regatta_ir::Error;
use regatta_kernels::gemm::{Epilogue, GemmScratch, Mat, gemm};
use regatta_kernels::rnn::Cell;
use regatta_kernels::rows::column_sums;

use super::{Sizes, has_step};
use crate::{Io, Kernel, Spec};

/// What a kernel keeps between runs.
struct Room {
    /// Gradients of the gates of all steps.
    slopes: Vec<f32>,
    /// The state before each step.
    before: Vec<f32>,
    /// What flows back from a step to the one before it.
    dh: Vec<f32>,
    dc: Vec<f32>,
    sums: Vec<f32>,
}

pub(super) fn kernel(s: &Spec<'_>) -> Result<Kernel, Error> {
    let sizes = Sizes::of(s)?;
    let (rows, n) = (sizes.examples * sizes.steps, sizes.examples * sizes.hidden);
    let wide = sizes.cell.slopes() * sizes.hidden;
    let places = Places::of(s);
    let mut room = Room {
        slopes: vec![0.0; rows * wide],
        before: vec![0.0; rows * sizes.hidden],
        dh: vec![0.0; n],
        dc: vec![0.0; if sizes.cell == Cell::Lstm { n } else { 0 }],
        sums: vec![0.0; wide],
    };
    Ok(Box::new(move |io, ctx| {
        steps_back(&sizes, &places, io, &mut room, &mut ctx.gemm);
        for (at, of) in [(places.d_init_h, &room.dh), (places.d_init_c, &room.dc)] {
            if let Some(at) = at {
                io.out_f32(at).copy_from_slice(of);
            }
        }
        of_inputs(&sizes, &places, io, &room, &mut ctx.gemm);
        of_weights(&sizes, &places, io, &mut room, &mut ctx.gemm);
        Ok(())
    }))
}

/// Positions of the variables.
struct Places {
    init_h: Option<usize>,
    init_c: Option<usize>,
    lengths: Option<usize>,
    out: usize,
    reserve: usize,
    d_out: Option<usize>,
    d_last_h: Option<usize>,
    d_last_c: Option<usize>,
    d_x: Option<usize>,
    d_weights: [Option<usize>; 2],
    d_biases: [Option<usize>; 2],
    d_init_h: Option<usize>,
    d_init_c: Option<usize>,
}

impl Places {
    fn of(s: &Spec<'_>) -> Places {
        let there = |slot: &str| s.at(slot).expect("a slot of the schema");
        Places {
            init_h: s.at("InitH"),
            init_c: s.at("InitC"),
            lengths: s.at("SequenceLength"),
            out: there("Out"),
            reserve: there("Reserve"),
            d_out: s.at("dOut"),
            d_last_h: s.at("dLastH"),
            d_last_c: s.at("dLastC"),
            d_x: s.out_at("dX"),
            d_weights: ["dWeightIh", "dWeightHh"].map(|slot| s.out_at(slot)),
            d_biases: ["dBiasIh", "dBiasHh"].map(|slot| s.out_at(slot)),
            d_init_h: s.out_at("dInitH"),
            d_init_c: s.out_at("dInitC"),
        }
    }
}

fn begin(d: &mut [f32], of: Option<&[f32]>) {
    match of {
        Some(of) => d.copy_from_slice(of),
        None => d.fill(0.0),
    }
}

fn steps_back(
    sizes: &Sizes,
    places: &Places,
    io: &Io<'_>,
    room: &mut Room,
    scratch: &mut GemmScratch,
) {
    let lengths = places.lengths.map(|at| io.i64(at));
    begin(&mut room.dh, places.d_last_h.map(|at| io.f32(at)));
    begin(&mut room.dc, places.d_last_c.map(|at| io.f32(at)));
    for i in (0..sizes.steps).rev() {
        for example in 0..sizes.examples {
            step_back(sizes, places, io, room, lengths, i, example);
        }
        through_weights(sizes, io.f32(2), sizes.time(i), room, scratch);
    }
}

/// The `i`-th step of one example.
fn step_back(
    sizes: &Sizes,
    places: &Places,
    io: &Io<'_>,
    room: &mut Room,
    lengths: Option<&[i64]>,
    i: usize,
    example: usize,
) {
    let &Sizes { cell, steps, hidden, .. } = sizes;
    let (time, wide, kept) = (sizes.time(i), cell.slopes() * hidden, sizes.kept());
    let row = example * steps + time;
    let slopes = &mut room.slopes[row * wide..][..wide];
    let before = &mut room.before[row * hidden..][..hidden];
    if !has_step(lengths, example, time) {
        slopes.fill(0.0);
        before.fill(0.0);
        return;
    }
    let earlier = i.checked_sub(1).map(|i| sizes.time(i));
    let earlier = earlier.filter(|&time| has_step(lengths, example, time));
    let earlier = earlier.map(|time| example * steps + time);
    let state = example * hidden..(example + 1) * hidden;
    let reserve = io.f32(places.reserve);
    match (earlier, places.init_h) {
        (Some(row), _) => before.copy_from_slice(&io.f32(places.out)[row * hidden..][..hidden]),
        (None, Some(at)) => before.copy_from_slice(&io.f32(at)[state.clone()]),
        (None, None) => before.fill(0.0),
    }
    let dh = &mut room.dh[state.clone()];
    if let Some(at) = places.d_out {
        let d = &io.f32(at)[row * hidden..][..hidden];
        dh.iter_mut().zip(d).for_each(|(dh, d)| *dh += d);
    }
    let kept_row = &reserve[row * kept..][..kept];
    if cell != Cell::Lstm {
        return cell.backward(kept_row, before, &[], dh, &mut [], slopes);
    }
    let last_c = match (earlier, places.init_c) {
        (Some(row), _) => &reserve[row * kept + 4 * hidden..][..hidden],
        (None, Some(at)) => &io.f32(at)[state.clone()],
        // The state before the first step is 0, as is all of the scratch for sums here.
        (None, None) => {
            room.sums.fill(0.0);
            &room.sums[..hidden]
        }
    };
    cell.backward(kept_row, before, last_c, dh, &mut room.dc[state], slopes);
}

/// Adds to `dh` what flows back through the weights of the state: nothing for an example without
/// the step, whose slopes are 0.
fn through_weights(
    sizes: &Sizes,
    w: &[f32],
    time: usize,
    room: &mut Room,
    scratch: &mut GemmScratch,
) {
    let &Sizes { cell, examples, steps, hidden, .. } = sizes;
    if examples == 0 {
        return;
    }
    let wide = cell.slopes() * hidden;
    // Those of the weights of the state come last.
    let slopes = &room.slopes[time * wide + wide - sizes.gates()..];
    let (a, b) = (Mat::new(slopes, steps * wide), Mat::new(w, hidden));
    gemm(
        examples,
        hidden,
        sizes.gates(),
        a,
        b,
        true,
        &mut room.dh,
        hidden,
        Epilogue::default(),
        scratch,
    );
}

/// The gradients of the gates as the weights of the input see them: parts of the rows, each with
/// its first row of the weights.
fn gates_of_inputs(sizes: &Sizes) -> [(usize, usize, usize); 2] {
    let hidden = sizes.hidden;
    match sizes.cell {
        Cell::Gru => [(hidden, 0, 2 * hidden), (0, 2 * hidden, hidden)],
        _ => [(0, 0, sizes.gates()), (0, 0, 0)],
    }
}

fn of_inputs(
    sizes: &Sizes,
    places: &Places,
    io: &mut Io<'_>,
    room: &Room,
    scratch: &mut GemmScratch,
) {
    let Some(at) = places.d_x else { return };
    let (w, dx) = (io.f32(1), io.out_f32(at));
    let (rows, width) = (sizes.examples * sizes.steps, sizes.width);
    if rows == 0 {
        return;
    }
    let wide = sizes.cell.slopes() * sizes.hidden;
    for (part, (from, first, n)) in gates_of_inputs(sizes).into_iter().enumerate() {
        if n > 0 {
            let a = Mat::new(&room.slopes[from..], wide);
            let b = Mat::new(&w[first * width..], width);
            gemm(rows, width, n, a, b, part > 0, dx, width, Epilogue::default(), scratch);
        }
    }
}

fn of_weights(
    sizes: &Sizes,
    places: &Places,
    io: &mut Io<'_>,
    room: &mut Room,
    scratch: &mut GemmScratch,
) {
    let &Sizes { examples, steps, width, hidden, .. } = sizes;
    let (rows, gates, plain) = (examples * steps, sizes.gates(), Epilogue::default());
    let wide = sizes.cell.slopes() * hidden;
    let from_h = wide - gates;
    if let Some(at) = places.d_weights[0] {
        let (x, dw) = (io.f32(0), io.out_f32(at));
        for (from, first, n) in gates_of_inputs(sizes) {
            let a = Mat::transposed(room.slopes.get(from..).unwrap_or_default(), wide);
            let dw = &mut dw[first * width..][..n * width];
            gemm(n, width, rows, a, Mat::new(x, width), false, dw, width, plain, scratch);
        }
    }
    if let Some(at) = places.d_weights[1] {
        let a = Mat::transposed(room.slopes.get(from_h..).unwrap_or_default(), wide);
        let b = Mat::new(&room.before, hidden);
        gemm(gates, hidden, rows, a, b, false, io.out_f32(at), hidden, plain, scratch);
    }
    if places.d_biases.iter().any(Option::is_some) {
        column_sums(&room.slopes, false, &mut room.sums);
    }
    if let Some(at) = places.d_biases[0] {
        let db = io.out_f32(at);
        for (from, first, n) in gates_of_inputs(sizes) {
            db[first..first + n].copy_from_slice(&room.sums[from..from + n]);
        }
    }
    if let Some(at) = places.d_biases[1] {
        io.out_f32(at).copy_from_slice(&room.sums[from_h..]);
    }
}
