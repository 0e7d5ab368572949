//! What the ops that only move values share: the element types, and slices along a dimension.

use regatta_ir::VarType;

use crate::{Infer, Io};

/// An element type, for kernels that are the same for all of them.
pub(super) trait Element: Copy + Default + Send + 'static {
    /// Input `i`.
    fn input<'a>(io: &Io<'a>, i: usize) -> &'a [Self];
    /// Output `i`.
    fn output<'a>(io: &mut Io<'a>, i: usize) -> &'a mut [Self];
    /// The sum; integers wrap around.
    fn plus(self, other: Self) -> Self;
}

macro_rules! element {
    ($($t:ident, $input:ident, $output:ident, $plus:expr);*) => {$(
        impl Element for $t {
            fn input<'a>(io: &Io<'a>, i: usize) -> &'a [$t] {
                io.$input(i)
            }
            fn output<'a>(io: &mut Io<'a>, i: usize) -> &'a mut [$t] {
                io.$output(i)
            }
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                $plus(self, other)
            }
        }
    )*};
}
element!(
    f32, f32, out_f32, std::ops::Add::add;
    // Bits of 16-bit floats are only moved: what adds computes in f32.
    u16, half, out_half, |_, _| unreachable!("16-bit floats are widened before they are added");
    i64, i64, out_i64, i64::wrapping_add;
    u64, u64, out_u64, u64::wrapping_add
);

/// Calls a generic kernel maker with the element type of an input.
macro_rules! by_dtype {
    ($ty:expr, $make:ident($($arg:expr),*)) => {
        match $ty.dtype {
            regatta_tensor::DType::F32 => $make::<f32>($($arg),*),
            regatta_tensor::DType::F16 | regatta_tensor::DType::BF16 => $make::<u16>($($arg),*),
            regatta_tensor::DType::I64 => $make::<i64>($($arg),*),
            regatta_tensor::DType::U64 => $make::<u64>($($arg),*),
        }
    };
}
pub(super) use by_dtype;

/// How many blocks lie before a dimension, and how many elements one step along it spans.
pub(super) fn around(dims: &[usize], axis: usize) -> (usize, usize) {
    (dims[..axis].iter().product(), dims[axis + 1..].iter().product())
}

/// Copies `width` elements per block: from `from` on in blocks of `stride.0` to `to` on in blocks
/// of `stride.1`.
pub(super) fn copy_blocks<T: Copy>(
    source: &[T],
    target: &mut [T],
    (from, to): (usize, usize),
    stride: (usize, usize),
    width: usize,
) {
    if width == 0 {
        return;
    }
    let blocks = source.chunks_exact(stride.0).zip(target.chunks_exact_mut(stride.1));
    for (source, target) in blocks {
        target[to..to + width].copy_from_slice(&source[from..from + width]);
    }
}

/// Whether a dimension attribute names the batch by counting from the end. How such an op behaves
/// on parts of a batch is decided from the attribute alone, so it must say 0.
pub(super) fn batch_from_end(ty: &VarType, given: i64, resolved: usize) -> bool {
    given < 0 && resolved == 0 && ty.is_batched()
}

/// The reason to refuse what [`batch_from_end`] finds.
pub(super) fn say_zero(i: &Infer<'_>, attr: &str, given: i64) -> regatta_ir::Error {
    i.bad_attr(attr, format!("is {given}, which is the batch dimension; write 0"))
}
