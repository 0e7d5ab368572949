//! Gradients of ranks, which are threads here.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

use regatta_eager::nn::{Embedding, Init, Layer, Linear};
use regatta_eager::{Error, Ranks, Reducer, ReducerOptions, Replica, Result, Template, Tensor};
use regatta_ops::comm::{Exchange, Reply};

/// What each rank has given to the exchange of a name and a number.
type Given = HashMap<(String, usize), Vec<Option<Exchange>>>;

/// What all ranks have given.
#[derive(Default)]
struct Board {
    given: Mutex<Given>,
    changed: Condvar,
}

/// One rank. Exchanges of one name are numbered by each rank.
struct Fake {
    rank: usize,
    size: usize,
    board: Arc<Board>,
    /// What happened here, in order.
    log: Arc<Mutex<Vec<String>>>,
    counts: Mutex<HashMap<String, (usize, usize)>>,
}

impl Ranks for Fake {
    fn size(&self) -> usize {
        self.size
    }

    fn start(&self, name: &Arc<str>, exchange: Exchange) -> Result<()> {
        self.log.lock().unwrap().push(format!("start {name}"));
        let number = {
            let mut counts = self.counts.lock().unwrap();
            let (started, _) = counts.entry(name.to_string()).or_default();
            *started += 1;
            *started
        };
        let mut given = self.board.given.lock().unwrap();
        let slots = given
            .entry((name.to_string(), number))
            .or_insert_with(|| (0..self.size).map(|_| None).collect());
        slots[self.rank] = Some(exchange);
        self.board.changed.notify_all();
        Ok(())
    }

    fn wait(&self, name: &str) -> Result<Reply> {
        let number = {
            let mut counts = self.counts.lock().unwrap();
            let (_, waited) = counts.get_mut(name).expect("it was started");
            *waited += 1;
            *waited
        };
        let key = (name.to_string(), number);
        let mut given = self.board.given.lock().unwrap();
        while !given[&key].iter().all(Option::is_some) {
            given = self.board.changed.wait(given).unwrap();
        }
        Ok(result(&given[&key]))
    }
}

fn result(given: &[Option<Exchange>]) -> Reply {
    let mut sums: Option<Vec<f32>> = None;
    let mut parts = Vec::new();
    for exchange in given.iter().flatten() {
        match exchange {
            Exchange::AllReduce { values, .. } => match &mut sums {
                None => sums = Some(values.clone()),
                Some(sums) => sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x),
            },
            Exchange::AllGather { bytes, .. } => parts.push(bytes.clone()),
            other => panic!("a reducer does not start {other:?}"),
        }
    }
    sums.map_or(Reply::Gathered(parts), Reply::Floats)
}

/// A table and two layers, the same on all ranks.
struct Net {
    table: Embedding,
    first: Linear,
    second: Linear,
}

impl Net {
    fn new() -> Net {
        let mut init = Init::new(3);
        let table = Embedding::new(&mut init, 50, 4).unwrap();
        let first = Linear::new(&mut init, 4, 8, "relu").unwrap();
        Net { table, first, second: Linear::new(&mut init, 8, 1, "").unwrap() }
    }

    fn params(&self) -> Vec<(&'static str, &Tensor, bool)> {
        vec![
            ("table", &self.table.weight, true),
            ("first.w", &self.first.weight, false),
            ("first.b", &self.first.bias, false),
            ("second.w", &self.second.weight, false),
            ("second.b", &self.second.bias, false),
        ]
    }

    fn loss(&self, ids: &[i64]) -> Tensor {
        let ids = Tensor::from_i64(&[ids.len()], ids.to_vec()).unwrap();
        let rows = self.table.forward(&ids).unwrap();
        let out = self.second.forward(&self.first.forward(&rows).unwrap()).unwrap();
        out.op("square", &[]).unwrap().op("mean", &[]).unwrap()
    }

    /// Gradients, those of the table densely; nothing for who has none.
    fn gradients(&self) -> Vec<Option<Vec<f32>>> {
        self.params().iter().map(|(_, p, _)| p.grad().map(|g| g.to_f32())).collect()
    }

