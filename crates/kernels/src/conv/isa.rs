//! What convolutions need of an instruction set: small products over runs, and a transpose.

use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Floats of the widest vector; images and channels are padded to whole ones.
pub(super) const LANES: usize = 16;

/// A small product `C (+)= A B` of fixed height and width, whose depth is `runs` runs of `k`.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Depth of a run.
    pub(super) k: usize,
    pub(super) runs: usize,
    /// Row `i`, depth `p` of run `r` is at `i * a_row + p * a_depth + r * a_run`.
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_depth: usize,
    pub(super) a_run: isize,
    /// Depth `p`, column `j` of run `r` is at `p * b_depth + j + r * b_run`.
    pub(super) b: *const f32,
    pub(super) b_depth: usize,
    pub(super) b_run: isize,
    /// Rows are `c_row` apart.
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    /// Add to what C holds instead of overwriting it.
    pub(super) accumulate: bool,
}

/// A product of one height and width.
///
/// # Safety
/// All elements that the [`Tile`] describes are readable (A, B) or exclusively writable (C), and
/// the CPU has the features it was built for.
pub(super) type TileFn = unsafe fn(&Tile);

/// A transpose of at most 16 x 16.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// `rows` rows of `cols` floats, `src_row` apart.
    pub(super) src: *const f32,
    pub(super) src_row: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Column `j` goes to `dst + places[j]`, its rows side by side.
    pub(super) dst: *mut f32,
    pub(super) places: &'a [usize; LANES],
    /// One value per row that is added.
    pub(super) add: &'a [f32; LANES],
}

/// Runs a [`Block`].
///
/// # Safety
/// Source and destination can be read and written, and the CPU has the features.
pub(super) type TransposeFn = unsafe fn(&Block);

/// One instruction set.
pub(super) struct Isa {
    /// Floats in a vector; divides [`LANES`].
    pub(super) lanes: usize,
    /// `[width in vectors - 1][rows - 1]`.
    pub(super) tiles: &'static [&'static [TileFn]],
    pub(super) transpose: TransposeFn,
}

impl Isa {
    /// The best that this CPU has.
    pub(super) fn detect() -> &'static Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if crate::has_avx512() {
                return &avx512::ISA;
            }
            if crate::has_avx2_fma() {
                return &avx2::ISA;
            }
        }
        &portable::ISA
    }

    /// All that this CPU has, the best first.
    #[cfg(test)]
    pub(super) fn all() -> Vec<&'static Isa> {
        #[cfg(target_arch = "x86_64")]
        let wide = [(crate::has_avx512(), &avx512::ISA), (crate::has_avx2_fma(), &avx2::ISA)];
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [(bool, &'static Isa); 0] = [];
        let wide = wide.into_iter().filter(|(has, _)| *has).map(|(_, isa)| isa);
        wide.chain([&portable::ISA]).collect()
    }

    /// Columns of a full tile.
    pub(super) fn cols(&self) -> usize {
        self.lanes * self.tiles.len()
    }

    /// Height of the next tile when `left` rows remain: the last ones are shared out evenly.
    pub(super) fn next_height(&self, left: usize) -> usize {
        let full = self.tiles[0].len();
        if left <= full {
            left
        } else if left < 2 * full - 1 {
            left.div_ceil(2)
        } else {
            full
        }
    }

    /// First rows and heights of the tiles of `rows` rows.
    pub(super) fn heights(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            if first == rows {
                return None;
            }
            let height = self.next_height(rows - first);
            first += height;
            Some((first - height, height))
        })
    }

    /// The product for a height and a width of whole vectors.
    pub(super) fn tile(&self, height: usize, width: usize) -> TileFn {
        self.tiles[width / self.lanes - 1][height - 1]
    }
}

/// Fills a row of [`Isa::tiles`] from a product that is generic over rows and vectors.
macro_rules! tile_fns {
    ($tile:ident, $vecs:literal, $($rows:literal)*) => {
        &[$($tile::<$rows, $vecs>),*]
    };
}
pub(super) use tile_fns;
