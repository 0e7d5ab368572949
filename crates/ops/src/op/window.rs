//! Attributes of windows that move over images: strides, paddings and dilations of two dimensions.

use regatta_ir::schema::{AttrDef, AttrKind};
use regatta_ir::{Error, Op, VarType};

use crate::Infer;

/// Pixels from one position to the next; none given: an op's own default.
pub(super) const STRIDES: AttrDef = ("strides", AttrKind::Ints);
/// Zeros around the image: `[rows, columns]` or `[top, bottom, left, right]`.
pub(super) const PADDINGS: AttrDef = ("paddings", AttrKind::Ints);
/// Pixels from one element of the window to the next.
pub(super) const DILATIONS: AttrDef = ("dilations", AttrKind::Ints);

/// Sizes below it can be multiplied without a thought.
const MOST: i64 = 1 << 30;

/// The error that an attribute makes no sense.
pub(super) fn bad(op: &Op, attr: &str, reason: String) -> Error {
    Error::Attr { op: op.kind.clone(), attr: attr.to_string(), reason }
}

/// Two sizes of at least `least`, or the default if none are given.
pub(super) fn pair(
    op: &Op,
    attr: &str,
    least: i64,
    default: [usize; 2],
) -> Result<[usize; 2], Error> {
    match op.ints(attr)?[..] {
        [] => Ok(default),
        [a, b] if [a, b].iter().all(|x| (least..MOST).contains(x)) => Ok([a as usize, b as usize]),
        ref other => {
            Err(bad(op, attr, format!("is {other:?}, but should be two sizes of at least {least}")))
        }
    }
}

/// Zeros `[top, left]` and `[bottom, right]`.
pub(super) fn paddings(op: &Op) -> Result<[[usize; 2]; 2], Error> {
    let given = op.ints("paddings")?;
    let sizes: Vec<usize> =
        given.iter().filter(|&&p| (0..MOST).contains(&p)).map(|&p| p as usize).collect();
    match sizes[..] {
        [] if given.is_empty() => Ok([[0; 2]; 2]),
        [rows, cols] if given.len() == 2 => Ok([[rows, cols]; 2]),
        [top, bottom, left, right] => Ok([[top, left], [bottom, right]]),
        _ => {
            let reason = format!(
                "is {given:?}, but should be [rows, columns] or [top, bottom, left, right], \
                 not negative"
            );
            Err(bad(op, "paddings", reason))
        }
    }
}

/// Channels and size of the images in a slot; only their number may be unknown.
pub(super) fn images<'a>(i: &Infer<'a>, slot: &str) -> Result<(&'a VarType, [usize; 3]), Error> {
    let ty = i.floats_of_rank(slot, 4)?;
    match ty.shape[1..] {
        [c, h, w] if c > 0 && h > 0 && w > 0 => Ok((ty, [c as usize, h as usize, w as usize])),
        _ => Err(i.wrong(slot, "f32[images, channels, rows, columns] with known sizes of each")),
    }
}
