//! Matrix multiply against `matrixmultiply` and the core's own peak, on the shapes of two training
//! steps.
//!
//! Run with `cargo bench -p regatta-kernels`; an argument selects shapes by part of their name.
//! Candidates take turns within a round, so that a busy machine slows all of them alike. `GFLOP/s`
//! is the median over rounds. `peak` is the share of the multiply-add peak, the median of the
//! rounds' own ratios; `best` the share the fastest round reached of the highest peak; `ratio` is
//! speed over `matrixmultiply`. Products that skip zeros count as if they did not. The totals at
//! the end count each layer of a network once per occurrence.
#![allow(unsafe_code, reason = "matrixmultiply takes raw pointers")]

use regatta_kernels::gemm::{Epilogue, GemmScratch, Mat, gemm};
use regatta_kernels::peak;
use std::collections::BTreeMap;
use std::time::Instant;

/// One product of a training step.
struct Shape {
    name: String,
    group: String,
    /// How many layers of the network have it.
    occurrences: f64,
    m: usize,
    n: usize,
    k: usize,
    a_trans: bool,
    b_trans: bool,
    /// Share of the values of A that are not zero.
    full: f32,
}

impl Shape {
    fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }
}

/// The three products of a fully connected layer: output, gradient of the input, of the weight.
fn layer(group: &str, batch: usize, inputs: usize, outputs: usize) -> [Shape; 3] {
    let shape = |what: &str, m, n, k, a_trans, b_trans| Shape {
        full: 1.0,
        name: format!("{what:2} {batch:4}, {inputs:3} to {outputs:3}"),
        group: format!("{group}, batch {batch:4}"),
        occurrences: if (inputs, outputs) == (400, 400) { 2.0 } else { 1.0 },
        m,
        n,
        k,
        a_trans,
        b_trans,
    };
    [
        shape("Y", batch, outputs, inputs, false, false),
        shape("dX", batch, inputs, outputs, false, true),
        shape("dW", inputs, outputs, batch, true, false),
    ]
}

fn shapes() -> Vec<Shape> {
    let ctr = [128, 512, 2048].into_iter().flat_map(|batch| {
        [(247, 400), (400, 400), (400, 2)]
            .into_iter()
            .map(move |(i, o)| ("247-400-400-400-2", batch, i, o))
    });
    let small = [(32, 128), (128, 128), (128, 2)].map(|(i, o)| ("32-128-128-2", 128, i, o));
    let dense = ctr.chain(small).flat_map(|(group, batch, i, o)| layer(group, batch, i, o));
    dense.chain([50, 35, 20].into_iter().flat_map(behind_relu)).collect()
}

