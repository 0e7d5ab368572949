//! Moves images between their own order and orders that products read front to back.

use super::isa::{Block, Isa, LANES};

/// A group of channels of some images: image `i` begins at `i * stride`.
#[derive(Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
    pub(super) count: usize,
    pub(super) channels: usize,
    pub(super) pixels: usize,
}

impl Images<'_> {
    fn len(&self) -> usize {
        self.channels * self.pixels
    }

    fn check(&self) {
        assert!(self.count > 0 && self.data.len() >= (self.count - 1) * self.stride + self.len());
    }
}

/// Runs blocks of a transpose that lie in their slices.
struct Mover<'a> {
    isa: &'a Isa,
    src: &'a [f32],
    dst: &'a mut [f32],
}

impl Mover<'_> {
    /// Columns `from..from + cols` of rows that are `src_row` apart go to `places`.
    #[inline]
    fn run(
        &mut self,
        from: usize,
        src_row: usize,
        [rows, cols]: [usize; 2],
        places: &[usize; LANES],
        add: &[f32; LANES],
    ) {
        let last = places[..cols].iter().max().map_or(0, |place| place + rows);
        assert!(from + (rows - 1) * src_row + cols <= self.src.len() && last <= self.dst.len());
        let src = self.src[from..].as_ptr();
        let dst = self.dst.as_mut_ptr();
        let block = Block { src, src_row, rows, cols, dst, places, add };
        // SAFETY: the rows and the places lie in the slices, and the instruction set was detected.
        unsafe { (self.isa.transpose)(&block) };
    }
}

const NOTHING: [f32; LANES] = [0.0; LANES];

/// To `[row, column, channel, image]`, `across` images apart and columns `width` pixels wide, of
/// which the first `skip` are left alone.
pub(super) fn side_by_side(
    isa: &Isa,
    images: Images<'_>,
    columns: usize,
    [width, skip]: [usize; 2],
    across: usize,
    dst: &mut [f32],
) {
    images.check();
    let mut mover = Mover { isa, src: images.data, dst };
    let mut places = [0; LANES];
    // Where the next value goes, in units of all images.
    let (mut channel, mut row, mut column) = (0, 0, 0);
    let rows = images.pixels / columns;
    for from in (0..images.len()).step_by(LANES) {
        let cols = LANES.min(images.len() - from);
        for place in &mut places[..cols] {
            let pixel = row * width + skip + column;
            *place = (pixel * images.channels + channel) * across;
            column += 1;
            if column == columns {
                (row, column) = (row + 1, 0);
                if row == rows {
                    (channel, row) = (channel + 1, 0);
                }
            }
        }
        for first in (0..images.count).step_by(LANES) {
            let n = LANES.min(images.count - first);
            let at = first * images.stride + from;
            mover.run(at, images.stride, [n, cols], &places, &NOTHING);
            if first + LANES < images.count {
                places[..cols].iter_mut().for_each(|place| *place += LANES);
            }
        }
    }
}

/// To `[pixel, image, channel]` with `across` floats for the channels.
pub(super) fn channels_last(isa: &Isa, images: Images<'_>, across: usize, dst: &mut [f32]) {
    images.check();
    let Images { stride, count, channels, pixels, .. } = images;
    let mut mover = Mover { isa, src: images.data, dst };
    let mut places = [0; LANES];
    for image in 0..count {
        if pixels == 1 {
            let from = &mover.src[image * stride..][..channels];
            mover.dst[image * across..][..channels].copy_from_slice(from);
            continue;
        }
        for pixel in (0..pixels).step_by(LANES) {
            let cols = LANES.min(pixels - pixel);
            for (j, place) in places[..cols].iter_mut().enumerate() {
                *place = ((pixel + j) * count + image) * across;
            }
            for channel in (0..channels).step_by(LANES) {
                let rows = LANES.min(channels - channel);
                let at = image * stride + channel * pixels + pixel;
                mover.run(at, pixels, [rows, cols], &places, &NOTHING);
                places[..cols].iter_mut().for_each(|place| *place += LANES);
            }
        }
    }
}

/// From `[channel, pixel, image]`, `across` images apart, back to images of `stride` floats. Adds
/// the bias of each channel.
pub(super) fn apart(
    isa: &Isa,
    src: &[f32],
    across: usize,
    [count, channels, pixels]: [usize; 3],
    bias: Option<&[f32]>,
    stride: usize,
    dst: &mut [f32],
) {
    let len = channels * pixels;
    let mut mover = Mover { isa, src, dst };
    let (mut places, mut add) = ([0; LANES], NOTHING);
    for first in (0..count).step_by(LANES) {
        let cols = LANES.min(count - first);
        for from in (0..len).step_by(LANES) {
            let rows = LANES.min(len - from);
            if let Some(bias) = bias {
                for (i, add) in add[..rows].iter_mut().enumerate() {
                    *add = bias[(from + i) / pixels];
                }
            }
            for (j, place) in places[..cols].iter_mut().enumerate() {
                *place = (first + j) * stride + from;
            }
            mover.run(from * across + first, across, [rows, cols], &places, &add);
        }
    }
}

/// To `[row of dst, column]` from `[column, row]`-like weights; see [`super::panels`].
pub(super) fn turn(
    isa: &Isa,
    src: &[f32],
    from: usize,
    src_row: usize,
    size: [usize; 2],
    places: &[usize; LANES],
    dst: &mut [f32],
) {
    Mover { isa, src, dst }.run(from, src_row, size, places, &NOTHING);
}
