//! One pass over test data: batches run, heads are measured, the observer hears of it.

use std::time::Instant;

use regatta_tensor::Tensor;

use super::engine::Engine;
use crate::data::Data;
use crate::metrics::Meter;
use crate::network::Network;
use crate::observe::{Event, Observer};
use crate::report::StageSeconds;
use crate::train::{IntervalClock, stages};
use crate::{Config, Error};

/// What a pass found beside the measures of its heads.
pub(super) struct Pass {
    pub(super) examples: u64,
    /// The mean over all examples, if there are any.
    pub(super) loss: Option<f64>,
    pub(super) seconds: f64,
    pub(super) stages: StageSeconds,
}

pub(super) fn pass(
    config: &Config,
    network: &Network,
    engine: &mut Engine,
    data: &mut Data,
    meters: &mut [Meter],
    epoch: u64,
    observer: &mut dyn Observer,
) -> Result<Pass, Error> {
    let (start, times) = (Instant::now(), engine.times());
    let fetch = network.fetches();
    let (mut batches, loading) = data.pass(0)?;
    let mut clock = IntervalClock::new();
    let (mut examples, mut batch_id, mut loss_sum) = (0_u64, 0_u64, 0.0_f64);
    while let Some(batch) = batches.next()? {
        let fetched = engine.run(&batch, &fetch)?;
        for (meter, head) in meters.iter_mut().zip(fetched[1..].chunks_exact(2)) {
            meter.add(&head[0], &head[1]);
        }
        let heads = scores(&fetch, fetched);
        observer.event(&Event::Scores { examples: batch.examples(), heads: &heads });
        let (loss, n) = (fetched[0].f32()[0], batch.examples() as u64);
        examples += n;
        loss_sum += f64::from(loss) * n as f64;
        batches.recycle(batch);
        clock.count(n);
        if batch_id.is_multiple_of(config.runner.print_interval) {
            let place = (epoch, batch_id, engine.step());
            let interval = clock.interval(place, Some(loss), Vec::new(), &batches);
            observer.event(&Event::Interval(&interval));
        }
        batch_id += 1;
    }
    let bad = batches.bad_lines();
    if bad.count > 0 {
        observer.event(&Event::BadLines(&bad));
    }
    Ok(Pass {
        examples,
        loss: (examples > 0).then(|| loss_sum / examples as f64),
        seconds: start.elapsed().as_secs_f64(),
        stages: stages(&[loading, batches.stages()], times, engine.times()),
    })
}

/// The predictions among what [`Network::fetches`] names, without losses and labels.
fn scores<'a>(fetch: &[&'a str], fetched: &'a [Tensor]) -> Vec<(&'a str, &'a Tensor)> {
    fetch.iter().copied().zip(fetched).skip(1).step_by(2).collect()
}
