//! `regatta fit-a-line`.

use std::path::PathBuf;

use crate::quickstart::FitALine;
use crate::quickstart::fit_a_line::{GOAL, Housing, Options};

use super::progress::Progress;
use super::{Outcome, count, positive, threads};

/// Linear regression on 13 features of houses, until the loss is below 10.
///
/// Without --data it trains on built-in prices that follow from known weights. The first 80 % of
/// the rows are for training, the others for the test after every data pass.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0  the test loss fell below 10, which ends the training; or it did not, but the cost of some
     full training batch did, which is what Paddle's sample asks for
  1  neither fell below 10 within the passes; nothing is saved
  2  wrong flags or data; nothing is written then

Examples:
  regatta fit-a-line
  regatta fit-a-line --data housing.data --epochs 50
  regatta fit-a-line --save out     (out/persistables.safetensors, out/inference/)")]
pub(crate) struct Args {
    /// A table of 14 columns with blanks between them, such as UCI's housing.data.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Data passes at most.
    #[arg(long, value_name = "N", default_value = "100", value_parser = count)]
    epochs: usize,
    /// Rows per step.
    #[arg(long, value_name = "N", default_value = "20", value_parser = count)]
    batch_size: usize,
    /// Step length of gradient descent.
    #[arg(long, value_name = "X", default_value = "0.01", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    learning_rate: f64,
    /// Threads that share a batch.
    #[arg(long, value_name = "N", default_value = "1", value_parser = threads)]
    threads: usize,
    /// Where to save the trained model.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Decides initial weights, order of rows, and built-in data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the costs of every N-th data pass.
    #[arg(long, value_name = "N", default_value = "10", value_parser = count)]
    log_every: usize,
}

/// How far a run came.
#[derive(Debug, Clone, Copy)]
struct Best {
    passes: usize,
    test_loss: f32,
    /// The lowest cost of a full batch.
    batch_cost: f32,
    diverged: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let data = match &args.data {
        Some(path) => Housing::read(path)?,
        None => Housing::synthetic(args.seed),
    };
    let Args { batch_size, learning_rate, threads, seed, .. } = *args;
    let mut fit = FitALine::new(data, &Options { batch_size, learning_rate, threads, seed })?;
    let progress = Progress::new(args.epochs as u64, "passes");
    let source = match &args.data {
        Some(path) => path.display().to_string(),
        None => "built-in data".into(),
    };
    progress.line(format!(
        "{source}: {} rows to train, {} to test; batch size {batch_size}, learning rate \
         {learning_rate}",
        fit.data().train.len(),
        fit.data().test.len()
    ))?;
    let best = train(args, &mut fit, &progress)?;
    progress.finish();
    report(args, &mut fit, best, &progress)
}

/// Passes over the data until the test loss is below the goal.
fn train(args: &Args, fit: &mut FitALine, progress: &Progress) -> anyhow::Result<Best> {
    let full = args.batch_size.min(fit.data().train.len());
    let mut best =
        Best { passes: 0, test_loss: f32::NAN, batch_cost: f32::INFINITY, diverged: false };
    for pass in 0..args.epochs {
        let logged = pass % args.log_every == 0;
        for (batch, rows) in fit.batches(pass).iter().enumerate() {
            let cost = fit.train_batch(rows)?;
            if logged && batch % 10 == 0 {
                progress.line(format!("Pass {pass}, Batch {batch}, Cost {cost:.4}"))?;
            }
            if !cost.is_finite() {
                progress.line(format!("Pass {pass}, Batch {batch}, Cost {cost}"))?;
                return Ok(Best { diverged: true, ..best });
            }
            if rows.len() == full {
                best.batch_cost = best.batch_cost.min(cost);
            }
        }
        let (test_loss, _) = fit.test()?;
        best = Best { passes: pass + 1, test_loss, ..best };
        let done = test_loss < GOAL;
        if logged || done || pass + 1 == args.epochs {
            progress.line(format!("Test {pass}, Cost {test_loss:.4}"))?;
        }
        progress.advance(|| format!("test cost {test_loss:.2}"));
        if done {
            break;
        }
    }
    Ok(best)
}

fn report(
    args: &Args,
    fit: &mut FitALine,
    best: Best,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let Best { passes, test_loss, batch_cost, diverged } = best;
    let passes = if passes == 1 { "1 pass".into() } else { format!("{passes} passes") };
    if diverged {
        eprintln!("not reached: the cost is no longer a number; try a smaller --learning-rate");
        return Ok(Outcome::GoalMissed);
    }
    if test_loss < GOAL {
        progress.line(format!("Test loss {test_loss:.4} is below {GOAL} after {passes}."))?;
    } else if batch_cost < GOAL {
        progress.line(format!(
            "Test loss {test_loss:.4} after {passes}; the best training batch cost \
             {batch_cost:.4}, below {GOAL}."
        ))?;
    } else {
        eprintln!(
            "not reached: after {passes} the test loss is {test_loss:.4} and the best \
             training batch cost {batch_cost:.4}, neither below {GOAL}; try more --epochs or \
             another --learning-rate"
        );
        return Ok(Outcome::GoalMissed);
    }
    let (_, predictions) = fit.test()?;
    progress.line("   price  predicted")?;
    for (price, predicted) in fit.data().test.y.iter().zip(&predictions).take(5) {
        progress.line(format!("{price:8.2} {predicted:10.2}"))?;
    }
    if let Some(dir) = &args.save {
        fit.save(dir)?;
        progress.line(format!("Saved to {}.", dir.display()))?;
    }
    Ok(Outcome::Done)
}
