//! Sums and lines over features, for normalisation: `y = x * factor + offset` with one factor and
//! one offset per feature, and the sums that mean, variance and gradients need.
//!
//! ```
//! use regatta_kernels::norm::Features;
//! let x = [1.0, 2.0, 10.0, 20.0]; // One image of two channels with two pixels.
//! let channels = Features { count: 2, pixels: 2 };
//! let mut sums = [0.0; 2];
//! channels.sums(&x, &mut sums);
//! assert_eq!(sums, [3.0, 30.0]);
//! ```

use crate::simd;

/// Where the values of each feature are: `[.., count, pixels]`, so with one pixel each row has all
/// features side by side.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Features.
    pub count: usize,
    /// Values of one feature that stand together, at least 1.
    pub pixels: usize,
}

impl Features {
    /// Adds up the values of each feature.
    pub fn sums(&self, x: &[f32], sums: &mut [f64]) {
        match self.pixels {
            1 => column_sums(x, sums),
            pixels => plane_sums(x, pixels, sums),
        }
    }

    /// Adds up the squared distances of each feature's values from its mean.
    pub fn squares(&self, x: &[f32], mean: &[f32], sums: &mut [f64]) {
        match self.pixels {
            1 => column_squares(x, mean, sums),
            pixels => plane_squares(x, pixels, mean, sums),
        }
    }

    /// `y = x * factor + offset`.
    pub fn stretch(&self, x: &[f32], factor: &[f32], offset: &[f32], y: &mut [f32]) {
        match self.pixels {
            1 => stretch_columns(x, factor, offset, y),
            pixels => stretch_planes(x, pixels, factor, offset, y),
        }
    }

    /// Adds up `d`, and `d` times the normalised `x`, `(x - mean) * inv`.
    pub fn grad_sums(
        &self,
        x: &[f32],
        d: &[f32],
        mean: &[f32],
        inv: &[f32],
        sums: &mut [f64],
        products: &mut [f64],
    ) {
        match self.pixels {
            1 => column_grad_sums(x, d, mean, inv, sums, products),
            pixels => plane_grad_sums(x, d, pixels, [mean, inv], sums, products),
        }
    }

    /// `dx = factor * d + slope * (x - mean) + offset`.
    pub fn grad(
        &self,
        x: &[f32],
        d: &[f32],
        mean: &[f32],
        [factor, slope, offset]: [&[f32]; 3],
        dx: &mut [f32],
    ) {
        match self.pixels {
            1 => grad_columns(x, d, mean, [factor, slope, offset], dx),
            pixels => grad_planes(x, d, pixels, mean, [factor, slope, offset], dx),
        }
    }
}

simd! {
    fn column_sums(x: &[f32], sums: &mut [f64]) {
        sums.fill(0.0);
        for row in x.chunks_exact(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += f64::from(*x);
            }
        }
    }
}

simd! {
    fn column_squares(x: &[f32], mean: &[f32], sums: &mut [f64]) {
        sums.fill(0.0);
        for row in x.chunks_exact(sums.len()) {
            for ((sum, x), mean) in sums.iter_mut().zip(row).zip(mean) {
                let distance = f64::from(x - mean);
                *sum += distance * distance;
            }
        }
    }
}

simd! {
    fn stretch_columns(x: &[f32], factor: &[f32], offset: &[f32], y: &mut [f32]) {
        let width = factor.len();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            for (((y, x), factor), offset) in y.iter_mut().zip(x).zip(factor).zip(offset) {
                *y = x * factor + offset;
            }
        }
    }
}

simd! {
    fn column_grad_sums(
        x: &[f32],
        d: &[f32],
        mean: &[f32],
        inv: &[f32],
        sums: &mut [f64],
        products: &mut [f64],
    ) {
        sums.fill(0.0);
        products.fill(0.0);
        let width = mean.len();
        for (x, d) in x.chunks_exact(width).zip(d.chunks_exact(width)) {
            for (sum, d) in sums.iter_mut().zip(d) {
                *sum += f64::from(*d);
            }
            let columns = x.iter().zip(d).zip(mean.iter().zip(inv));
            for (product, ((x, d), (mean, inv))) in products.iter_mut().zip(columns) {
                *product += f64::from(d * (x - mean) * inv);
            }
        }
    }
}

