//! Any op on 16-bit floats: its inputs are widened, it computes in f32 (sums included), and its
//! results are rounded back.
//!
//! So an op needs one kernel only, and a program that keeps activations in 16 bits takes half the
//! memory for them. All float inputs of such an op have one 16-bit type, and its float outputs get
//! the same. The room to compute in belongs to the segment, not to the op, so it is as large as the
//! largest op needs.
#![expect(unsafe_code, reason = "hands widened copies to kernels as their variables")]

use regatta_ir::{Error, Layout, Op, VarType};
use regatta_kernels::half::{self, Half};
use regatta_tensor::DType;

use crate::{Buf, Infer, Io, Kernel, KernelError, OpDef, Spec, StepCtx};

/// Ops that take elements of any type as they are.
#[rustfmt::skip]
const MOVES_OR_CONVERTS: &[&str] = &[
    "assign", "cast", "concat", "expand", "flip", "gather", "gather_nd", "masked_select", "offload", "pad", "reload",
    "reshape", "roll", "set_value", "slice", "split", "strided_slice", "take_along_axis", "tile",
    "transpose", "tril_triu", "where",
];

/// The format of a 16-bit type.
pub(crate) fn format(dtype: DType) -> Half {
    match dtype {
        DType::F16 => Half::F16,
        DType::BF16 => Half::Bf16,
        other => unreachable!("{other} is no 16-bit float"),
    }
}

/// The 16-bit type that an op computes in, if its inputs have one.
///
/// # Errors
/// If other float inputs have another type, or the op would update a 16-bit variable in place.
pub(crate) fn precision(op: &Op, ins: &[VarType]) -> Result<Option<DType>, Error> {
    if MOVES_OR_CONVERTS.contains(&op.kind.as_str()) {
        return Ok(None);
    }
    let Some(half) = ins.iter().map(|ty| ty.dtype).find(|dtype| dtype.is_half()) else {
        return Ok(None);
    };
    let slots = op.inputs.iter().flat_map(|(slot, vars)| vars.iter().map(move |v| (slot, v)));
    for ((slot, var), ty) in slots.zip(ins) {
        let other_float = ty.dtype.is_float() && ty.dtype != half;
        if other_float || op.output_vars().any(|out| out == var) {
            let expected = if other_float {
                format!("{half}, as other inputs of the op; cast it first")
            } else {
                "f32, since the op updates it in place".to_string()
            };
            return Err(Error::Type {
                op: op.kind.clone(),
                slot: slot.clone(),
                var: var.clone(),
                expected,
                actual: ty.to_string(),
            });
        }
    }
    Ok(Some(half))
}

/// The same type with 16-bit floats widened.
fn widened(ty: &VarType) -> VarType {
    let dtype = if ty.dtype.is_half() { DType::F32 } else { ty.dtype };
    VarType { dtype, ..ty.clone() }
}

/// Output types of an op on 16-bit floats: those of the same op on f32, narrowed.
pub(crate) fn infer(
    def: &OpDef,
    op: &Op,
    ins: &[VarType],
    half: DType,
) -> Result<Vec<VarType>, Error> {
    let wide: Vec<VarType> = ins.iter().map(widened).collect();
    let mut outs = (def.infer)(&Infer { op, ins: &wide })?;
    for (ty, var) in outs.iter_mut().zip(op.output_vars()) {
        if ty.layout == Layout::Rows {
            return Err(Error::Type {
                op: op.kind.clone(),
                slot: op.inputs[0].0.clone(),
                var: op.inputs[0].1[0].clone(),
                expected: format!("f32, since '{var}' is row-sparse"),
                actual: ins[0].to_string(),
            });
        }
        if ty.dtype == DType::F32 {
            ty.dtype = half;
        }
    }
    Ok(outs)
}

/// The f32 kernel of an op between conversions.
pub(crate) fn kernel(def: &OpDef, spec: &Spec<'_>, half: DType) -> Result<Kernel, Error> {
    let wide = |types: &[VarType]| types.iter().map(widened).collect::<Vec<_>>();
    let (declared, ins, outs) = (wide(spec.declared), wide(spec.ins), wide(spec.outs));
    let inner = (def.kernel)(&Spec { op: spec.op, declared: &declared, ins: &ins, outs: &outs })?;
    let mut len = 0;
    let mut place = |types: &[VarType]| -> Vec<Option<usize>> {
        let halves = types.iter().map(|ty| {
            ty.dtype.is_half().then(|| {
                let at = len;
                len += ty.numel().expect("dimensions are known").next_multiple_of(LINE);
                at
            })
        });
        halves.collect()
    };
    let (in_at, out_at) = (place(spec.ins), place(spec.outs));
    let (ins, outs) = (Vec::new(), Vec::new());
    let mut kernel = WideningKernel { inner, half: format(half), len, in_at, out_at, ins, outs };
    Ok(Box::new(move |io, ctx| kernel.run(io, ctx)))
}

/// Floats in a cache line: copies begin at whole lines.
const LINE: usize = 16;

struct WideningKernel {
    inner: Kernel,
    half: Half,
    /// Floats that all copies take.
    len: usize,
    /// Where the copy of each variable begins; nothing for those that need none.
    in_at: Vec<Option<usize>>,
    out_at: Vec<Option<usize>>,
    /// What the inner kernel sees; written again by every run.
    ins: Vec<Buf>,
    outs: Vec<Buf>,
}

// SAFETY: the pointers in `ins` and `outs` are written at the start of each run and not read after
// it; everything else can be sent.
unsafe impl Send for WideningKernel {}

impl WideningKernel {
    fn run(&mut self, io: &mut Io<'_>, ctx: &mut StepCtx) -> Result<(), KernelError> {
        // Taken out while the kernel runs, since it gets the rest of the context.
        let mut room = std::mem::take(&mut ctx.widened);
        if room.len() < self.len {
            room.resize(self.len, 0.0);
        }
        let (ins, outs) = io.bufs();
        for (i, at) in self.in_at.iter().enumerate() {
            if let Some(at) = *at {
                let bits = io.half(i);
                half::widen(self.half, bits, &mut room[at..at + bits.len()]);
            }
        }
        let base = room.as_mut_ptr();
        point(ins, &self.in_at, base, &mut self.ins);
        point(outs, &self.out_at, base, &mut self.outs);
        // SAFETY: copies lie side by side in `room`, which lives until after the call; other
        // variables are those of `io`, whose contract is the same.
        let mut inner = unsafe { Io::new(&self.ins, &self.outs) };
        let result = (self.inner)(&mut inner, ctx);
        for (i, at) in self.out_at.iter().enumerate() {
            if let Some(at) = *at {
                let bits = io.out_half(i);
                half::narrow(self.half, &room[at..at + bits.len()], bits);
            }
        }
        ctx.widened = room;
        result
    }
}

/// Replaces 16-bit variables by their copies.
fn point(bufs: &[Buf], at: &[Option<usize>], base: *mut f32, to: &mut Vec<Buf>) {
    to.clear();
    to.extend(bufs.iter().zip(at).map(|(buf, at)| match (*buf, *at) {
        (Buf::F16(_, n) | Buf::BF16(_, n), Some(at)) => Buf::F32(base.wrapping_add(at), n),
        (other, _) => other,
    }));
}
