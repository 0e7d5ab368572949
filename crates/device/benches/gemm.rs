//! Matrix products on the first software device, by both kernels: `cargo bench -p regatta-device`.

use std::time::Instant;

use regatta_device::{Choice, Device, Error, Gemm, Kind, Queue};

/// Seconds of one product: the best of some rounds, each of five.
fn seconds(device: &Device, kind: Kind, gemm: &Gemm) -> Result<f64, Error> {
    let Gemm { m, n, k, .. } = *gemm;
    let a = device.buffer_of(&vec![0.5_f32; (m * k) as usize])?;
    let b = device.buffer_of(&vec![0.5_f32; (k * n) as usize])?;
    let c = device.alloc(u64::from(m * n) * 4)?;
    let mut best = f64::MAX;
    for _ in 0..12 {
        let begin = Instant::now();
        for _ in 0..5 {
            device.gemm_as(kind, Queue::Compute, gemm, [&a, &b, &c], None, None)?;
        }
        device.finish(Queue::Compute, "products")?;
        best = best.min(begin.elapsed().as_secs_f64() / 5.0);
    }
    Ok(best)
}

fn main() -> Result<(), Error> {
    let device = Choice::OpenClCpu(0).open()?;
    println!("{}", device.info());
    for [m, n, k] in [[512, 400, 400], [2048, 400, 234], [512, 2, 400], [400, 400, 512]] {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false)] {
            let gemm = Gemm { trans_a, trans_b, ..Gemm::new(m, n, k) };
            let rate = |kind| -> Result<f64, Error> {
                let flops = 2.0 * f64::from(m) * f64::from(n) * f64::from(k);
                Ok(flops / seconds(&device, kind, &gemm)? / 1e9)
            };
            let (gpu, cpu) = (rate(Kind::Gpu)?, rate(Kind::Cpu)?);
            let name = gemm.kernel(Kind::Gpu);
            println!("{name} {m} x {n} x {k}: {gpu:.1} GFLOP/s by tiles, {cpu:.1} by panels");
        }
    }
    Ok(())
}