    fn reduced(&self, ranks: Fake, change: impl Fn(&mut ReducerOptions)) -> Reducer {
        let mut options = ReducerOptions {
            name: "net".into(),
            // First and second layer apart.
            bucket_bytes: 64,
            last_bucket_bytes: 160,
            find_unused: false,
            check_every: 100,
        };
        change(&mut options);
        let params = self.params().into_iter().map(|(name, tensor, by_rows)| Replica {
            name: name.into(),
            tensor: tensor.clone(),
            by_rows,
        });
        Reducer::new(Arc::new(ranks), params.collect(), options).unwrap()
    }
}

/// Runs ranks as threads; what each returns.
fn run<T: Send + 'static>(
    size: usize,
    rank: impl Fn(usize, Fake) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (board, rank) = (Arc::new(Board::default()), Arc::new(rank));
    let threads: Vec<_> = (0..size)
        .map(|i| {
            let (log, counts) = (Arc::default(), Mutex::default());
            let fake = Fake { rank: i, size, board: board.clone(), log, counts };
            let rank = rank.clone();
            std::thread::spawn(move || rank(i, fake))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn assert_near(a: &[Option<Vec<f32>>], b: &[Option<Vec<f32>>]) {
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a.as_ref().unwrap(), b.as_ref().unwrap());
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(x, y)| assert!((x - y).abs() < 1e-6, "{x} {y}"));
    }
}

#[test]
fn means_of_ranks_are_gradients_of_the_whole_batch() {
    let parts: [&[i64]; 3] = [&[1, 2, 3], &[3, 4, 3], &[49, 1, 0]];
    let whole = Net::new();
    whole.loss(&parts.concat()).backward(None, false).unwrap();
    for size in [2, 3] {
        let found = run(size, move |rank, fake| {
            let net = Net::new();
            let _reducer = net.reduced(fake, |_| {});
            net.loss(parts[rank]).backward(None, false).unwrap();
            assert!(net.table.weight.grad().unwrap().is_rows());
            net.gradients()
        });
        assert!(found.iter().all(|gradients| *gradients == found[0]), "the same bits");
        if size == 3 {
            assert_near(&found[0], &whole.gradients());
        }
    }
}

#[test]
fn buckets_go_from_the_last_layer_to_the_first() {
    let net = Net::new();
    let board = Arc::new(Board::default());
    let (log, counts) = (Arc::default(), Mutex::default());
    let fake = Fake { rank: 0, size: 1, board, log, counts };
    let reducer = net.reduced(fake, |_| {});
    let buckets = reducer.buckets();
    assert_eq!(buckets, [vec!["second.w", "second.b"], vec!["first.w", "first.b"], vec!["table"]]);
}

#[test]
fn the_first_exchange_starts_before_backward_has_come_to_the_first_layer() {
    let logs = run(2, |_, fake| {
        let net = Net::new();
        let log = fake.log.clone();
        let seen = log.clone();
        net.first.weight.hook(Arc::new(move |_| {
            seen.lock().unwrap().push("gradient of first.w".into());
            Ok(None)
        }));
        let _reducer = net.reduced(fake, |_| {});
        net.loss(&[1, 2]).backward(None, false).unwrap();
        log.lock().unwrap().clone()
    });
    let expected = [
        "start net.0: second.w and 1 more",
        "gradient of first.w",
        "start net.1: first.w and 1 more",
        "start net.2: table",
        "start net: are parameters the same",
    ];
    logs.iter().for_each(|log| assert_eq!(*log, expected));
}

#[test]
fn backwards_without_exchange_add_up_for_the_next_one() {
    let whole = Net::new();
    whole.loss(&[1, 2]).backward(None, false).unwrap();
    whole.loss(&[3, 4]).backward(None, false).unwrap();
    let found = run(2, |rank, fake| {
        let net = Net::new();
        let log = fake.log.clone();
        let reducer = net.reduced(fake, |_| {});
        reducer.set_sync(false);
        net.loss(&[1 + rank as i64]).backward(None, false).unwrap();
        assert!(log.lock().unwrap().is_empty());
        reducer.set_sync(true);
        net.loss(&[3 + rank as i64]).backward(None, false).unwrap();
        net.gradients()
    });
    assert_eq!(found[0], found[1]);
    assert_near(&found[0], &whole.gradients());
}

