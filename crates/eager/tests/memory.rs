//! A steady step makes no buffers, and nothing is left behind by ten thousand of them.
#![expect(unsafe_code, reason = "counts what the allocator is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

use regatta_eager::nn::{Embedding, Init, Layer, Linear, Sequential, cross_entropy};
use regatta_eager::{Optimizer, Param, Tensor, no_grad};
use regatta_optim::{Adam, Rule};

/// Smaller pieces are nodes of the tape and the like.
const BUFFER: usize = 4096;

static WATCHED: AtomicBool = AtomicBool::new(false);
static BUFFERS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= BUFFER && WATCHED.load(Ordering::Relaxed) {
            BUFFERS.fetch_add(1, Ordering::Relaxed);
        }
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steps_are_steady() {
    let mut init = Init::new(1);
    let table = Embedding::new(&mut init, 50, 16).unwrap();
    let model = Sequential::new()
        .add(Linear::new(&mut init, 16, 64, "relu").unwrap())
        .add(Linear::new(&mut init, 64, 4, "").unwrap());
    let mut parameters = model.parameters();
    parameters.extend(table.parameters());
    let params: Vec<Param<'_>> = parameters.iter().map(Param::new).collect();
    let mut adam = Optimizer::new(Rule::Adam(Adam::default()));
    let ids = Tensor::from_i64(&[32], (0..32).collect()).unwrap();
    let label = Tensor::from_i64(&[32, 1], (0..32).map(|i| i % 4).collect()).unwrap();
    let forward = || {
        let x = table.forward(&ids).unwrap();
        cross_entropy(&model.forward(&x).unwrap(), &label).unwrap()
    };
    let mut step = || {
        forward().backward(None, false).unwrap();
        adam.step(&params, 0.01).unwrap();
        parameters.iter().for_each(|parameter| parameter.clear_grad(false));
    };
    (0..50).for_each(|_| step());
    let live = LIVE.load(Ordering::Relaxed);
    WATCHED.store(true, Ordering::Relaxed);
    (0..100).for_each(|_| step());
    WATCHED.store(false, Ordering::Relaxed);
    assert_eq!(BUFFERS.load(Ordering::Relaxed), 0, "buffers are made in a steady step");
    (0..10_000).for_each(|_| step());
    (0..10_000).for_each(|_| drop(no_grad(forward)));
    let grown = LIVE.load(Ordering::Relaxed) - live;
    assert!(grown.abs() < 64 * 1024, "{grown} bytes more after 20,000 steps");
}
