//! Every function against the same computed in f64, fused and not.

use super::*;

const INF: f32 = f32::INFINITY;

/// Points over `low..high`, denser towards zero, both signs where the range has them.
fn points(low: f32, high: f32) -> impl Iterator<Item = f32> {
    let even = (0..=200_000).map(move |i| low + (high - low) * (i as f32 / 200_000.0));
    let small = (0..2000).flat_map(|i| {
        let x = 2.0f32.powf(-(i as f32) / 20.0);
        [x, -x]
    });
    even.chain(small).filter(move |x| (low..=high).contains(x))
}

/// Largest relative error, where results below the normal range count against its smallest value.
fn relative_error(low: f32, high: f32, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
    points(low, high)
        .map(|x| {
            let wanted = exact(f64::from(x));
            (f64::from(f(x)) - wanted).abs() / wanted.abs().max(f64::from(f32::MIN_POSITIVE))
        })
        .fold(0.0, f64::max)
}

fn check<M: MulAdd>() {
    let exact_sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let errors = [
        ("exp", relative_error(-103.0, 88.7, exp::<M>, f64::exp), 2e-7),
        ("log", relative_error(0.0, 10.0, log::<M>, f64::ln), 2e-7),
        ("log", relative_error(1e-3, 1e38, log::<M>, f64::ln), 2e-7),
        ("tanh", relative_error(-12.0, 12.0, tanh::<M>, f64::tanh), 3e-7),
        ("sigmoid", relative_error(-87.0, 100.0, sigmoid::<M>, exact_sigmoid), 3e-7),
    ];
    for (name, error, bound) in errors {
        assert!(error <= bound, "{name}: relative error {error:e}, bound {bound:e}");
    }
}

#[test]
fn close_to_f64_when_fused() {
    check::<Fused>();
}

#[test]
fn close_to_f64_when_separate() {
    check::<Separate>();
}

#[test]
fn exp_at_the_ends() {
    assert_eq!(exp::<Fused>(0.0), 1.0);
    assert_eq!(exp::<Fused>(INF), INF);
    assert_eq!(exp::<Fused>(88.8), INF);
    assert_eq!(exp::<Fused>(-INF), 0.0);
    assert_eq!(exp::<Fused>(-1e30), 0.0);
    assert!(exp::<Fused>(-100.0) > 0.0, "gradual underflow");
    assert!(exp::<Fused>(f32::NAN).is_nan());
}

#[test]
fn log_at_the_ends() {
    assert_eq!(log::<Fused>(1.0), 0.0);
    assert_eq!(log::<Fused>(0.0), -INF);
    assert_eq!(log::<Fused>(-0.0), -INF);
    assert_eq!(log::<Fused>(INF), INF);
    assert!(log::<Fused>(-1.0).is_nan() && log::<Fused>(-INF).is_nan());
    assert!(log::<Fused>(f32::NAN).is_nan());
    let least = f32::from_bits(1);
    assert!((log::<Fused>(least) - f64::from(least).ln() as f32).abs() < 1e-4);
}

#[test]
fn tanh_and_sigmoid_at_the_ends() {
    assert_eq!(tanh::<Fused>(-0.0).to_bits(), (-0.0f32).to_bits());
    assert_eq!((tanh::<Fused>(INF), tanh::<Fused>(-INF)), (1.0, -1.0));
    assert_eq!((sigmoid::<Fused>(INF), sigmoid::<Fused>(-INF)), (1.0, 0.0));
    assert_eq!((sigmoid::<Fused>(0.0), sigmoid::<Fused>(-1e30)), (0.5, 0.0));
    assert!(tanh::<Fused>(f32::NAN).is_nan() && sigmoid::<Fused>(f32::NAN).is_nan());
}

/// Probability of the standard normal below `x`, by Simpson's rule from 0.
fn normal_by_integration(x: f64) -> f64 {
    let steps = 2000;
    let h = x / f64::from(steps);
    let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
    let weight = |i| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    0.5 + h / 3.0 * (0..=steps).map(|i| weight(i) * density(h * f64::from(i))).sum::<f64>()
}

#[test]
fn gelu_and_its_derivative() {
    for i in -1200..=1200 {
        let x = i as f32 / 100.0;
        let wide = f64::from(x);
        let probability = normal_by_integration(wide);
        let density = (-0.5 * wide * wide).exp() / std::f64::consts::TAU.sqrt();
        for got in [gelu::<Fused>(x), gelu::<Separate>(x)] {
            let error = (f64::from(got) - wide * probability).abs();
            assert!(error < 2e-7 * wide.abs().max(1.0), "gelu({x}) = {got}, off by {error:e}");
        }
        for got in [gelu_derivative::<Fused>(x), gelu_derivative::<Separate>(x)] {
            let error = (f64::from(got) - (probability + wide * density)).abs();
            assert!(error < 3e-7, "gelu'({x}) = {got}, off by {error:e}");
        }
    }
    assert_eq!(gelu::<Fused>(INF), INF);
    assert!(gelu::<Fused>(-INF).abs() < 1e-30);
    assert_eq!(gelu_derivative::<Fused>(INF), 1.0);
    assert!(gelu_derivative::<Fused>(-INF).abs() < 1e-30);
    assert!(gelu::<Fused>(f32::NAN).is_nan() && gelu_derivative::<Fused>(f32::NAN).is_nan());
}
