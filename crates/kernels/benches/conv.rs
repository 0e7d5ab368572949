//! Convolutions on the shapes of LeNet (batch 64) and ResNet-18 on 32 x 32 images (batch 32).
//!
//! Run with `cargo bench -p regatta-kernels --bench conv`; an argument selects shapes by part of
//! their name. Milliseconds are CPU time of the thread where the system tells it, the median over
//! rounds, in which the passes take turns. GFLOP/s count products with paddings too, as others do.
//! `bench/compare/conv` prints the same beside PyTorch.
#![allow(unsafe_code, reason = "the clock of a thread is a function of the C library")]

use regatta_kernels::conv::Conv;
use regatta_kernels::gemm::GemmScratch;
use regatta_kernels::peak;

/// Images, channels, maps, pixels of a side, window, stride, pad; how many layers have it.
const SHAPES: &[[usize; 8]] = &[
    [64, 1, 6, 28, 3, 1, 1, 1],
    [64, 6, 16, 14, 5, 1, 0, 1],
    [32, 3, 64, 32, 7, 2, 3, 1],
    [32, 64, 64, 8, 3, 1, 1, 4],
    [32, 64, 128, 8, 3, 2, 1, 1],
    [32, 128, 128, 4, 3, 1, 1, 3],
    [32, 64, 128, 8, 1, 2, 0, 1],
    [32, 128, 256, 4, 3, 2, 1, 1],
    [32, 256, 256, 2, 3, 1, 1, 3],
    [32, 128, 256, 4, 1, 2, 0, 1],
    [32, 256, 512, 2, 3, 2, 1, 1],
    [32, 512, 512, 1, 3, 1, 1, 3],
    [32, 256, 512, 2, 1, 2, 0, 1],
    [32, 3, 64, 32, 3, 1, 1, 0],
    [32, 64, 64, 32, 3, 1, 1, 0],
];

fn conv(&[images, channels, maps, side, window, stride, pad, _]: &[usize; 8]) -> Conv {
    let map = (side + 2 * pad - window) / stride + 1;
    Conv {
        images,
        groups: 1,
        channels,
        image: [side; 2],
        maps,
        map: [map; 2],
        window: [window; 2],
        stride: [stride; 2],
        pad: [pad; 2],
        dilation: [1; 2],
    }
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Seconds that the thread has computed.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn now() -> f64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const THREAD_CPU_TIME: i32 = 3;
    let mut time = [0; 2];
    // SAFETY: the C library writes seconds and nanoseconds to the array.
    let failed = unsafe { clock_gettime(THREAD_CPU_TIME, &mut time) };
    assert_eq!(failed, 0, "the clock of the thread");
    time[0] as f64 + time[1] as f64 / 1e9
}

/// Seconds that have passed.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn now() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_secs_f64()
}

fn median(x: &mut [f64]) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// Medians of the three passes in milliseconds.
fn measure(conv: Conv, rounds: usize, scratch: &mut GemmScratch) -> [f64; 3] {
    let plan = conv.plan();
    let (x, w) = (values(conv.images_len(), 1), values(conv.weights_len(), 2));
    let dy = values(conv.maps_len(), 3);
    let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds + 2 {
        let mut at = now();
        for (pass, times) in times.iter_mut().enumerate() {
            match pass {
                0 => plan.forward(&x, &w, None, &mut y, scratch),
                1 => plan.to_images(&dy, &w, None, &mut dx, scratch),
                _ => plan.to_weights(&x, &dy, &mut dw, scratch),
            }
            let end = now();
            times.push(1e3 * (end - at));
            at = end;
        }
    }
    times.map(|mut times| median(&mut times[2..]))
}

#[expect(clippy::disallowed_methods, reason = "a knob of this benchmark, no part of the contract")]
fn main() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|x| x.parse().ok()).unwrap_or(21);
    let filter = std::env::args().skip(1).find(|x| !x.starts_with('-'));
    let mut scratch = GemmScratch::default();
    println!("peak {:.0} GFLOP/s", peak::fma_gflops());
    let mut total = 0.0;
    for shape in SHAPES {
        let &[images, channels, maps, side, window, stride, _, layers] = shape;
        let name = format!("{images} x {channels}->{maps} @{side} k{window} s{stride}");
        if filter.as_ref().is_some_and(|x| !name.contains(x)) {
            continue;
        }
        let conv = conv(shape);
        let [y, dx, dw] = measure(conv, rounds, &mut scratch);
        let flops = 2e-6 * (conv.maps_len() * channels * window * window) as f64;
        let [a, b, c] = [y, dx, dw].map(|ms| flops / ms);
        println!(
            "{name:26} y {y:7.3} dx {dx:7.3} dw {dw:7.3} ms ({a:4.0} {b:4.0} {c:4.0} GFLOP/s)"
        );
        total += layers as f64 * (y + dw + if channels > 3 { dx } else { 0.0 });
    }
    println!("one step of all layers {total:.3} ms");
}
