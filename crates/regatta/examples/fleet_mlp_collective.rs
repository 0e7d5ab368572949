//! The classifier of Paddle's Fleet guide, trained by workers that add up their gradients.
//!
//! Type
//!
//! ```text
//! cargo build --release --example fleet_mlp_collective
//! regatta launch --nproc_per_node 2 target/release/examples/fleet_mlp_collective
//! ```
//!
//! You will see lines `worker_index: 1, step0 cost = 0.69...` of both workers. Without `launch` it
//! is one process that trains alone.

use regatta::prelude::*;

/// Three layers; returns the average cost.
fn mlp(b: &mut Builder, x: &Var, y: &Var) -> Result<Var, regatta::ir::Error> {
    let fc_1 = b.fc(x, 128, Act::Tanh)?;
    let fc_2 = b.fc(&fc_1, 128, Act::Tanh)?;
    let prediction = b.fc(&fc_2, 2, Act::Softmax)?;
    let cost = b.cross_entropy(&prediction, y, false)?;
    b.mean(&cost)
}

/// 128 random examples. The class says whether the first half of the features outweighs the second.
fn gen_data(batch: usize) -> Result<(Value, Value), Box<dyn std::error::Error>> {
    let rng = regatta::tensor::Rng::new(7, batch as u64);
    let x: Vec<f32> = (0..128 * 32).map(|i| rng.unit_f32(i)).collect();
    let class = |row: &[f32]| row[..16].iter().sum::<f32>() > row[16..].iter().sum::<f32>();
    let y = x.chunks(32).map(|row| i64::from(class(row))).collect();
    Ok((Tensor::from_f32(&[128, 32], x)?.into(), Tensor::from_i64(&[128, 1], y)?.into()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = builder(42);
    let x = b.data("x", DType::F32, &[-1, 32])?;
    let y = b.data("y", DType::I64, &[-1, 1])?;
    let cost = mlp(&mut b, &x, &y)?;
    let optimizer = Optimizer::new(Rule::Sgd(Sgd {}), 0.01);
    let fleet = Fleet::init(PaddleCloudRoleMaker::collective(), true, None)?;
    let optimizer = fleet.distributed_optimizer(optimizer, None)?;
    let minimized = optimizer.minimize(&b.finish(), cost.name())?;
    let mut scope = Scope::new();
    run_startup(&minimized.programs.startup, &mut scope)?;
    let mut exe = fleet.executor(Options::default())?;
    for step in 0..1001 {
        let (x, y) = gen_data(step * fleet.worker_num() + fleet.worker_index())?;
        let cost_val = exe.run(&mut scope, &[("x", &x), ("y", &y)], &[cost.name()])?[0].f32()[0];
        println!("worker_index: {}, step{step} cost = {cost_val:.6}", fleet.worker_index());
    }
    Ok(())
}
