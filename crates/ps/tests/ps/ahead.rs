//! Dense values as they will be after one more update.

use regatta_optim::{Momentum, Rule, Sgd};
use regatta_ps::{AsyncConfig, Gradients, Mode};

use crate::common::{DENSE, Job, begin, pull, wanted};

/// What worker 0 gets after it has pushed a gradient of 1 at a learning rate of 1 a second time:
/// with the answer to the push, to train with, and to look at.
fn values(workers: usize, rule: Rule, config: AsyncConfig) -> [Vec<f32>; 3] {
    let job = Job { rule, ..Job::new(2, workers, Mode::Async(config)) };
    let (mut results, _) = job.run(|worker, client| {
        begin(client);
        let mut got: [Vec<f32>; 3] = Default::default();
        if worker == 0 {
            let gradient = [1.0; DENSE];
            let tables: [(&[u64], &[f32]); 1] = [(&[], &[])];
            for step in 0..2 {
                let gradients = Gradients {
                    step,
                    examples: 8,
                    dense: &[&gradient],
                    tables: &tables,
                    mark: None,
                };
                let ticket = client.push_pull(&gradients, &wanted(step + 1, &[&[]], true)).unwrap();
                got[0] = vec![f32::NAN; DENSE];
                client.finish_pull(ticket, &mut [&mut []], &mut [&mut got[0]]).unwrap();
                got[1] = pull(client, step + 1, &[], false).1;
                got[2] = pull(client, step + 1, &[], true).1;
            }
        }
        client.barrier("end").unwrap();
        got
    });
    results.remove(0)
}

#[test]
fn dense_values_are_given_ahead_only_where_an_update_comes_in_between() {
    let momentum = Rule::Momentum(Momentum { mu: 0.5, ..Momentum::default() });
    // Steps of 1 and 1.5.
    let (ahead, now) = (vec![-4.0; DENSE], vec![-2.5; DENSE]);
    let on = AsyncConfig { dense_ahead: true, pull_ahead: 0, ..AsyncConfig::default() };
    let off = AsyncConfig { dense_ahead: false, ..on };
    // Another worker trains.
    assert_eq!(values(2, momentum, on), [&ahead, &ahead, &now].map(Clone::clone));
    // A worker alone: nobody else updates.
    assert_eq!(values(1, momentum, on), [&now, &now, &now].map(Clone::clone));
    // Not wanted, or not to be foreseen.
    assert_eq!(values(2, momentum, off), [&now, &now, &now].map(Clone::clone));
    let without = vec![-2.0; DENSE];
    assert_eq!(values(2, Rule::Sgd(Sgd {}), on), [&without; 3].map(Clone::clone));
}
