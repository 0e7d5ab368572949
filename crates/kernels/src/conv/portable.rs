//! Products and transpose in plain Rust.

use super::isa::{Block, Isa, Tile, tile_fns};

const LANES: usize = 8;

pub(super) static ISA: Isa = Isa { lanes: LANES, tiles: &[tile_fns!(tile, 1, 1 2 3)], transpose };

/// # Safety
/// See [`TileFn`](super::isa::TileFn).
unsafe fn tile<const ROWS: usize, const VECS: usize>(t: &Tile) {
    const { assert!(VECS == 1, "one vector at a time") };
    let mut sums = [[0.0f32; LANES]; ROWS];
    // SAFETY: the caller vouches for every element the strides reach.
    unsafe {
        for run in 0..t.runs as isize {
            let (a, b) = (t.a.wrapping_offset(run * t.a_run), t.b.wrapping_offset(run * t.b_run));
            for p in 0..t.k {
                let b = *b.add(p * t.b_depth).cast::<[f32; LANES]>();
                for (i, sum) in sums.iter_mut().enumerate() {
                    let a = *a.add(i * t.a_row + p * t.a_depth);
                    sum.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
                }
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let c = &mut *t.c.add(i * t.c_row).cast::<[f32; LANES]>();
            for (c, sum) in c.iter_mut().zip(sum) {
                *c = if t.accumulate { *c + sum } else { *sum };
            }
        }
    }
}

/// # Safety
/// See [`TransposeFn`](super::isa::TransposeFn).
pub(super) unsafe fn transpose(b: &Block) {
    for (j, place) in b.places[..b.cols].iter().enumerate() {
        for (i, add) in b.add[..b.rows].iter().enumerate() {
            // SAFETY: the caller vouches for source and destination.
            unsafe { *b.dst.add(place + i) = *b.src.add(i * b.src_row + j) + add };
        }
    }
}
