//! The unit of work of every micro-kernel: one small tile of C over one block of k.

/// Rows of the largest tile of any instruction set.
pub(super) const MAX_ROWS: usize = 12;
/// Columns of the widest.
pub(super) const MAX_COLS: usize = 32;

/// One call of a micro-kernel: `C (+)= A B` for a tile of fixed height and width.
///
/// Strides are free on the A side, so the same kernel reads a packed panel, rows of a plain matrix
/// or columns of a transposed one. Packing is a question of caches, not of correctness.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Depth; at least 1.
    pub(super) k: usize,
    /// First element of A; row `i`, depth `p` is at `i * a_row + p * a_depth`.
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_depth: usize,
    /// First element of B; depth `p`, column `j` is at `p * b_depth + j`.
    pub(super) b: *const f32,
    pub(super) b_depth: usize,
    /// First element of C; rows are `c_row` apart.
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    /// Add to what C holds instead of overwriting it.
    pub(super) accumulate: bool,
    /// One value per tile column to add before the activation, or null.
    pub(super) bias: *const f32,
    pub(super) relu: bool,
    /// Element `(0, 0)` of a matrix with the rows of C: what it does not have positive becomes 0
    /// last. Or null.
    pub(super) open: *const f32,
}

/// A micro-kernel of one height and width.
///
/// # Safety
/// All elements the [`Tile`] describes for that height and width are readable (A, B, bias, open) or
/// exclusively writable (C), and the CPU has the features the kernel was built for.
pub(super) type TileFn = unsafe fn(&Tile);

/// The micro-kernels of one instruction set.
pub(super) struct Tiles {
    /// Floats in a vector.
    pub(super) lanes: usize,
    /// `[width in vectors - 1][rows - 1]`.
    pub(super) by_shape: &'static [&'static [TileFn]],
}

impl Tiles {
    /// Columns of a full tile.
    pub(super) const fn cols(&self) -> usize {
        self.lanes * self.by_shape.len()
    }

    /// Rows of a full tile.
    pub(super) const fn rows(&self) -> usize {
        self.by_shape[0].len()
    }

    /// Height of the next tile when `left` rows remain.
    ///
    /// The last rows are shared out evenly (with 6 rows 8 = 4 + 4, not 6 + 2): a tile of two rows
    /// has too few independent sums to keep the multiply-add units busy.
    pub(super) fn next_height(&self, left: usize) -> usize {
        let full = self.rows();
        if left <= full {
            left
        } else if left < 2 * full - 1 {
            left.div_ceil(2)
        } else {
            full
        }
    }
}

/// Fills a row of [`Tiles::by_shape`] from a kernel that is generic over rows and vectors.
macro_rules! tile_fns {
    ($kernel:ident, $vecs:literal, $($rows:literal)*) => {
        &[$($kernel::<$rows, $vecs>),*]
    };
}
pub(super) use tile_fns;
