//! Weight prediction: a server sends dense parameters as they will be after one more update.
//! [`Core::pull_dense`] decides and extrapolates.
//!
//! With several asynchronous workers another update comes between a pull and the push of the
//! gradients computed with it. Gradients fit the weights that they meet if the server sends `w_t +
//! d1 + (d1 - d0)`, where `d1` and `d0` are the last two updates. SpecTrain (Chen et al., 2018)
//! predicts weights for pipelines and DANA (Hakimi et al., 2019) for asynchronous workers, both
//! from the optimizer's momentum; the last updates need no knowledge of the rule. Rules without
//! momentum take steps that are unlike each other, so their weights are sent as they are.
//!
//! Measured (click model of `bench/compare`, one data pass of 195 steps, 2 workers, batch 2048,
//! AUC, means of six seeds): weights as they are 0.691 to 0.696, extrapolated by `d1` alone 0.7027,
//! as here 0.7048, one process 0.707, synchronous training, which makes half of the updates, 0.689.
//! One update ahead and not as many as are in flight: with 4 workers and batch 512, 1 was better
//! than 3 (0.734 and 0.735; 0.732), with batch 2048 worse than 2 or 3 (0.662; 0.671, 0.668; single
//! runs, by `d1`); none gave 0.656. Rows are sent as they are: a simulation with stale rows alone
//! lost nothing (0.7067; 0.7066 with nothing stale).

use regatta_table::DenseHistory;

use super::core::Core;
use crate::message::Pull;
use crate::{Error, Mode};

impl Core {
    /// Copies the dense parameters for a pull, predicted where that is set and of use. `with_push`
    /// says that the pull comes with the push before it.
    pub(super) fn pull_dense(
        &self,
        pull: &Pull,
        with_push: bool,
        out: &mut [f32],
    ) -> Result<(), Error> {
        if self.predicts(pull, with_push) {
            self.dense.pull_predicted(out, extrapolate)
        } else {
            self.dense.pull(out)
        }
    }

    /// Whether an update of another worker is to be expected between this pull and the push of its
    /// gradients. None of the same worker is: it pulls dense parameters when its push is applied.
    fn predicts(&self, pull: &Pull, with_push: bool) -> bool {
        let Mode::Async(config) = self.config.mode else { return false };
        let trains = with_push || !pull.test;
        config.dense_ahead && trains && self.config.workers > 1
    }
}

/// The weights after one more update, as far as the last two are known.
fn extrapolate(history: &DenseHistory<'_>, out: &mut [f32]) {
    let DenseHistory { now, before, earlier } = *history;
    match (before, earlier) {
        (Some(before), Some(earlier)) => {
            let weights = now.iter().zip(before).zip(earlier);
            for (out, ((now, before), earlier)) in out.iter_mut().zip(weights) {
                let (d1, d0) = (now - before, before - earlier);
                *out = now + d1 + (d1 - d0);
            }
        }
        (Some(before), None) => {
            for (out, (now, before)) in out.iter_mut().zip(now.iter().zip(before)) {
                *out = now + (now - before);
            }
        }
        (None, _) => out.copy_from_slice(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_update_differs_from_the_last_as_that_from_the_one_before() {
        let (now, before, earlier) = ([6.0], [3.0], [2.0]);
        let predict = |before, earlier| {
            let mut out = [0.0];
            extrapolate(&DenseHistory { now: &now, before, earlier }, &mut out);
            out[0]
        };
        assert_eq!(predict(None, None), 6.0);
        assert_eq!(predict(Some(&before[..]), None), 9.0);
        assert_eq!(predict(Some(&before[..]), Some(&earlier[..])), 6.0 + 3.0 + (3.0 - 1.0));
    }
}