/// Products of a layer whose left operand has `percent` of its values: outputs of a relu, or
/// gradients that went back through one.
fn behind_relu(percent: u32) -> impl Iterator<Item = Shape> {
    let group = format!("400-400, {percent} % not zero");
    layer(&group, 512, 400, 400).into_iter().map(move |shape| Shape {
        full: percent as f32 / 100.0,
        occurrences: 1.0,
        name: format!("{} {percent} %", shape.name),
        ..shape
    })
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Values that begin with a cache line, as those of a training step do.
struct Aligned(Vec<f32>, usize);

impl Aligned {
    fn new(values: &[f32]) -> Self {
        let mut room = vec![0.0; values.len() + 16];
        let start = room.as_ptr().align_offset(64);
        room[start..start + values.len()].copy_from_slice(values);
        Self(room, start)
    }

    fn get(&self) -> &[f32] {
        &self.0[self.1..self.0.len() - 16 + self.1]
    }

    fn get_mut(&mut self) -> &mut [f32] {
        let end = self.0.len() - 16 + self.1;
        &mut self.0[self.1..end]
    }
}

fn reference(shape: &Shape, a: Mat, b: Mat, c: &mut [f32]) {
    let strides = |x: &Mat| if x.trans { (1, x.ld as isize) } else { (x.ld as isize, 1) };
    let ((a_row, a_col), (b_row, b_col)) = (strides(&a), strides(&b));
    let (m, n, k) = (shape.m, shape.n, shape.k);
    let (a, b) = (a.data.as_ptr(), b.data.as_ptr());
    assert_eq!(c.len(), m * n);
    // SAFETY: the slices hold the matrices of `shape`, without gaps.
    unsafe {
        let c = c.as_mut_ptr();
        matrixmultiply::sgemm(
            m, k, n, 1.0, a, a_row, a_col, b, b_row, b_col, 0.0, c, n as isize, 1,
        );
    }
}

/// Seconds one call takes, over enough calls for a millisecond.
fn time(flops: f64, mut call: impl FnMut()) -> f64 {
    let calls = (5e7 / flops).ceil() as usize;
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() / calls as f64
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// What the rounds of one shape gave: GFLOP/s of ours and of the reference, and the peak then.
struct Rounds {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    peaks: Vec<f64>,
}

fn measure(shape: &Shape, scratch: &mut GemmScratch, n_rounds: usize) -> Rounds {
    let &Shape { m, n, k, a_trans, b_trans, .. } = shape;
    let (mut a, b) = (values(m * k, 1), values(k * n, 2));
    for (x, draw) in a.iter_mut().zip(values(m * k, 3)) {
        *x = if draw.abs() < shape.full { *x } else { 0.0 };
    }
    let (a, b) = (Aligned::new(&a), Aligned::new(&b));
    let a = Mat { data: a.get(), ld: if a_trans { m } else { k }, trans: a_trans };
    let b = Mat { data: b.get(), ld: if b_trans { k } else { n }, trans: b_trans };
    let (mut c, mut c_reference) = (Aligned::new(&vec![0.0; m * n]), vec![0.0; m * n]);
    let c = c.get_mut();
    let mut rounds = Rounds { ours: vec![], theirs: vec![], peaks: vec![] };
    let rate = |seconds: f64| shape.flops() / seconds / 1e9;
    for _ in 0..n_rounds {
        rounds.peaks.push(peak::fma_gflops_once());
        rounds.ours.push(rate(time(shape.flops(), || {
            gemm(m, n, k, a, b, false, c, n, Epilogue::default(), scratch);
        })));
        rounds.theirs.push(rate(time(shape.flops(), || reference(shape, a, b, &mut c_reference))));
    }
    let error = c.iter().zip(&c_reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error < 1e-3, "{}: differs from the reference by {error}", shape.name);
    rounds
}

#[expect(clippy::disallowed_methods, reason = "a knob of this benchmark, no part of the contract")]
fn main() {
    let n_rounds = std::env::var("ROUNDS").ok().and_then(|x| x.parse().ok()).unwrap_or(61);
    let filter = std::env::args().skip(1).find(|x| !x.starts_with('-'));
    let mut scratch = GemmScratch::default();
    let mut totals: BTreeMap<String, [f64; 4]> = BTreeMap::new();
    println!("{:26}  GFLOP/s   peak   best  ratio", "product");
    for shape in shapes() {
        if filter.as_ref().is_some_and(|x| !shape.name.contains(x) && !shape.group.contains(x)) {
            continue;
        }
        let Rounds { ours, theirs, peaks } = measure(&shape, &mut scratch, n_rounds);
        let best = |x: &[f64]| x.iter().copied().fold(0.0, f64::max);
        let over = |x: &[f64], y: &[f64]| median(x.iter().zip(y).map(|(x, y)| x / y).collect());
        let share = over(&ours, &peaks);
        let best_share = best(&ours) / best(&peaks);
        let ratio = over(&ours, &theirs);
        println!(
            "{:26}  {:7.1}  {:4.0} %  {:4.0} %  {ratio:5.2}",
            shape.name,
            median(ours),
            100.0 * share,
            100.0 * best_share
        );
        // A group's share of peak: time at peak over time taken.
        let total = totals.entry(shape.group.clone()).or_default();
        let flops = shape.flops() * shape.occurrences;
        for (total, x) in
            total.iter_mut().zip([flops, flops / share, flops / best_share, flops / share * ratio])
        {
            *total += x;
        }
    }
    println!("\n{:30}   peak   best  ratio", "products of a step");
    for (group, [flops, ours, best, theirs]) in totals {
        let (share, best, ratio) = (100.0 * flops / ours, 100.0 * flops / best, theirs / ours);
        println!("{group:30}  {share:4.0} %  {best:4.0} %  {ratio:5.2}");
    }
}