#[test]
fn unused_parameters_are_named() {
    let loss = |net: &Net| {
        let ones = Tensor::from_f32(&[1, 4], vec![1.0; 4]).unwrap();
        net.first.forward(&ones).unwrap().op("mean", &[]).unwrap()
    };
    let messages = run(2, move |_, fake| {
        let net = Net::new();
        let _reducer = net.reduced(fake, |_| {});
        let error = loss(&net).backward(None, false).unwrap_err();
        assert!(matches!(error, Error::Unused { .. }));
        let later = net.loss(&[1]).backward(None, false).unwrap_err();
        assert!(later.to_string().contains("start the job again"), "{later}");
        error.to_string()
    });
    assert!(messages[0].contains("for 'table', 'second.w', 'second.b': use"), "{}", messages[0]);
}

#[test]
fn ranks_that_do_not_use_a_parameter_give_zeros() {
    let found = run(2, |rank, fake| {
        let net = Net::new();
        let _reducer = net.reduced(fake, |options| options.find_unused = true);
        let ones = Tensor::from_f32(&[1, 4], vec![1.0; 4]).unwrap();
        // Rank 0 uses the table, nobody the second layer.
        let table = net.table.forward(&Tensor::from_i64(&[1], vec![7]).unwrap()).unwrap();
        let x = if rank == 0 { table } else { ones };
        net.first.forward(&x).unwrap().op("mean", &[]).unwrap().backward(None, false).unwrap();
        let own = if rank == 0 { 1.0 } else { 0.0 };
        let rows = net.table.weight.grad().unwrap().to_rows().unwrap();
        assert_eq!(rows.rows, [7]);
        (own, net.gradients())
    });
    assert_eq!(found[0].1, found[1].1);
    assert!(found[0].1[3].is_none() && found[0].1[4].is_none());
    assert!(found[0].1[1].is_some());
}

#[test]
fn frozen_parameters_are_not_expected() {
    let found = run(2, |_, fake| {
        let net = Net::new();
        let _reducer = net.reduced(fake, |_| {});
        net.table.weight.set_stop_gradient(true);
        net.loss(&[1]).backward(None, false).unwrap();
        net.gradients()
    });
    assert!(found[0][0].is_none() && found[0][1].is_some());
}

#[test]
fn parameters_that_differ_are_named() {
    let messages = run(3, |rank, fake| {
        let net = Net::new();
        let _reducer = net.reduced(fake, |options| options.check_every = 2);
        net.loss(&[1]).backward(None, false).unwrap();
        if rank == 2 {
            net.first.bias.change(|values| values[3] += 1.0).unwrap();
        }
        net.loss(&[1]).backward(None, false).unwrap();
        net.loss(&[1]).backward(None, false).unwrap_err().to_string()
    });
    assert!(messages[1].starts_with("parameter 'first.b' of rank 2 is not"), "{}", messages[1]);
}

#[test]
fn a_backward_that_fails_ends_the_exchanges() {
    run(2, |_, fake| {
        let net = Net::new();
        let log = fake.log.clone();
        let _reducer = net.reduced(fake, |_| {});
        let bad = Template::new("matmul", &[("X", 1), ("Y", 1)], &[], &[]).unwrap();
        let hook = net.first.weight.hook(Arc::new(move |gradient| {
            bad.call(&[gradient, gradient]).map(|mut made| Some(made.remove(0)))
        }));
        net.loss(&[1]).backward(None, false).unwrap_err();
        assert_eq!(log.lock().unwrap().len(), 1);
        net.first.weight.unhook(hook);
        let later = net.loss(&[1]).backward(None, false).unwrap_err().to_string();
        assert!(later.contains("it ended with an error"), "{later}");
    });
}

#[test]
fn without_its_reducer_a_rank_is_alone() {
    let net = Net::new();
    let fake = Fake {
        rank: 0,
        size: 2,
        board: Arc::default(),
        log: Arc::default(),
        counts: Mutex::default(),
    };
    let log = fake.log.clone();
    drop(net.reduced(fake, |_| {}));
    net.loss(&[1]).backward(None, false).unwrap();
    assert!(log.lock().unwrap().is_empty());
}
