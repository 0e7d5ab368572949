//! A training step allocates nothing after its first round: the pack buffers are kept.
#![allow(unsafe_code, reason = "a global allocator that counts is an unsafe trait")]

use regatta_kernels::gemm::{Act, Epilogue, GemmScratch, Mat, gemm};
use regatta_kernels::rows;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread; others belong to the test harness.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes every request on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise is the one `System` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn second_round_allocates_nothing() {
    let shapes = [(128, 400, 247), (400, 128, 300), (128, 2, 400), (128, 400, 2), (1, 50, 60)];
    let (a, b) = (vec![0.5; 400 * 400], vec![0.25; 400 * 400]);
    let (mut c, mut sums) = (vec![0.0; 400 * 400], vec![0.0; 400]);
    let mut scratch = GemmScratch::default();
    let mut round = || {
        for (m, n, k) in shapes {
            for trans in 0..4 {
                let (a_trans, b_trans) = (trans & 1 > 0, trans & 2 > 0);
                let a = Mat { data: &a, ld: if a_trans { m } else { k }, trans: a_trans };
                let b = Mat { data: &b, ld: if b_trans { k } else { n }, trans: b_trans };
                let epilogue = Epilogue { bias: None, act: Act::Tanh, open: None };
                gemm(m, n, k, a, b, false, &mut c, n, epilogue, &mut scratch);
            }
            rows::column_sums(&c[..m * n], false, &mut sums[..n]);
        }
    };
    round();
    let before = ALLOCATIONS.with(Cell::get);
    round();
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}
