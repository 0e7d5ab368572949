//! Initial values of parameters.
//!
//! Initial values are drawn by all cores, even if one thread trains: any part of a random variable
//! can be drawn by itself. With the vectorised normal distribution of `tensor/src/rng.rs` the first
//! step of a click model with a million rows comes after 0.096-0.109 s instead of 0.118-0.126 s
//! (batch 512, 2 cores, medians of interleaved starts, 2026-11-17; the column "first step" of
//! `bench/compare/run`).

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::thread;

use regatta_ir::{Op, Program, VarDef, verify};
use regatta_ops::{Draw, OPS};
use regatta_tensor::Tensor;

use crate::memory::bytes_of;
use crate::{Error, Executor, Options, Scope};

/// Runs a startup program: afterwards the scope holds the initial value of every persistable.
///
/// # Errors
/// If the program is wrong, or the system refuses the memory.
pub fn run_startup(startup: &Program, scope: &mut Scope) -> Result<(), Error> {
    verify(startup, &OPS)?;
    for var in startup.persistables() {
        let zeros = zeros(var)?;
        scope.set(&var.name, zeros);
    }
    let mut startup = without_zeros(startup);
    draw(&take_draws(&mut startup), scope)?;
    Executor::new(startup, Options::default())?.run(scope, &[], &[])?;
    Ok(())
}

/// Bytes of a value that the system may refuse while there is memory for the rest of a program.
const LARGE: u64 = 64 << 20;

/// Memory for a parameter or state, which would end the process if it were refused later.
fn zeros(var: &VarDef) -> Result<Tensor, Error> {
    let bytes = bytes_of(var);
    let refused = || Error::Refused { name: var.name.clone(), shape: var.ty.shape.clone(), bytes };
    // Asks for as much and gives it back: unlike `try_reserve` of the tensor itself, zeros of the
    // system cost nothing until they are written.
    if bytes >= LARGE {
        let mut trial: Vec<u8> = Vec::new();
        let bytes = usize::try_from(bytes).map_err(|_| refused())?;
        trial.try_reserve_exact(bytes).map_err(|_| refused())?;
        drop(std::hint::black_box(trial));
    }
    let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d.max(0) as usize).collect();
    Ok(Tensor::zeros(var.ty.dtype, &shape))
}

/// A startup program without the ops that would write zeros over fresh zeros: memory that nobody
/// has written yet costs nothing.
fn without_zeros(startup: &Program) -> Program {
    let mut startup = startup.clone();
    let fresh: HashSet<String> = startup.persistables().map(|var| var.name.clone()).collect();
    let mut written = HashSet::new();
    startup.block_mut().ops.retain(|op| {
        let zero = op.kind == "fill_constant" && op.float("value").is_ok_and(|v| v.to_bits() == 0);
        let needless = zero && outputs(op).all(|o| fresh.contains(o) && !written.contains(o));
        written.extend(outputs(op).cloned());
        !needless
    });
    startup
}

/// Takes those ops out of a startup program that draw random values for a persistable which no
/// other op writes: nothing comes before them, and any part of such values can be drawn by itself.
fn take_draws(startup: &mut Program) -> Vec<(String, Draw)> {
    let kept: HashSet<String> = startup.persistables().map(|var| var.name.clone()).collect();
    let mut writers: HashMap<String, usize> = HashMap::new();
    for out in startup.block().ops.iter().flat_map(outputs) {
        *writers.entry(out.clone()).or_default() += 1;
    }
    let alone = |op: &Op| outputs(op).all(|o| kept.contains(o) && writers[o] == 1);
    let mut draws = Vec::new();
    startup.block_mut().ops.retain(|op| match Draw::of(op) {
        Ok(Some(draw)) if alone(op) => {
            draws.extend(outputs(op).map(|name| (name.clone(), draw)));
            false
        }
        _ => true,
    });
    draws
}

fn outputs(op: &Op) -> impl Iterator<Item = &String> {
    op.outputs.iter().flat_map(|(_, vars)| vars)
}

/// Values that are drawn at a time, and how many are worth a thread: a millisecond and more.
const PART: usize = 1 << 16;
const PER_THREAD: usize = 1 << 19;

/// Draws random values, with all processors if there are many.
fn draw(draws: &[(String, Draw)], scope: &mut Scope) -> Result<(), Error> {
    let names: Vec<String> = draws.iter().map(|(name, _)| name.clone()).collect();
    let tensors = scope.get_many_mut(&names);
    let missing = || Error::Options("a startup program writes what is not persistable".into());
    let (mut parts, mut values) = (Vec::new(), 0);
    for ((_, draw), tensor) in draws.iter().zip(tensors.ok_or_else(missing)?) {
        let all = tensor.f32_mut();
        values += all.len();
        let chunks = (0..).step_by(PART).zip(all.chunks_mut(PART));
        parts.extend(chunks.map(|(first, part)| (draw, first, part)));
    }
    let processors = thread::available_parallelism().map_or(1, |n| n.get());
    let threads = (values / PER_THREAD).clamp(1, processors);
    let queue = Mutex::new(parts.into_iter());
    let next = || queue.lock().unwrap_or_else(|e| e.into_inner()).next();
    let work = || {
        while let Some((draw, first, part)) = next() {
            draw.fill(first, part);
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    Ok(())
}
