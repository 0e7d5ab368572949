//! After the first steps, a training step allocates nothing.
#![allow(unsafe_code, reason = "a counting allocator")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{adam, batch, initialised, mlp};
use regatta_exec::{Executor, Options};
use regatta_ir::Act;
use regatta_passes::{AmpConfig, Optimizer, RecomputeConfig};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test, since allocations of tests that run beside each other would be counted together.
#[test]
fn a_warm_step_allocates_nothing() {
    warm_steps_of(&adam(0.001));
    let recompute = RecomputeConfig { enable_offload: true, ..RecomputeConfig::default() };
    warm_steps_of(&Optimizer {
        amp: Some(AmpConfig::fp16()),
        recompute: Some(recompute),
        ..adam(0.001)
    });
}

fn warm_steps_of(optimizer: &Optimizer) {
    let model = mlp(&[32, 128, 128, 128, 2], Act::Tanh, optimizer);
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    let (x, label) = batch(64, 32, 0);
    let feeds = [("x", &x), ("label", &label)];
    let fetch = [model.loss.as_str()];
    for _ in 0..3 {
        executor.run(&mut scope, &feeds, &fetch).unwrap();
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..10 {
        executor.run(&mut scope, &feeds, &fetch).unwrap();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
