//! Geo training end to end: workers with local copies against one table.

use regatta_table::{Changes, GeoConfig, GeoTable, Initializer, Scratch, TableId};

/// What a worker keeps: the values it trains on, and what it believes the server has.
struct Worker {
    latest: Vec<f32>,
    old: Vec<f32>,
}

impl Worker {
    fn exchange(&mut self, table: &GeoTable, trainer: usize, n_trainers: f32) {
        let keys: Vec<u64> = (0..self.latest.len() as u64).collect();
        let deltas: Vec<f32> =
            self.latest.iter().zip(&self.old).map(|(new, old)| (new - old) / n_trainers).collect();
        self.old.iter_mut().zip(&deltas).for_each(|(old, delta)| *old += delta);
        table.push_delta(trainer, &keys, &deltas, &mut Scratch::default()).unwrap();
        let mut changes = Changes::default();
        table.pull_changed(trainer, &mut changes).unwrap();
        for (&key, &value) in changes.keys.iter().zip(&changes.values) {
            let key = key as usize;
            self.latest[key] += value - self.old[key];
            self.old[key] = value;
        }
    }
}

fn table(n_trainers: usize) -> GeoTable {
    let initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
    GeoTable::new(GeoConfig { initializer, ..GeoConfig::new(TableId(0), 1, n_trainers) }).unwrap()
}

fn first_values(table: &GeoTable) -> Vec<f32> {
    let mut values = vec![0.0; 20];
    let keys: Vec<u64> = (0..20).collect();
    table.pull(&keys, &mut values, &mut Scratch::default()).unwrap();
    assert_eq!(table.n_rows().unwrap(), 0, "reading creates nothing");
    values
}

#[test]
fn one_worker_trains_as_if_alone() {
    let table = table(1);
    let first = first_values(&table);
    let mut worker = Worker { latest: first.clone(), old: first.clone() };
    let mut alone = first;
    for step in 0..50 {
        let gradient = |i: usize, w: f32| 0.1 * (w - (i + step) as f32 / 10.0);
        let train = |values: &mut Vec<f32>| {
            values.iter_mut().enumerate().for_each(|(i, w)| *w -= gradient(i, *w));
        };
        train(&mut worker.latest);
        train(&mut alone);
        if step % 4 == 3 {
            worker.exchange(&table, 0, 1.0);
        }
        let close = worker.latest.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close, "step {step}");
    }
}

#[test]
fn the_server_holds_first_values_plus_the_sum_of_deltas() {
    let table = table(3);
    let first = first_values(&table);
    let mut workers: Vec<Worker> =
        (0..3).map(|_| Worker { latest: first.clone(), old: first.clone() }).collect();
    for round in 0..10 {
        for (trainer, worker) in workers.iter_mut().enumerate() {
            worker.latest.iter_mut().for_each(|w| *w += (trainer + round) as f32);
            worker.exchange(&table, trainer, 3.0);
        }
    }
    // Everything trained has arrived once, up to the part that waits for the next exchange.
    let mut server = vec![0.0; 20];
    table.pull(&(0..20).collect::<Vec<_>>(), &mut server, &mut Scratch::default()).unwrap();
    let waiting: f32 = workers.iter().map(|w| (w.latest[0] - w.old[0]) / 3.0).sum();
    assert!(server[0] > first[0] && waiting >= 0.0);
    for worker in &workers {
        // A worker's belief is the server's value at its last exchange, never ahead of it.
        assert!(worker.old.iter().zip(&server).all(|(old, server)| *old <= server + 1e-4));
    }
}
