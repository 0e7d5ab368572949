//! One step of a recurrent cell for one example, behind the products with the weights.
//!
//! What a step keeps for its gradient lies in one row: gates and what else is needed, each as wide
//! as the state. Formulas and the order of gates are those of PaddlePaddle and PyTorch.

use crate::{simd, unary};

/// A kind of cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Gates `i, f, g, o`: `c = f c + i g`, `h = o tanh(c)`. Keeps `i, f, g, o, c`.
    Lstm,
    /// Gates `r, z, c`, the last `tanh(x part + r * h part)`: `h = z h + (1 - z) c`. Keeps
    /// `r, z, c` and the part of `h`.
    Gru,
    /// `h = tanh(..)`, which is kept.
    Tanh,
    /// `h = max(.., 0)`, which is kept.
    Relu,
}

impl Cell {
    /// Gates: how many times as high as the state is wide the weights are.
    pub fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Tanh | Cell::Relu => 1,
        }
    }

    /// Widths of the state that a step keeps.
    pub fn kept(self) -> usize {
        match self {
            Cell::Lstm => 5,
            Cell::Gru => 4,
            Cell::Tanh | Cell::Relu => 1,
        }
    }

    /// Widths of the state that the gradients of a step take: of the gates, except that those of
    /// a [`Cell::Gru`] are `c, r, z` and then the part of `h` in `c`. So the last three belong to
    /// the weights of `h`.
    pub fn slopes(self) -> usize {
        match self {
            Cell::Lstm | Cell::Gru => 4,
            Cell::Tanh | Cell::Relu => 1,
        }
    }

    /// Ends a step: `kept` has the sums of products and bias and becomes what the gradient needs,
    /// `h` and `c` become the next state. Only [`Cell::Lstm`] has a `c`.
    pub fn forward(self, kept: &mut [f32], h: &mut [f32], c: &mut [f32]) {
        let n = h.len();
        match self {
            Cell::Lstm => {
                unary::sigmoid_in_place(&mut kept[..2 * n]);
                unary::tanh_in_place(&mut kept[2 * n..3 * n]);
                unary::sigmoid_in_place(&mut kept[3 * n..4 * n]);
                let (gates, state) = kept.split_at_mut(4 * n);
                remember(gates, c, state);
                unary::tanh(c, h);
                multiply(&gates[3 * n..], h);
            }
            Cell::Gru => {
                unary::sigmoid_in_place(&mut kept[..2 * n]);
                reset(kept, n);
                unary::tanh_in_place(&mut kept[2 * n..3 * n]);
                blend(kept, h);
            }
            Cell::Tanh | Cell::Relu => {
                if self == Cell::Tanh {
                    unary::tanh_in_place(kept);
                } else {
                    unary::relu_in_place(kept);
                }
                h.copy_from_slice(kept);
            }
        }
    }

    /// Gradients of a step: from those of the state, `dh` and `dc`, to those of the gates in
    /// `slopes`, and to those of the last state apart from what flows through the weights.
    pub fn backward(
        self,
        kept: &[f32],
        last_h: &[f32],
        last_c: &[f32],
        dh: &mut [f32],
        dc: &mut [f32],
        slopes: &mut [f32],
    ) {
        match self {
            Cell::Lstm => {
                let n = dh.len();
                // Where the slope of `o` will be: tanh of the state.
                unary::tanh(&kept[4 * n..5 * n], &mut slopes[3 * n..]);
                lstm_slopes(kept, last_c, dh, dc, slopes);
                dh.fill(0.0);
            }
            Cell::Gru => gru_slopes(kept, last_h, dh, slopes),
            Cell::Tanh => {
                crate::backward::tanh_backward(kept, dh, slopes);
                dh.fill(0.0);
            }
            Cell::Relu => {
                crate::backward::relu_backward(kept, dh, slopes);
                dh.fill(0.0);
            }
        }
    }
}

/// Divides a row into `N` parts of one width.
#[inline(always)]
fn parts<const N: usize>(row: &[f32], n: usize) -> [&[f32]; N] {
    std::array::from_fn(|i| &row[i * n..(i + 1) * n])
}

simd! {
    /// `c = f c + i g`, also into `kept`.
    fn remember(gates: &[f32], c: &mut [f32], kept: &mut [f32]) {
        let n = c.len();
        let [i, f, g] = parts(gates, n);
        for (k, (c, kept)) in c.iter_mut().zip(kept).enumerate() {
            *c = f[k] * *c + i[k] * g[k];
            *kept = *c;
        }
    }
}

simd! {
    fn multiply(x: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y *= x);
    }
}

simd! {
    /// The sum of the third gate: `x part + r * h part`.
    fn reset(kept: &mut [f32], n: usize) {
        let (gates, of_h) = kept.split_at_mut(3 * n);
        let (r, c) = gates.split_at_mut(2 * n);
        for ((c, r), of_h) in c.iter_mut().zip(r).zip(of_h) {
            *c += *r * *of_h;
        }
    }
}

simd! {
    fn blend(kept: &[f32], h: &mut [f32]) {
        let n = h.len();
        let [_, z, c] = parts(kept, n);
        for ((h, z), c) in h.iter_mut().zip(z).zip(c) {
            *h = (*h - c) * z + c;
        }
    }
}

simd! {
    fn lstm_slopes(
        kept: &[f32],
        last_c: &[f32],
        dh: &[f32],
        dc: &mut [f32],
        slopes: &mut [f32],
    ) {
        let n = dh.len();
        let [i, f, g, o] = parts(kept, n);
        let (di, rest) = slopes.split_at_mut(n);
        let (df, rest) = rest.split_at_mut(n);
        let (dg, dout) = rest.split_at_mut(n);
        for k in 0..n {
            let tanh_c = dout[k];
            let d = dc[k] + dh[k] * o[k] * (1.0 - tanh_c * tanh_c);
            dout[k] = dh[k] * tanh_c * o[k] * (1.0 - o[k]);
            di[k] = d * g[k] * i[k] * (1.0 - i[k]);
            df[k] = d * last_c[k] * f[k] * (1.0 - f[k]);
            dg[k] = d * i[k] * (1.0 - g[k] * g[k]);
            dc[k] = d * f[k];
        }
    }
}

simd! {
    fn gru_slopes(kept: &[f32], last_h: &[f32], dh: &mut [f32], slopes: &mut [f32]) {
        let n = dh.len();
        let [r, z, c, of_h] = parts(kept, n);
        let (dc, rest) = slopes.split_at_mut(n);
        let (dr, rest) = rest.split_at_mut(n);
        let (dz, d_of_h) = rest.split_at_mut(n);
        for k in 0..n {
            dz[k] = dh[k] * (last_h[k] - c[k]) * z[k] * (1.0 - z[k]);
            dc[k] = dh[k] * (1.0 - z[k]) * (1.0 - c[k] * c[k]);
            d_of_h[k] = dc[k] * r[k];
            dr[k] = dc[k] * of_h[k] * r[k] * (1.0 - r[k]);
            dh[k] *= z[k];
        }
    }
}
