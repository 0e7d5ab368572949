//! Trains a small network to tell three spirals apart, with tensors that compute at once.
//!
//! `cargo run --release -p regatta-eager --example spirals` prints the loss and the share of points
//! on the right side, which ends above 0.97.

use regatta_eager::nn::{Init, Layer, Linear, Sequential, cross_entropy};
use regatta_eager::{Optimizer, Param, Result, Tensor, no_grad};
use regatta_optim::{Adam, Rule};
use regatta_tensor::{Data, Rng};

const ARMS: usize = 3;
const POINTS: usize = 200;

/// Points on three arms, with noise, and the number of the arm of each.
fn spirals() -> Result<(Tensor, Tensor)> {
    let noise = Rng::new(1, 0);
    let (mut points, mut arms) = (Vec::new(), Vec::new());
    for i in 0..ARMS * POINTS {
        let (arm, along) = (i / POINTS, (i % POINTS) as f32 / POINTS as f32);
        let turn = 4.0 * along + 2.1 * arm as f32 + 0.15 * noise.normal(i as u64) as f32;
        points.extend([along * turn.cos(), along * turn.sin()]);
        arms.push(arm as i64);
    }
    let n = ARMS * POINTS;
    Ok((Tensor::from_f32(&[n, 2], points)?, Tensor::from_i64(&[n, 1], arms)?))
}

/// The share of rows whose largest number is that of the label.
fn accuracy(scores: &Tensor, label: &Tensor) -> f32 {
    let Data::I64(label) = label.to_data() else { return 0.0 };
    let scores = scores.to_f32();
    let right = scores.chunks_exact(ARMS).zip(&label).filter(|(row, arm)| {
        let best = (0..ARMS).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        best == Some(**arm as usize)
    });
    right.count() as f32 / label.len() as f32
}

fn main() -> Result<()> {
    let (points, arms) = spirals()?;
    let mut init = Init::new(7);
    let model = Sequential::new()
        .add(Linear::new(&mut init, 2, 64, "relu")?)
        .add(Linear::new(&mut init, 64, 64, "relu")?)
        .add(Linear::new(&mut init, 64, ARMS, "")?);
    let parameters = model.parameters();
    let params: Vec<Param<'_>> = parameters.iter().map(Param::new).collect();
    let mut adam = Optimizer::new(Rule::Adam(Adam::default()));
    for step in 0..=400 {
        let loss = cross_entropy(&model.forward(&points)?, &arms)?;
        loss.backward(None, false)?;
        adam.step(&params, 0.01)?;
        parameters.iter().for_each(|parameter| parameter.clear_grad(false));
        if step % 100 == 0 {
            let scores = no_grad(|| model.forward(&points))?;
            let (loss, share) = (loss.to_f32()[0], accuracy(&scores, &arms));
            println!("step {step}: loss {loss:.4}, right {share:.3}");
        }
    }
    Ok(())
}