simd! {
    fn grad_columns(
        x: &[f32],
        d: &[f32],
        mean: &[f32],
        of_feature: [&[f32]; 3],
        dx: &mut [f32],
    ) {
        let (width, [factor, slope, offset]) = (mean.len(), of_feature);
        let rows = x.chunks_exact(width).zip(d.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
        for ((x, d), dx) in rows {
            let columns = mean.iter().zip(factor).zip(slope.iter().zip(offset));
            let values = dx.iter_mut().zip(x).zip(d);
            for (((dx, x), d), ((mean, factor), (slope, offset))) in values.zip(columns) {
                *dx = factor * d + slope * (x - mean) + offset;
            }
        }
    }
}

/// Values of a plane that are added up in single precision, a few sums side by side.
const PART: usize = 512;
const SIDE_BY_SIDE: usize = 16;

/// Adds up `f` of a plane: in single precision over parts, which are added up in double.
#[inline(always)]
fn plane_sum<const N: usize>(x: &[f32], d: &[f32], f: impl Fn(f32, f32) -> [f32; N]) -> [f64; N] {
    let mut total = [0.0f64; N];
    for (x, d) in x.chunks(PART).zip(d.chunks(PART)) {
        let mut sums = [[0.0f32; SIDE_BY_SIDE]; N];
        let (x_full, x_rest) = x.as_chunks::<SIDE_BY_SIDE>();
        let (d_full, d_rest) = d.as_chunks::<SIDE_BY_SIDE>();
        for (x, d) in x_full.iter().zip(d_full) {
            for i in 0..SIDE_BY_SIDE {
                let values = f(x[i], d[i]);
                for n in 0..N {
                    sums[n][i] += values[n];
                }
            }
        }
        for ((x, d), i) in x_rest.iter().zip(d_rest).zip(0..SIDE_BY_SIDE) {
            let values = f(*x, *d);
            for n in 0..N {
                sums[n][i] += values[n];
            }
        }
        for n in 0..N {
            total[n] += sums[n].iter().map(|x| f64::from(*x)).sum::<f64>();
        }
    }
    total
}

simd! {
    fn plane_sums(x: &[f32], pixels: usize, sums: &mut [f64]) {
        sums.fill(0.0);
        for image in x.chunks_exact(pixels * sums.len()) {
            for (sum, x) in sums.iter_mut().zip(image.chunks_exact(pixels)) {
                *sum += plane_sum(x, x, |x, _| [x])[0];
            }
        }
    }
}

simd! {
    fn plane_squares(x: &[f32], pixels: usize, mean: &[f32], sums: &mut [f64]) {
        sums.fill(0.0);
        for image in x.chunks_exact(pixels * sums.len()) {
            for ((sum, x), mean) in sums.iter_mut().zip(image.chunks_exact(pixels)).zip(mean) {
                *sum += plane_sum(x, x, |x, _| [(x - mean) * (x - mean)])[0];
            }
        }
    }
}

simd! {
    fn stretch_planes(x: &[f32], pixels: usize, factor: &[f32], offset: &[f32], y: &mut [f32]) {
        let image = pixels * factor.len();
        for (x, y) in x.chunks_exact(image).zip(y.chunks_exact_mut(image)) {
            let planes = x.chunks_exact(pixels).zip(y.chunks_exact_mut(pixels));
            for ((x, y), (factor, offset)) in planes.zip(factor.iter().zip(offset)) {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = x * factor + offset;
                }
            }
        }
    }
}

simd! {
    fn plane_grad_sums(
        x: &[f32],
        d: &[f32],
        pixels: usize,
        of_feature: [&[f32]; 2],
        sums: &mut [f64],
        products: &mut [f64],
    ) {
        sums.fill(0.0);
        products.fill(0.0);
        let image = pixels * sums.len();
        for (x, d) in x.chunks_exact(image).zip(d.chunks_exact(image)) {
            let planes = x.chunks_exact(pixels).zip(d.chunks_exact(pixels));
            let features = of_feature[0].iter().zip(of_feature[1]);
            let sums = sums.iter_mut().zip(&mut *products);
            for (((x, d), (mean, inv)), (sum, product)) in planes.zip(features).zip(sums) {
                let [d_sum, dx_sum] = plane_sum(x, d, |x, d| [d, d * (x - mean)]);
                *sum += d_sum;
                *product += dx_sum * f64::from(*inv);
            }
        }
    }
}

simd! {
    fn grad_planes(
        x: &[f32],
        d: &[f32],
        pixels: usize,
        mean: &[f32],
        of_feature: [&[f32]; 3],
        dx: &mut [f32],
    ) {
        let (image, [factor, slope, offset]) = (pixels * mean.len(), of_feature);
        let images = x.chunks_exact(image).zip(d.chunks_exact(image));
        for ((x, d), dx) in images.zip(dx.chunks_exact_mut(image)) {
            let planes = x.chunks_exact(pixels).zip(d.chunks_exact(pixels));
            for (i, ((x, d), dx)) in planes.zip(dx.chunks_exact_mut(pixels)).enumerate() {
                let (factor, slope) = (factor[i], slope[i]);
                let offset = offset[i] - slope * mean[i];
                for ((dx, x), d) in dx.iter_mut().zip(x).zip(d) {
                    *dx = factor * d + slope * x + offset;
                }
            }
        }
    }
}
