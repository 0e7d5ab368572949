//! Convolutions over images stored as `[image, channel, row, column]`, and their gradients.
//!
//! [`Conv`] says how the window moves; its [`Plan`] computes the maps, the gradient of the images
//! and the gradient of the weights. A transposed convolution is the gradient of the images.
//!
//! Batches go through `lanes`, `products` and `weights`: images lie side by side in the lanes of
//! vectors, and each position of the window is a small product, which leaves out what meets the
//! paddings. Few images go through `patches`.
//!
//! ```
//! use regatta_kernels::conv::Conv;
//! use regatta_kernels::gemm::GemmScratch;
//! // Sums of neighbours in a row: one channel, 1 x 4 pixels, a window of 1 x 2.
//! let conv = Conv {
//!     images: 1, groups: 1, channels: 1, image: [1, 4], maps: 1, map: [1, 3],
//!     window: [1, 2], stride: [1, 1], pad: [0, 0], dilation: [1, 1],
//! };
//! let (mut y, mut scratch) = ([0.0; 3], GemmScratch::default());
//! conv.plan().forward(&[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0], None, &mut y, &mut scratch);
//! assert_eq!(y, [3.0, 5.0, 7.0]);
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod isa;
mod lanes;
mod panels;
mod patches;
mod portable;
mod products;
mod taps;
#[cfg(test)]
mod tests;
mod weights;

use crate::gemm::GemmScratch;
use isa::Isa;
use taps::Taps;

/// How a window moves over images. Pairs are rows and columns.
///
/// `channels` and `maps` are those of all groups; weights are
/// `[maps, channels / groups, window rows, window columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Images.
    pub images: usize,
    /// Groups; channels and maps are divided among them.
    pub groups: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Size of an image.
    pub image: [usize; 2],
    /// Maps, the channels that come out.
    pub maps: usize,
    /// Size of a map.
    pub map: [usize; 2],
    /// Size of the window.
    pub window: [usize; 2],
    /// Pixels from one position of the window to the next.
    pub stride: [usize; 2],
    /// Zeros before the first pixel. Those behind the last follow from the size of the maps.
    pub pad: [usize; 2],
    /// Pixels from one weight of the window to the next.
    pub dilation: [usize; 2],
}

impl Conv {
    /// Floats in all images.
    pub fn images_len(&self) -> usize {
        self.images * self.image_len()
    }

    /// Floats in all maps.
    pub fn maps_len(&self) -> usize {
        self.images * self.maps_of_image()
    }

    /// Floats in the weights.
    pub fn weights_len(&self) -> usize {
        self.maps * self.depth()
    }

    fn image_len(&self) -> usize {
        self.channels * self.pixels()
    }

    fn maps_of_image(&self) -> usize {
        self.maps * self.positions()
    }

    /// Pixels of a channel.
    fn pixels(&self) -> usize {
        self.image[0] * self.image[1]
    }

    /// Positions of the window, the pixels of a map.
    fn positions(&self) -> usize {
        self.map[0] * self.map[1]
    }

    /// Weights that make one value.
    fn depth(&self) -> usize {
        self.channels / self.groups * self.window[0] * self.window[1]
    }

    /// What the methods of a plan need to know, worked out once.
    pub fn plan(self) -> Plan {
        Plan {
            conv: self,
            isa: Isa::detect(),
            to_maps: [0, 1].map(|d| taps::to_maps(&self, d)),
            to_images: [0, 1].map(|d| taps::to_images(&self, d)),
        }
    }

    fn check(&self, images: usize, weights: usize, maps: usize) {
        assert_eq!(images, self.images_len(), "conv: images");
        assert_eq!(weights, self.weights_len(), "conv: weights");
        assert_eq!(maps, self.maps_len(), "conv: maps");
        assert!(self.groups > 0 && self.stride[0] > 0 && self.stride[1] > 0, "conv: {self:?}");
        assert!(self.channels.is_multiple_of(self.groups), "conv: channels are not whole groups");
        assert!(self.maps.is_multiple_of(self.groups), "conv: maps are not whole groups");
    }

