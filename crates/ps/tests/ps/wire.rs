//! Gradients and values in 16 bits.

use regatta_ps::{AsyncConfig, Mode, Wire};
use regatta_table::Initializer;

use crate::common::{DENSE, DIM, Job, begin, expected, gradients, pull, wanted, with_gradients};

const STEPS: u64 = 5;

/// Trains as everybody does: push and pull in one, then looks at everything.
fn train(job: &Job) -> Vec<(Vec<f32>, Vec<f32>)> {
    let (keys, _, _) = expected(job.workers, STEPS, 1.0);
    let (results, _) = job.run(|worker, client| {
        begin(client);
        pull(client, 0, &gradients(worker, 0).keys, false);
        for step in 0..STEPS {
            let next = gradients(worker, step + 1).keys;
            let v = gradients(worker, step);
            let ticket = with_gradients(&v, step, |gradients| {
                client.push_pull(gradients, &wanted(step + 1, &[&next], false)).unwrap()
            });
            let (mut rows, mut dense) = (vec![f32::NAN; next.len() * DIM], vec![f32::NAN; DENSE]);
            client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]).unwrap();
            assert!(rows.iter().chain(&dense).all(|x| x.is_finite()));
        }
        client.barrier("trained").unwrap();
        let result = pull(client, STEPS, &keys, true);
        client.barrier("read").unwrap();
        result
    });
    results
}

/// Whole numbers are exact in 16 bits, if they are small.
#[test]
fn sums_are_what_they_are_in_32_bits() {
    let modes = [
        (Mode::Sync, -0.5),
        (Mode::Async(AsyncConfig::default()), -1.0),
        (Mode::HalfAsync, -1.0),
        (Mode::Bounded { staleness: 1 }, -1.0),
    ];
    for (mode, scale) in modes {
        let (_, rows, dense) = expected(2, STEPS, scale);
        for wire in [Wire::F32, Wire::F16, Wire::Bf16] {
            let results = train(&Job { wire, ..Job::new(2, 2, mode) });
            assert!(results.iter().all(|r| (&r.0, &r.1) == (&rows, &dense)), "{mode:?}, {wire}");
        }
    }
}

#[test]
fn values_are_rounded_on_the_way_and_whole_on_the_server() {
    let initializer = Initializer::Constant(0.1);
    let job = Job { wire: Wire::Bf16, initializer, ..Job::new(1, 1, Mode::HalfAsync) };
    job.run(|_, client| {
        begin(client);
        // Ids of eight bytes and of one.
        let keys = [u64::MAX, 3];
        assert_eq!(pull(client, 0, &keys, false).0, [0.100_097_656; 2 * DIM]);
        let ticket = client.pull_exactly(&wanted(0, &[&keys], true)).unwrap();
        let (mut rows, mut dense) = ([f32::NAN; 2 * DIM], [f32::NAN; DENSE]);
        client.finish_pull(ticket, &mut [&mut rows], &mut [&mut dense]).unwrap();
        assert_eq!(rows, [0.1; 2 * DIM]);
    });
}
