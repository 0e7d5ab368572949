//! Which weights of the window meet which pixels, along one dimension.

use super::Conv;

/// The weights that meet something at one place: an arithmetic progression of weights, and one of
/// what they meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taps {
    /// The first weight.
    pub(super) first: usize,
    /// How many weights.
    pub(super) count: usize,
    /// From one weight to the next.
    pub(super) step: usize,
    /// What the first weight meets.
    pub(super) source: usize,
    /// From what a weight meets to what the next one does.
    pub(super) source_step: isize,
}

/// For each position of the window: weights and the pixels they meet.
pub(super) fn to_maps(conv: &Conv, d: usize) -> Vec<Taps> {
    let at = |position: usize, weight: usize| {
        let pixel =
            (position * conv.stride[d] + weight * conv.dilation[d]).checked_sub(conv.pad[d]);
        pixel.filter(|pixel| *pixel < conv.image[d])
    };
    all(conv.map[d], conv.window[d], at)
}

/// For each pixel: weights and the positions at which they meet it.
pub(super) fn to_images(conv: &Conv, d: usize) -> Vec<Taps> {
    let at = |pixel: usize, weight: usize| {
        let from = (pixel + conv.pad[d]).checked_sub(weight * conv.dilation[d])?;
        let position = from / conv.stride[d];
        (from.is_multiple_of(conv.stride[d]) && position < conv.map[d]).then_some(position)
    };
    all(conv.image[d], conv.window[d], at)
}

fn all(places: usize, window: usize, at: impl Fn(usize, usize) -> Option<usize>) -> Vec<Taps> {
    let of_place = |place: usize| {
        let mut taps = Taps { step: 1, source_step: 1, ..Taps::default() };
        for (weight, source) in (0..window).filter_map(|w| Some((w, at(place, w)?))) {
            match taps.count {
                0 => (taps.first, taps.source) = (weight, source),
                1 => {
                    taps.step = weight - taps.first;
                    taps.source_step = source as isize - taps.source as isize;
                }
                _ => {}
            }
            taps.count += 1;
        }
        taps
    };
    (0..places).map(of_place).collect()
}

/// The weights that meet anything at all.
pub(super) fn used(taps: &[Taps]) -> std::ops::Range<usize> {
    let some = || taps.iter().filter(|t| t.count > 0);
    let start = some().map(|t| t.first).min().unwrap_or(0);
    let end = some().map(|t| t.first + (t.count - 1) * t.step + 1).max().unwrap_or(0);
    start..end
}
