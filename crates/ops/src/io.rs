//! The variables of one op at run time, as slices.
#![expect(
    unsafe_code,
    reason = "slices are made from buffers that the execution plan placed apart"
)]

use std::marker::PhantomData;

use regatta_tensor::{Ragged, RowSparse};

/// Where a variable's values are.
#[derive(Debug, Clone, Copy)]
pub enum Buf {
    /// Floats.
    F32(*mut f32, usize),
    /// The bits of 16-bit IEEE floats.
    F16(*mut u16, usize),
    /// The bits of 16-bit floats with a wide exponent.
    BF16(*mut u16, usize),
    /// Signed integers.
    I64(*mut i64, usize),
    /// Unsigned integers.
    U64(*mut u64, usize),
    /// A ragged input: its rows `first..first + rows`.
    Ragged {
        /// The whole value.
        value: *const Ragged,
        /// First row of this part.
        first: usize,
        /// Rows of this part.
        rows: usize,
    },
    /// A row-sparse gradient.
    Rows(*mut RowSparse),
    /// Not there, or only to be reached as an output (a variable that is updated in place).
    Absent,
}

/// Inputs and outputs of one op while its kernel runs.
///
/// Inputs can be read any number of times; each output is handed out once, so that no two mutable
/// slices overlap.
pub struct Io<'a> {
    ins: &'a [Buf],
    outs: &'a [Buf],
    taken: u64,
    lifetime: PhantomData<&'a mut f32>,
}

impl<'a> Io<'a> {
    /// # Safety
    /// For `'a`, every buffer must be valid and hold initialised values; each output must be the
    /// only way to reach its memory, apart from outputs listed twice, which are handed out once.
    pub unsafe fn new(ins: &'a [Buf], outs: &'a [Buf]) -> Io<'a> {
        assert!(outs.len() <= 64, "an op has at most 64 outputs");
        Io { ins, outs, taken: 0, lifetime: PhantomData }
    }

    /// Input `i` as floats.
    pub fn f32(&self, i: usize) -> &'a [f32] {
        match self.ins[i] {
            // SAFETY: valid for 'a and not written by anyone else, by the contract of `new`.
            Buf::F32(p, n) => unsafe { std::slice::from_raw_parts(p, n) },
            ref other => wrong(i, "f32", other),
        }
    }

    /// Input `i` as the bits of 16-bit floats.
    pub fn half(&self, i: usize) -> &'a [u16] {
        match self.ins[i] {
            // SAFETY: as in `f32`.
            Buf::F16(p, n) | Buf::BF16(p, n) => unsafe { std::slice::from_raw_parts(p, n) },
            ref other => wrong(i, "f16 or bf16", other),
        }
    }

    /// Input `i` as signed integers.
    pub fn i64(&self, i: usize) -> &'a [i64] {
        match self.ins[i] {
            // SAFETY: as in `f32`.
            Buf::I64(p, n) => unsafe { std::slice::from_raw_parts(p, n) },
            ref other => wrong(i, "i64", other),
        }
    }

    /// Input `i` as unsigned integers.
    pub fn u64(&self, i: usize) -> &'a [u64] {
        match self.ins[i] {
            // SAFETY: as in `f32`.
            Buf::U64(p, n) => unsafe { std::slice::from_raw_parts(p, n) },
            ref other => wrong(i, "u64", other),
        }
    }

    /// Input `i` as ids. A negative one of signed integers has the bits of 2^63 or more.
    pub fn ids(&self, i: usize) -> &'a [u64] {
        match self.ins[i] {
            // SAFETY: as in `f32`; integers of both kinds have one size, and all bits are valid.
            Buf::I64(p, n) => unsafe { std::slice::from_raw_parts(p.cast(), n) },
            _ => self.u64(i),
        }
    }

    /// Input `i` as a ragged slot of ids: all values, and one offset more than this part has rows.
    pub fn ragged_u64(&self, i: usize) -> (&'a [u64], &'a [u32]) {
        match self.ins[i] {
            Buf::Ragged { value, first, rows } => {
                // SAFETY: as in `f32`.
                let ragged: &'a Ragged = unsafe { &*value };
                (ragged.u64(), &ragged.offsets()[first..=first + rows])
            }
            ref other => wrong(i, "ragged ids", other),
        }
    }

    /// Whether input `i` is ragged.
    pub fn is_ragged(&self, i: usize) -> bool {
        matches!(self.ins[i], Buf::Ragged { .. })
    }

    /// Whether input `i` is a row-sparse gradient.
    pub fn is_rows(&self, i: usize) -> bool {
        matches!(self.ins[i], Buf::Rows(_))
    }

    /// Input `i` as a row-sparse gradient.
    pub fn rows(&self, i: usize) -> &'a RowSparse {
        match self.ins[i] {
            // SAFETY: as in `f32`.
            Buf::Rows(p) => unsafe { &*p },
            ref other => wrong(i, "row-sparse", other),
        }
    }

    /// Output `i` as floats, to be written (or updated in place).
    pub fn out_f32(&mut self, i: usize) -> &'a mut [f32] {
        self.take(i);
        match self.outs[i] {
            // SAFETY: the only way to this memory by the contract of `new`, and handed out once.
            Buf::F32(p, n) => unsafe { std::slice::from_raw_parts_mut(p, n) },
            ref other => wrong(i, "f32", other),
        }
    }

    /// Output `i` as the bits of 16-bit floats.
    pub fn out_half(&mut self, i: usize) -> &'a mut [u16] {
        self.take(i);
        match self.outs[i] {
            // SAFETY: as in `out_f32`.
            Buf::F16(p, n) | Buf::BF16(p, n) => unsafe { std::slice::from_raw_parts_mut(p, n) },
            ref other => wrong(i, "f16 or bf16", other),
        }
    }

    /// Output `i` as signed integers.
    pub fn out_i64(&mut self, i: usize) -> &'a mut [i64] {
        self.take(i);
        match self.outs[i] {
            // SAFETY: as in `out_f32`.
            Buf::I64(p, n) => unsafe { std::slice::from_raw_parts_mut(p, n) },
            ref other => wrong(i, "i64", other),
        }
    }

    /// Output `i` as unsigned integers.
    pub fn out_u64(&mut self, i: usize) -> &'a mut [u64] {
        self.take(i);
        match self.outs[i] {
            // SAFETY: as in `out_f32`.
            Buf::U64(p, n) => unsafe { std::slice::from_raw_parts_mut(p, n) },
            ref other => wrong(i, "u64", other),
        }
    }

    /// Output `i` as a row-sparse gradient. It still holds what the last run left there.
    pub fn out_rows(&mut self, i: usize) -> &'a mut RowSparse {
        self.take(i);
        match self.outs[i] {
            // SAFETY: as in `out_f32`.
            Buf::Rows(p) => unsafe { &mut *p },
            ref other => wrong(i, "row-sparse", other),
        }
    }

    /// Where the variables are, for kernels that hand some of them on.
    pub(crate) fn bufs(&self) -> (&'a [Buf], &'a [Buf]) {
        (self.ins, self.outs)
    }

    fn take(&mut self, i: usize) {
        assert!(self.taken & (1 << i) == 0, "output {i} was handed out already");
        self.taken |= 1 << i;
    }
}

fn wrong(i: usize, wanted: &str, is: &Buf) -> ! {
    panic!("variable {i} of this op is not {wanted} but {is:?}")
}
