//! Convolutions against sums written out pixel by pixel.

use super::isa::Isa;
use super::{Conv, Plan, channel_sums};
use crate::gemm::GemmScratch;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A convolution whose maps are as large as pads on both sides allow.
fn conv(
    images: usize,
    groups: usize,
    [channels, maps]: [usize; 2],
    image: [usize; 2],
    window: [usize; 2],
    [stride, pad, dilation]: [usize; 3],
) -> Conv {
    let map = [0, 1].map(|d| (image[d] + 2 * pad - dilation * (window[d] - 1) - 1) / stride + 1);
    let [stride, pad, dilation] = [stride, pad, dilation].map(|x| [x, x]);
    Conv { images, groups, channels, image, maps, map, window, stride, pad, dilation }
}

/// Calls back with the places of image, weight and map of every product of the convolution.
fn each_product(c: &Conv, mut f: impl FnMut(usize, usize, usize)) {
    let (in_group, out_group) = (c.channels / c.groups, c.maps / c.groups);
    let ([h, w], [mh, mw], [kh, kw]) = (c.image, c.map, c.window);
    let range = |n: usize| 0..n;
    for (n, m) in range(c.images).flat_map(|n| range(c.maps).map(move |m| (n, m))) {
        for (y, x, ch) in triples(mh, mw, in_group) {
            for (i, j) in range(kh).flat_map(|i| range(kw).map(move |j| (i, j))) {
                let at = |d: usize, p: usize, k: usize| p * c.stride[d] + k * c.dilation[d];
                let (row, col) = (at(0, y, i), at(1, x, j));
                if row < c.pad[0] || col < c.pad[1] || row >= h + c.pad[0] || col >= w + c.pad[1] {
                    continue;
                }
                let channel = m / out_group * in_group + ch;
                let pixel = ((n * c.channels + channel) * h + row - c.pad[0]) * w + col - c.pad[1];
                let weight = ((m * in_group + ch) * kh + i) * kw + j;
                f(pixel, weight, ((n * c.maps + m) * mh + y) * mw + x);
            }
        }
    }
}

fn triples(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}

fn close(what: &str, conv: &Conv, got: &[f32], want: &[f64]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error < 2e-4 * (1.0 + want.abs()), "{what}[{i}]: {got}, not {want}: {conv:?}");
    }
}

fn check(c: &Conv, scratch: &mut GemmScratch) {
    let (x, w, dy) = (noise(c.images_len(), 1), noise(c.weights_len(), 2), noise(c.maps_len(), 3));
    let (bias, channel_bias) = (noise(c.maps, 4), noise(c.channels, 5));
    let positions = c.map[0] * c.map[1];
    let pixels = c.image[0] * c.image[1];
    let mut y: Vec<f64> =
        (0..c.maps_len()).map(|i| f64::from(bias[i / positions % c.maps])).collect();
    let mut dx: Vec<f64> =
        (0..c.images_len()).map(|i| f64::from(channel_bias[i / pixels % c.channels])).collect();
    let mut dw = vec![0.0f64; c.weights_len()];
    each_product(c, |pixel, weight, map| {
        y[map] += f64::from(x[pixel]) * f64::from(w[weight]);
        dx[pixel] += f64::from(dy[map]) * f64::from(w[weight]);
        dw[weight] += f64::from(dy[map]) * f64::from(x[pixel]);
    });
    for isa in Isa::all() {
        let plan = Plan { isa, ..c.plan() };
        let mut got = vec![f32::NAN; c.maps_len()];
        plan.forward(&x, &w, Some(&bias), &mut got, scratch);
        close("y", c, &got, &y);
        let mut got = vec![f32::NAN; c.images_len()];
        plan.to_images(&dy, &w, Some(&channel_bias), &mut got, scratch);
        close("dx", c, &got, &dx);
        let mut got = vec![f32::NAN; c.weights_len()];
        plan.to_weights(&x, &dy, &mut got, scratch);
        close("dw", c, &got, &dw);
    }
}

#[test]
fn all_ways_agree_with_the_sums() {
    let mut scratch = GemmScratch::default();
    for images in [1, 3, 7, 16, 33] {
        check(&conv(images, 1, [1, 6], [9, 8], [3, 3], [1, 1, 1]), &mut scratch);
        check(&conv(images, 1, [6, 16], [7, 7], [5, 5], [1, 0, 1]), &mut scratch);
        check(&conv(images, 1, [3, 20], [11, 9], [7, 7], [2, 3, 1]), &mut scratch);
        check(&conv(images, 1, [17, 13], [4, 4], [3, 3], [1, 1, 1]), &mut scratch);
        check(&conv(images, 1, [33, 14], [5, 6], [1, 1], [1, 0, 1]), &mut scratch);
        check(&conv(images, 1, [20, 14], [4, 6], [1, 1], [2, 0, 1]), &mut scratch);
        check(&conv(images, 2, [8, 26], [6, 5], [3, 2], [1, 1, 2]), &mut scratch);
        check(&conv(images, 4, [4, 4], [5, 5], [3, 3], [2, 1, 1]), &mut scratch);
        check(&conv(images, 1, [32, 40], [1, 1], [3, 3], [1, 1, 1]), &mut scratch);
        check(&conv(images, 1, [5, 7], [2, 2], [3, 3], [1, 1, 1]), &mut scratch);
        check(&conv(images, 1, [4, 3], [3, 3], [3, 3], [3, 2, 1]), &mut scratch);
        check(&conv(images, 1, [2, 3], [1, 30], [1, 5], [1, 0, 3]), &mut scratch);
    }
}

#[test]
fn more_than_the_near_caches_hold() {
    let mut scratch = GemmScratch::default();
    check(&conv(33, 1, [48, 40], [15, 13], [2, 3], [1, 1, 1]), &mut scratch);
}

#[test]
fn pads_on_one_side_and_empty_batches() {
    let mut scratch = GemmScratch::default();
    let mut c = conv(18, 1, [3, 5], [6, 6], [3, 3], [2, 0, 1]);
    c.map = [3, 3];
    check(&c, &mut scratch);
    c.pad = [0, 1];
    check(&c, &mut scratch);
    c.images = 0;
    let (mut dw, mut nothing) = (vec![1.0; c.weights_len()], []);
    let w = vec![1.0; c.weights_len()];
    let plan = c.plan();
    plan.forward(&[], &w, None, &mut nothing, &mut scratch);
    plan.to_images(&[], &w, None, &mut nothing, &mut scratch);
    plan.to_weights(&[], &[], &mut dw, &mut scratch);
    assert!(dw.iter().all(|&w| w == 0.0));
}

#[test]
fn channels_add_up() {
    let mut sums = [9.0; 2];
    channel_sums(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2, &mut sums);
    assert_eq!(sums, [1.0 + 2.0 + 5.0 + 6.0, 3.0 + 4.0 + 7.0 + 8.0]);
}
