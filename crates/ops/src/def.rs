//! What defines an op kind.

use regatta_ir::{Attr, Error, Op, Schema, VarType, grad_name};
use regatta_kernels::gemm::GemmScratch;
use regatta_tensor::Value;

use crate::comm::Peers;
use crate::{Infer, Io};

/// Everything about one op kind.
pub struct OpDef {
    /// Slots and attributes.
    pub schema: Schema,
    /// Types of the outputs, slot by slot.
    pub infer: fn(&Infer<'_>) -> Result<Vec<VarType>, Error>,
    /// How its gradient is computed.
    pub grad: Grad,
    /// Makes the kernel for given shapes; it is then run many times.
    pub kernel: fn(&Spec<'_>) -> Result<Kernel, Error>,
    /// What splitting the batch over threads means for it.
    pub batch: fn(&Op) -> Batch,
    /// Inputs on which its gradient is checked against differences.
    pub samples: fn() -> Vec<Sample>,
}

/// The gradient of an op kind.
#[derive(Clone, Copy)]
pub enum Grad {
    /// There is none, and why.
    None(&'static str),
    /// Ops that compute it.
    Rule(fn(&GradCtx<'_>) -> Result<Vec<Op>, Error>),
}

/// How an op behaves when each thread runs it on a part of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Row `i` of the result follows from row `i` of the batched inputs; a result without a batch
    /// dimension is a sum over examples.
    PerExample,
    /// As above, and `f(a) + f(b) = f(a + b)`: it may also be applied to sums that are not yet
    /// complete.
    Linear,
    /// Of other variables than those of these slots it reads the shape alone. As
    /// [`Batch::PerExample`] where one of the others is batched, and as [`Batch::Linear`]
    /// elsewhere.
    LinearIn(&'static [&'static str]),
    /// As [`Batch::PerExample`] as long as only variables of these slots differ from part to part;
    /// otherwise all examples are needed at once.
    RowsOf(&'static [&'static str]),
    /// It needs all examples at once.
    Whole,
}

/// Asks for the gradient ops of one op.
pub struct GradCtx<'a> {
    /// The forward op.
    pub op: &'a Op,
    /// Whether the gradient of a variable exists (for outputs) or is wanted (for inputs).
    pub has_grad: &'a dyn Fn(&str) -> bool,
    /// Type of a variable.
    pub ty: &'a dyn Fn(&str) -> VarType,
}

impl GradCtx<'_> {
    /// Gradient variable of the single output in a slot, if anything flows back into it.
    pub fn dout(&self, slot: &str) -> Option<String> {
        self.op.output_var(slot).filter(|v| (self.has_grad)(v)).map(grad_name)
    }

    /// Gradient variable to write for the single input in a slot, if it is wanted.
    pub fn din(&self, slot: &str) -> Option<String> {
        self.op.input_var(slot).filter(|v| (self.has_grad)(v)).map(grad_name)
    }

    /// An op of kind `<kind>_grad` with the same attributes.
    pub fn grad_op(&self) -> Op {
        let mut op = Op::new(&format!("{}_grad", self.op.kind));
        op.attrs = self.op.attrs.clone();
        op
    }

    /// The usual case: `dX = <kind>_grad(<the given forward variables>, dOut)` for one input `X`
    /// and one output `Out`; nothing if `X` wants no gradient.
    pub fn unary(&self, forward_slots: &[&str]) -> Vec<Op> {
        let (Some(dx), Some(dout)) = (self.din("X"), self.dout("Out")) else { return vec![] };
        let mut op = self.grad_op();
        for slot in forward_slots {
            let var = self.op.input_var(slot).or_else(|| self.op.output_var(slot));
            op = op.input(slot, var.expect("the rule names its own slots"));
        }
        vec![op.input("dOut", &dout).output("dX", &dx)]
    }

    /// As [`GradCtx::unary`] with several inputs: one op that reads the forward variables and the
    /// gradient of `out`, and writes `d<slot>` for each of the inputs that wants it.
    pub fn several(&self, forward_slots: &[&str], out: &str, inputs: &[&str]) -> Vec<Op> {
        let Some(dout) = self.dout(out) else { return vec![] };
        let mut op = self.grad_op();
        for slot in forward_slots {
            let var = self.op.input_var(slot).or_else(|| self.op.output_var(slot));
            op = op.input(slot, var.expect("the rule names its own slots"));
        }
        op = op.input(&format!("d{out}"), &dout);
        for slot in inputs {
            if let Some(d) = self.din(slot) {
                op = op.output(&format!("d{slot}"), &d);
            }
        }
        if op.outputs.is_empty() { vec![] } else { vec![op] }
    }
}

/// What a kernel is made for: the op and the types of its variables with all dimensions known.
pub struct Spec<'a> {
    /// The op.
    pub op: &'a Op,
    /// Input types, slot by slot, as declared: -1 where the batch is.
    pub declared: &'a [VarType],
    /// Input types, slot by slot, with known dimensions.
    pub ins: &'a [VarType],
    /// Output types, slot by slot, with known dimensions.
    pub outs: &'a [VarType],
}

