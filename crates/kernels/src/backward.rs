//! Backward of the activations: the incoming gradient times the derivative.
//!
//! Relu, tanh and sigmoid need the output `y` only, so the input need not be kept; gelu needs the
//! input.

use crate::math;
use crate::simd::simd_mul_add;

/// Defines a backward step from slice to slice and its in-place form.
macro_rules! backward {
    (
        $(#[$meta:meta])* $name:ident, $in_place:ident,
        |$y:ident, $dy:ident| <$m:ident> $product:expr
    ) => {
        simd_mul_add! {
            $(#[$meta])*
            ///
            /// # Panics
            /// If the slices differ in length.
            pub fn $name<$m>($y: &[f32], $dy: &[f32], dz: &mut [f32]) {
                assert_eq!($y.len(), $dy.len(), "lengths of the kept values and dy");
                assert_eq!($y.len(), dz.len(), "lengths of the kept values and dz");
                for (($y, $dy), dz) in $y.iter().zip($dy).zip(dz) {
                    let ($y, $dy) = (*$y, *$dy);
                    *dz = $product;
                }
            }
        }
        simd_mul_add! {
            #[doc = concat!("[`", stringify!($name), "`] with `dz` in the place of `dy`.")]
            ///
            /// # Panics
            /// If the slices differ in length.
            pub fn $in_place<$m>($y: &[f32], dz: &mut [f32]) {
                assert_eq!($y.len(), dz.len(), "lengths of the kept values and dz");
                for ($y, dz) in $y.iter().zip(dz) {
                    let ($y, $dy) = (*$y, *dz);
                    *dz = $product;
                }
            }
        }
    };
}

backward! {
    /// `dz = dy` where the output `y` of relu is positive, else 0.
    relu_backward, relu_backward_in_place, |y, dy| <M> if y > 0.0 { dy } else { 0.0 }
}
backward! {
    /// `dz = dy * (1 - y^2)`, with `y` the output of tanh.
    tanh_backward, tanh_backward_in_place, |y, dy| <M> dy * M::mul_add(-y, y, 1.0)
}
backward! {
    /// `dz = dy * y * (1 - y)`, with `y` the output of sigmoid.
    sigmoid_backward, sigmoid_backward_in_place, |y, dy| <M> dy * (y * (1.0 - y))
}
backward! {
    /// `dz = dy * gelu'(x)`, with `x` the input of gelu.
    gelu_backward, gelu_backward_in_place, |x, dy| <M> dy * math::gelu_derivative::<M>(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unary;

    type Map = fn(&[f32], &mut [f32]);
    type Backward = fn(&[f32], &[f32], &mut [f32]);

    /// Compares with the slope between two near inputs.
    fn check(f: Map, backward: Backward, in_place: Map, keeps_output: bool) {
        let x: Vec<f32> = (0..37).map(|i| (i as f32 - 18.3) * 0.2).collect();
        let at = |shift: f32| {
            let x: Vec<f32> = x.iter().map(|x| x + shift).collect();
            let mut y = vec![0.0; x.len()];
            f(&x, &mut y);
            y
        };
        let (low, mid, high) = (at(-5e-3), at(0.0), at(5e-3));
        let dy: Vec<f32> = (0..37).map(|i| 1.0 - i as f32 * 0.1).collect();
        let kept = if keeps_output { &mid } else { &x };
        let mut dz = vec![0.0; 37];
        backward(kept, &dy, &mut dz);
        for i in 0..37 {
            let slope = (high[i] - low[i]) / 1e-2;
            assert!((dz[i] - dy[i] * slope).abs() < 1e-3, "at {}: {} {}", x[i], dz[i], slope);
        }
        let mut same = dy;
        in_place(kept, &mut same);
        assert_eq!(same, dz);
    }

    #[test]
    fn gradients_match_differences() {
        check(unary::relu, relu_backward, relu_backward_in_place, true);
        check(unary::tanh, tanh_backward, tanh_backward_in_place, true);
        check(unary::sigmoid, sigmoid_backward, sigmoid_backward_in_place, true);
        check(unary::gelu, gelu_backward, gelu_backward_in_place, false);
    }
}
