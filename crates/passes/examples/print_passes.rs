//! Prints a small program after each pass on the way from a model to a training program.
//!
//! ```text
//! cargo run -p regatta-passes --example print_passes
//! ```
//!
//! First comes the model as it was built, then what each pass added to it, then the variables with
//! the memory they share, the ops that each thread runs on its part of the batch, and the program
//! that `prune` leaves for inference.

use regatta_ir::{Act, Error, Program, Programs, Regularizer};
use regatta_optim::{Adam, Rule, Schedule};
use regatta_passes::{
    Backward, Clip, MemoryReuse, backward, clip, insert_updates, memory_reuse, prune, regularize,
    split_batch,
};
use regatta_tensor::DType;

fn main() -> Result<(), Error> {
    let mut b = regatta_ops::builder(42);
    let x = b.data("x", DType::F32, &[-1, 13])?;
    let y = b.data("y", DType::F32, &[-1, 1])?;
    let hidden = b.fc(&x, 8, Act::Relu)?;
    let predicted = b.fc(&hidden, 1, Act::None)?;
    let cost = b.square_error_cost(&predicted, &y)?;
    let loss = b.mean(&cost)?;
    let model = b.finish();
    println!("=== the model\n{}", model.main);
    println!("=== its startup program\n{}", model.startup);

    let (differentiated, grads) = backward(&model.main, loss.name(), &Backward::default())?;
    print_added("backward", &model.main, &differentiated);

    let (clipped, grads) = clip(&differentiated, &grads, Clip::GlobalNorm(5.0))?;
    print_added("clip by global norm", &differentiated, &clipped);

    let (regularized, grads) = regularize(&clipped, &grads, Some(Regularizer::L2(1e-4)))?;
    print_added("regularize", &clipped, &regularized);

    let before = Programs { main: regularized, startup: model.startup.clone() };
    let adam = Rule::Adam(Adam::default());
    let (training, _) = insert_updates(&before, &grads, &adam, 0.001, &Schedule::Constant)?;
    print_added("insert_updates", &before.main, &training.main);
    print_added("insert_updates, startup program", &before.startup, &training.startup);

    let options = MemoryReuse { skip: vec![loss.to_string()], skip_grads: false, batch: 128 };
    let (shared, report) = memory_reuse(&training.main, &options)?;
    print_added("memory_reuse", &training.main, &shared);
    println!("{} bytes of temporaries become {}\n", report.before, report.after);

    let (in_part, _) = split_batch(&training.main)?;
    println!("=== split_batch: who runs what");
    for (op, in_part) in training.main.block().ops.iter().zip(in_part) {
        println!("{} {}", if in_part { "each thread" } else { "one thread " }, op.kind);
    }
    println!("\n=== prune to the prediction\n{}", prune(&training.main, &[predicted.name()])?);
    Ok(())
}

/// Prints the lines that a pass added or changed.
fn print_added(pass: &str, before: &Program, after: &Program) {
    let before = before.to_string();
    let known: Vec<&str> = before.lines().collect();
    println!("=== {pass}");
    for line in after.to_string().lines().filter(|line| !known.contains(line)) {
        println!("{line}");
    }
    println!();
}