    /// Positions at which a weight of the window meets a pixel, along dimension `d`, and the pixel
    /// that the first of them meets.
    fn meets(&self, d: usize, weight: usize) -> (std::ops::Range<usize>, usize) {
        let (stride, at) = (self.stride[d], weight * self.dilation[d]);
        let first = self.pad[d].saturating_sub(at).div_ceil(stride);
        let reach = self.image[d] + self.pad[d];
        let end = if reach > at { (reach - at).div_ceil(stride).min(self.map[d]) } else { 0 };
        if first >= end { (0..0, 0) } else { (first..end, first * stride + at - self.pad[d]) }
    }
}

/// A convolution that can be run many times.
#[derive(Clone)]
pub struct Plan {
    conv: Conv,
    isa: &'static Isa,
    /// Which weights meet which pixels, for each position of rows and of columns.
    to_maps: [Vec<Taps>; 2],
    /// Which weights meet which positions, for each pixel of rows and of columns.
    to_images: [Vec<Taps>; 2],
}

/// Fewer images leave too many lanes empty; of small maps, whose patches are short, some more may
/// be. Gradients of weights add images up and leave none empty. Measured on Zen 5.
const FEWEST_IMAGES: usize = 10;
const FEWEST_OF_SMALL: usize = 6;
const SMALL_MAP: usize = 64;

impl Plan {
    /// Whether the images fill the lanes of vectors.
    fn fills_lanes(&self) -> bool {
        let small = self.conv.positions() <= SMALL_MAP;
        self.conv.images >= if small { FEWEST_OF_SMALL } else { FEWEST_IMAGES }
    }

    /// How the window moves.
    pub fn conv(&self) -> &Conv {
        &self.conv
    }

    /// Maps of the images, `y = x * w + bias`, with one value of the bias per map.
    ///
    /// # Panics
    /// If a slice has another length than its dimensions say.
    pub fn forward(
        &self,
        x: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
        scratch: &mut GemmScratch,
    ) {
        let conv = &self.conv;
        conv.check(x.len(), w.len(), y.len());
        if !self.fills_lanes() {
            return patches::forward(conv, x, w, bias, y, scratch);
        }
        products::to_maps(self, x, w, bias, y, scratch);
    }

    /// Gradient of the images from that of the maps; also the transposed convolution of `dy`, then
    /// with one value of the bias per channel.
    ///
    /// # Panics
    /// If a slice has another length than its dimensions say.
    pub fn to_images(
        &self,
        dy: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        dx: &mut [f32],
        scratch: &mut GemmScratch,
    ) {
        let conv = &self.conv;
        conv.check(dx.len(), w.len(), dy.len());
        if !self.fills_lanes() {
            return patches::to_images(conv, dy, w, bias, dx, scratch);
        }
        products::to_images(self, dy, w, bias, dx, scratch);
    }

    /// Gradient of the weights from images and the gradient of their maps.
    ///
    /// # Panics
    /// If a slice has another length than its dimensions say.
    pub fn to_weights(&self, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut GemmScratch) {
        let conv = &self.conv;
        conv.check(x.len(), dw.len(), dy.len());
        if conv.images < FEWEST_OF_SMALL {
            return patches::to_weights(conv, x, dy, dw, scratch);
        }
        weights::run(conv, self.isa, x, dy, dw, scratch);
    }
}

/// Adds up each channel of `[image, channel, pixel]`: the gradient of a bias.
///
/// # Panics
/// If `d` is not whole images.
pub fn channel_sums(d: &[f32], pixels: usize, sums: &mut [f32]) {
    let image = pixels * sums.len();
    assert!(d.is_empty() || d.len().is_multiple_of(image), "d is not whole images");
    sums.fill(0.0);
    if image == 0 {
        return;
    }
    for image in d.chunks_exact(image) {
        for (sum, channel) in sums.iter_mut().zip(image.chunks_exact(pixels)) {
            *sum += crate::vector::sum(channel);
        }
    }
}
