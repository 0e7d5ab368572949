//! Ops on several threads. They are set for the whole process, so these tests have one of their own.

use regatta_eager::nn::{Conv2D, Init, Layer, Linear, Sequential, cross_entropy};
use regatta_eager::{Template, Tensor, seed, set_threads};
use regatta_tensor::Rng;

fn spread(shape: &[usize], stream: u64) -> Tensor {
    let rng = Rng::new(3, stream);
    let n: usize = shape.iter().product();
    Tensor::from_f32(shape, (0..n as u64).map(|i| rng.unit_f32(i) - 0.5).collect()).unwrap()
}

/// Loss and gradients of a model.
fn gradients(model: &Sequential, x: &Tensor, label: &Tensor) -> (f32, Vec<Vec<f32>>) {
    seed(1);
    let dropout = Template::new("dropout", &[("X", 1)], &[], &[]).unwrap();
    let x = dropout.call(&[x]).unwrap().remove(0);
    let scores = model.forward(&x).unwrap();
    let scores = scores.op("reshape", &[("shape", vec![0, -1].into())]).unwrap();
    let loss = cross_entropy(&scores, label).unwrap();
    loss.backward(None, false).unwrap();
    let parameters = model.parameters();
    let found = parameters.iter().map(|p| p.grad().unwrap().to_f32()).collect();
    parameters.iter().for_each(|p| p.clear_grad(false));
    (loss.to_f32()[0], found)
}

#[test]
fn parts_add_up_to_the_whole() {
    let mut init = Init::new(5);
    let dense = Sequential::new()
        .add(Linear::new(&mut init, 96, 96, "relu").unwrap())
        .add(Linear::new(&mut init, 96, 10, "").unwrap());
    let images = Sequential::new()
        .add(Conv2D::new(&mut init, 3, 8, 3, 1, 1).unwrap())
        .add(Conv2D::new(&mut init, 8, 4, 3, 2, 1).unwrap());
    // 96 examples of 96 features: the first dimension of the weight is that of the examples, too.
    for (model, x) in [(&dense, spread(&[96, 96], 1)), (&images, spread(&[7, 3, 40, 40], 2))] {
        let rows = x.shape()[0];
        let label =
            Tensor::from_i64(&[rows, 1], (0..rows as i64).map(|i| i % 10).collect()).unwrap();
        let (loss, whole) = gradients(model, &x, &label);
        for threads in [2, 3, 16] {
            set_threads(threads);
            let (divided, parts) = gradients(model, &x, &label);
            set_threads(1);
            assert!((loss - divided).abs() < 1e-5, "{threads} threads: {loss} {divided}");
            for (whole, parts) in whole.iter().zip(&parts) {
                let largest = whole.iter().fold(0f32, |m, x| m.max(x.abs()));
                for (a, b) in whole.iter().zip(parts) {
                    assert!((a - b).abs() <= 1e-5 * largest.max(1e-3), "{threads}: {a} {b}");
                }
            }
        }
    }
}
