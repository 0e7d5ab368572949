//! Functions of one slice, element by element: into another slice or in place.

use crate::math;
use crate::simd::simd_mul_add;

/// Defines a function from slice to slice and its in-place form.
macro_rules! unary {
    ($(#[$meta:meta])* $name:ident, $in_place:ident) => {
        simd_mul_add! {
            $(#[$meta])*
            ///
            /// # Panics
            /// If the slices differ in length.
            pub fn $name<M>(x: &[f32], y: &mut [f32]) {
                assert_eq!(x.len(), y.len(), "lengths of x and y");
                for (x, y) in x.iter().zip(y) {
                    *y = math::$name::<M>(*x);
                }
            }
        }
        simd_mul_add! {
            #[doc = concat!("[`", stringify!($name), "`] in place.")]
            pub fn $in_place<M>(x: &mut [f32]) {
                for x in x {
                    *x = math::$name::<M>(*x);
                }
            }
        }
    };
}

unary! {
    /// `y = exp(x)`, relative error below 2e-7, with gradual underflow.
    exp, exp_in_place
}
unary! {
    /// `y = ln(x)`, relative error below 2e-7; minus infinity at 0 and NaN below.
    log, log_in_place
}
unary! {
    /// `y = tanh(x)`, relative error below 3e-7.
    tanh, tanh_in_place
}
unary! {
    /// `y = 1 / (1 + exp(-x))`, relative error below 3e-7.
    sigmoid, sigmoid_in_place
}
unary! {
    /// `y = max(x, 0)`; a NaN stays.
    relu, relu_in_place
}
unary! {
    /// `y = x * Phi(x)`, the Gaussian error linear unit in its exact (erf) form, to 2e-7 of the
    /// larger of 1 and `|x|`.
    gelu, gelu_in_place
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around a vector's, so that heads and tails are both met.
    #[test]
    fn vector_and_tail_agree_with_the_scalar_function() {
        let scalar: fn(f32) -> f32 = if crate::has_avx2_fma() {
            math::tanh::<math::Fused>
        } else {
            math::tanh::<math::Separate>
        };
        for len in 0..70 {
            let x: Vec<f32> = (0..len).map(|i| (i as f32 - 30.0) * 0.17).collect();
            let mut y = vec![0.0; len];
            tanh(&x, &mut y);
            let mut z = x.clone();
            tanh_in_place(&mut z);
            let wanted: Vec<f32> = x.iter().map(|x| scalar(*x)).collect();
            assert_eq!((&y, &z), (&wanted, &wanted));
        }
    }

    #[test]
    fn each_name_computes_its_function() {
        let x = [0.5f32, 2.0];
        let check = |f: fn(&[f32], &mut [f32]), exact: fn(f32) -> f32| {
            let mut y = [0.0; 2];
            f(&x, &mut y);
            for (x, y) in x.iter().zip(y) {
                assert!((y - exact(*x)).abs() < 1e-6);
            }
        };
        check(exp, f32::exp);
        check(log, f32::ln);
        check(sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        let mut y = [0.0; 3];
        relu(&[-1.0, f32::NAN, 3.0], &mut y);
        assert!(y[0] == 0.0 && y[1].is_nan() && y[2] == 3.0);
        gelu(&[-1.0, 0.0, 1.0], &mut y);
        assert!((y[0] + 0.158_655_26).abs() < 1e-6 && y[1] == 0.0);
        assert!((y[2] - 0.841_344_7).abs() < 1e-6);
    }
}