impl Spec<'_> {
    /// Position of the (first) variable of an input slot among all inputs.
    pub fn at(&self, slot: &str) -> Option<usize> {
        position(&self.op.inputs, slot)
    }

    /// Position of the (first) variable of an output slot among all outputs.
    pub fn out_at(&self, slot: &str) -> Option<usize> {
        position(&self.op.outputs, slot)
    }

    /// Dimensions of an input.
    pub fn dims(&self, i: usize) -> Vec<usize> {
        self.ins[i].shape.iter().map(|&d| d as usize).collect()
    }

    /// Rows and width of an input seen as a matrix whose rows are its last dimension.
    pub fn matrix(&self, i: usize) -> (usize, usize) {
        let dims = self.dims(i);
        let width = dims.last().copied().unwrap_or(1);
        let rows = dims[..dims.len().saturating_sub(1)].iter().product();
        (rows, width)
    }

    /// Whether an input's first dimension is the batch.
    pub fn batched(&self, i: usize) -> bool {
        self.declared[i].is_batched()
    }
}

fn position(slots: &[(String, Vec<String>)], slot: &str) -> Option<usize> {
    let mut at = 0;
    for (name, vars) in slots {
        if name == slot {
            return Some(at);
        }
        at += vars.len();
    }
    None
}

/// A prepared kernel. It must not allocate once it has run on the shapes it was made for.
pub type Kernel = Box<dyn FnMut(&mut Io<'_>, &mut StepCtx) -> Result<(), KernelError> + Send>;

/// Bad values met by a kernel: a label out of range, an id beyond the table.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct KernelError(pub String);

/// What a kernel may know of the step besides its inputs.
#[derive(Default)]
pub struct StepCtx {
    /// Number of the step, from 0.
    pub step: u64,
    /// First example of this part in the whole batch.
    pub first_example: usize,
    /// Examples in this part.
    pub rows: usize,
    /// Examples in the whole batch.
    pub total_rows: usize,
    /// Packing buffers of the matrix multiply.
    pub gemm: GemmScratch,
    /// Other ranks.
    pub peers: Peers,
    /// Room in which ops on 16-bit floats compute; all ops of a segment share it.
    pub widened: Vec<f32>,
}

impl StepCtx {
    /// How many elements a mean over the whole batch divides by, given the elements of this part.
    pub fn whole_count(&self, part: usize) -> usize {
        if self.rows == 0 || self.rows == self.total_rows {
            return part;
        }
        // Multiplied first: a part may hold less than one element per example.
        part * self.total_rows / self.rows
    }
}

/// An op with inputs, for the gradient check.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// What is special about it.
    pub name: &'static str,
    /// Input slot and values.
    pub inputs: Vec<(&'static str, Vec<Value>)>,
    /// Attributes.
    pub attrs: Vec<(&'static str, Attr)>,
    /// How many variables each output slot holds, where not one.
    pub out_counts: Vec<(&'static str, usize)>,
    /// Float inputs that are not differentiated, such as labels.
    pub fixed: Vec<&'static str>,
    /// Outputs that must not be part of the checked sum, such as a saved mask.
    pub ignored_outputs: Vec<&'static str>,
    /// Allowed relative error; 0 means the default.
    pub tolerance: f64,
}

/// Floats of a shape, spread over `[low, high]` in a fixed irregular order, for samples.
pub(crate) fn spread(shape: &[usize], low: f32, high: f32) -> Value {
    let n: usize = shape.iter().product();
    let rng = regatta_tensor::Rng::new(n as u64, (low.to_bits() ^ high.to_bits()) as u64);
    let values = (0..n as u64).map(|i| low + (high - low) * rng.unit_f32(i)).collect();
    regatta_tensor::Tensor::from_f32(shape, values).expect("lengths agree").into()
}

impl Sample {
    /// A sample with one float input `X`.
    pub fn x(name: &'static str, x: Value) -> Sample {
        Sample { name, inputs: vec![("X", vec![x])], ..Sample::default() }
    }

    /// Adds an input.
    #[must_use]
    pub fn with(mut self, slot: &'static str, value: impl Into<Value>) -> Sample {
        self.inputs.push((slot, vec![value.into()]));
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attr(mut self, name: &'static str, value: impl Into<Attr>) -> Sample {
        self.attrs.push((name, value.into()));
        self
    }

    /// Names a float input that is not differentiated.
    #[must_use]
    pub fn fix(mut self, slot: &'static str) -> Sample {
        self.fixed.push(slot);
        self
    }

    /// Gives an output slot that many variables.
    #[must_use]
    pub fn outs(mut self, slot: &'static str, count: usize) -> Sample {
        self.out_counts.push((slot, count));
        self
    }

    /// Names an output that is not part of the checked sum.
    #[must_use]
    pub fn ignore(mut self, slot: &'static str) -> Sample {
        self.ignored_outputs.push(slot);
        self
    }
}

/// For [`OpDef::grad`] of gradients.
pub(crate) const NO_SECOND: Grad = Grad::None("gradients of gradients are not needed for training");

/// For ops without a gradient.
pub(crate) fn no_samples() -> Vec<Sample> {
    vec![]
}

/// For [`OpDef::batch`].
pub(crate) fn per_example(_: &Op) -> Batch {
    Batch::PerExample
}

/// For [`OpDef::batch`].
pub(crate) fn linear(_: &Op) -> Batch {
    Batch::Linear
}

/// For [`OpDef::batch`].
pub(crate) fn linear_in_dout(_: &Op) -> Batch {
    Batch::LinearIn(&["dOut"])
}

/// For [`OpDef::batch`].
pub(crate) fn whole(_: &Op) -> Batch {
    Batch::Whole
}
