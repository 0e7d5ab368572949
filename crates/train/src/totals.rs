//! Numbers of all workers: each counts its own, and sums are formed after a data pass.

use regatta_ps::message::ReduceOp;

use crate::Error;
use crate::backend::Backend;
use crate::metrics::{ExampleKeys, Meter};
use crate::pass::PassTotals;
use crate::report::EpochReport;
use crate::state::WorkerState;

/// The numbers of all workers: sums of examples, losses and counters, all scores, the longest time.
pub(crate) fn sum_over_workers(
    backend: &mut dyn Backend,
    meters: &mut [Meter],
    state: &WorkerState,
    mine: &EpochReport,
) -> Result<PassTotals, Error> {
    let mut sums = vec![state.examples as f64, f64::from_bits(state.loss_sum)];
    let own: Vec<Vec<f64>> = meters.iter().map(Meter::counters).collect();
    sums.extend(own.iter().flatten());
    let sums = backend.reduce("epoch", ReduceOp::Sum, &sums)?;
    let longest = backend.reduce("seconds", ReduceOp::Max, &[mine.seconds])?;
    let mut rest = &sums[2..];
    for (meter, own) in meters.iter_mut().zip(&own) {
        let (now, later) = rest.split_at(own.len());
        meter.set_counters(now);
        if meter.keeps_scores() {
            let scores = gather_scores(backend, meter.scores())?;
            meter.set_scores(scores);
        }
        rest = later;
    }
    let examples = sums[0] as u64;
    let loss = mine.loss.and((examples > 0).then(|| sums[1] / sums[0]));
    let seconds = longest.first().copied().unwrap_or(mine.seconds);
    Ok(PassTotals { epoch: mine.epoch, examples, loss, seconds })
}

/// Scores that travel at once.
const SCORES_AT_ONCE: usize = 1 << 15;

/// The scores of all workers, with their labels, worker by worker.
fn gather_scores(
    backend: &mut dyn Backend,
    own: &[(f32, bool)],
) -> Result<Vec<(f32, bool)>, Error> {
    let most = backend.reduce("scores", ReduceOp::Max, &[own.len() as f64])?;
    let most = most.first().map_or(0, |n| *n as usize);
    let mut all = vec![Vec::new(); backend.workers()];
    for first in (0..most).step_by(SCORES_AT_ONCE) {
        let part = own.get(first..own.len().min(first + SCORES_AT_ONCE)).unwrap_or_default();
        let pack = |&(score, label): &(f32, bool)| {
            let [a, b, c, d] = score.to_le_bytes();
            [a, b, c, d, u8::from(label)]
        };
        let bytes: Vec<u8> = part.iter().flat_map(pack).collect();
        for (scores, bytes) in all.iter_mut().zip(backend.gather("scores", &bytes)?) {
            let read =
                |&[a, b, c, d, label]: &[u8; 5]| (f32::from_le_bytes([a, b, c, d]), label != 0);
            scores.extend(bytes.as_chunks::<5>().0.iter().map(read));
        }
    }
    Ok(all.concat())
}

/// The keys of the examples of all workers, in the order of their scores.
pub(crate) fn gather_keys(backend: &mut dyn Backend, keys: &mut ExampleKeys) -> Result<(), Error> {
    for own in keys.lists() {
        let most = backend.reduce("keys", ReduceOp::Max, &[own.len() as f64])?;
        let most = most.first().map_or(0, |n| *n as usize);
        let mut all = vec![Vec::new(); backend.workers()];
        for first in (0..most).step_by(SCORES_AT_ONCE) {
            let part = own.get(first..own.len().min(first + SCORES_AT_ONCE)).unwrap_or_default();
            let bytes: Vec<u8> = part.iter().flat_map(|key| key.to_le_bytes()).collect();
            for (keys, bytes) in all.iter_mut().zip(backend.gather("keys", &bytes)?) {
                keys.extend(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)));
            }
        }
        *own = all.concat();
    }
    Ok(())
}
