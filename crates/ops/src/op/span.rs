//! Slices `start:end:stride` of some dimensions, as Python writes them: negative positions count
//! from the end, and what lies beyond an end is cut off. What `strided_slice` and `set_value`
//! share.

use regatta_ir::schema::{AttrDef, AttrKind};
use regatta_ir::{Error, Op, VarType};

use super::walk::Strides;
use crate::Infer;
use crate::infer::resolve_axis;

pub(super) const ATTRS: &[AttrDef] = &[
    ("axes", AttrKind::RequiredInts),
    ("starts", AttrKind::RequiredInts),
    ("ends", AttrKind::RequiredInts),
    ("strides", AttrKind::RequiredInts),
];

/// One slice of a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    axis: usize,
    start: i64,
    end: i64,
    stride: i64,
}

impl Span {
    /// First position and number of elements in a dimension of a size.
    fn within(&self, size: i64) -> (i64, i64) {
        let from_front = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (low, high) = if self.stride > 0 { (0, size) } else { (-1, size - 1) };
        let start = from_front(self.start).clamp(low, high.max(low));
        let end = from_front(self.end).clamp(low, high.max(low));
        let distance = if self.stride > 0 { end - start } else { start - end };
        let stride = self.stride.unsigned_abs() as i64;
        (start, if distance > 0 { (distance - 1) / stride + 1 } else { 0 })
    }

    /// Whether it takes a dimension of any size as it is.
    fn is_all(&self) -> bool {
        self.start == 0 && self.stride == 1 && self.end >= i64::from(i32::MAX)
    }
}

/// The slices of an op, if they make sense for a number of dimensions.
fn parse(op: &Op, rank: usize) -> Result<Result<Vec<Span>, &'static str>, Error> {
    let (axes, starts) = (op.ints("axes")?, op.ints("starts")?);
    let (ends, strides) = (op.ints("ends")?, op.ints("strides")?);
    if [starts.len(), ends.len(), strides.len()] != [axes.len(); 3] {
        return Ok(Err("should be as many as starts, ends and strides"));
    }
    let mut spans: Vec<Span> = Vec::with_capacity(axes.len());
    for (n, &axis) in axes.iter().enumerate() {
        let Some(axis) = resolve_axis(axis, rank) else {
            return Ok(Err("should be dimensions of X"));
        };
        if spans.iter().any(|span| span.axis == axis) {
            return Ok(Err("should be different dimensions"));
        }
        spans.push(Span { axis, start: starts[n], end: ends[n], stride: strides[n] });
    }
    Ok(Ok(spans))
}

/// The type of the slice.
pub(super) fn infer(i: &Infer<'_>) -> Result<Vec<VarType>, Error> {
    let mut ty = i.dense("X")?.clone();
    let spans = parse(i.op, ty.shape.len())?.map_err(|reason| {
        let axes = i.op.ints("axes").unwrap_or_default();
        i.bad_attr("axes", format!("are {axes:?}, but {reason}, which is {ty}"))
    })?;
    for span in spans {
        if span.stride == 0 {
            return Err(i.bad_attr("strides", "has a 0"));
        }
        let size = ty.shape[span.axis];
        if size >= 0 {
            ty.shape[span.axis] = span.within(size).1;
        } else if !span.is_all() {
            let dim = span.axis;
            return Err(i.wrong("X", &format!("an array with a known size of dimension {dim}")));
        }
    }
    Ok(vec![ty])
}

/// Sizes of the slice of an array of these dimensions.
pub(super) fn sizes(op: &Op, dims: &[usize]) -> Result<Vec<usize>, Error> {
    let mut sizes = dims.to_vec();
    for span in parse(op, dims.len())?.unwrap_or_default() {
        sizes[span.axis] = span.within(dims[span.axis] as i64).1 as usize;
    }
    Ok(sizes)
}

/// Where the elements of the slice are in an array of these dimensions.
pub(super) fn spans(op: &Op, dims: &[usize]) -> Result<Strides, Error> {
    let mut strides = Strides::dense(dims);
    for span in parse(op, dims.len())?.unwrap_or_default() {
        let (start, count) = span.within(dims[span.axis] as i64);
        if count > 0 {
            strides.start += start as usize * strides.steps[span.axis] as usize;
        }
        strides.steps[span.axis] *= span.stride as isize;
    }
    Ok(strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, end: i64, stride: i64) -> Span {
        Span { axis: 0, start, end, stride }
    }

    #[test]
    fn positions_are_those_of_python() {
        for (given, size, want) in [
            (span(0, 5, 1), 5, (0, 5)),
            (span(1, -1, 1), 5, (1, 3)),
            (span(-3, 100, 2), 5, (2, 2)),
            (span(4, 2, 1), 5, (4, 0)),
            (span(-1, -6, -1), 5, (4, 5)),
            (span(10, -100, -2), 5, (4, 3)),
            (span(1, i64::MIN, -1), 5, (1, 2)),
            (span(0, 3, 1), 0, (0, 0)),
            (span(-1, -2, -1), 0, (-1, 0)),
        ] {
            assert_eq!(given.within(size), want, "{given:?} of {size}");
        }
    }
}
