//! Random operations, by one thread and by several.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use regatta_cold::{Compactor, Error, RecordNo, Store};

use crate::model::{Model, check_all, check_scan, each_engine, put, spread, words};

#[derive(Debug, Clone)]
enum Act {
    /// Puts rows, replacing those that are there.
    Put(Vec<u64>),
    /// Reads rows, and numbers of rows that are gone.
    Read(Vec<u64>),
    Release(Vec<u64>),
    Flush,
    /// Compacts, refusing hashes with this remainder by 5.
    Compact(u64),
    Scan,
    Load(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let keys = || prop::collection::vec(0..400_u64, 1..120);
    prop_oneof![
        4 => keys().prop_map(Act::Put),
        3 => keys().prop_map(Act::Read),
        3 => keys().prop_map(Act::Release),
        1 => Just(Act::Flush),
        2 => (0..8_u64).prop_map(Act::Compact),
        1 => Just(Act::Scan),
        1 => (1000..1300_u64).prop_map(Act::Load),
    ]
}

fn perform(store: &Store, model: &mut Model, step: u32, act: Act) {
    match act {
        Act::Put(keys) => keys.iter().for_each(|&key| put(store, model, spread(key), step)),
        Act::Read(keys) => {
            let hashes: Vec<u64> = keys.into_iter().map(spread).collect();
            let known: Vec<_> = hashes.iter().filter_map(|hash| model.get(hash)).collect();
            let numbers: Vec<_> = known.iter().map(|(number, _)| *number).collect();
            let records = store.read(&numbers).unwrap();
            for (i, (_, version)) in known.iter().enumerate() {
                assert_eq!(records.get(i).unwrap().tag, *version);
            }
        }
        Act::Release(keys) => {
            for key in keys {
                let Some((number, _)) = model.remove(&spread(key)) else { continue };
                store.release(&[number]).unwrap();
                assert!(store.read(&[number]).unwrap().get(0).is_none());
                assert!(matches!(store.release(&[number]), Err(Error::NotLive(n)) if n == number));
            }
        }
        Act::Flush => store.flush().unwrap(),
        Act::Compact(refused) => {
            let moved = |hash: u64, old: RecordNo, new: RecordNo| {
                let place = model.get_mut(&hash).expect("only live records move");
                assert_eq!(place.0, old);
                let accepted = hash % 5 != refused;
                place.0 = if accepted { new } else { old };
                accepted
            };
            store.compact(moved).unwrap();
        }
        Act::Scan => check_scan(store, model),
        Act::Load(first) => {
            let mut hashes: Vec<u64> = (first..first + 100).map(spread).collect();
            hashes.sort_unstable();
            for hash in &hashes {
                if let Some((number, _)) = model.remove(hash) {
                    store.release(&[number]).unwrap();
                }
            }
            let records = hashes.iter().map(|&hash| (hash, step, words(hash, step)));
            let placed = |hash, number| _ = model.insert(hash, (number, step));
            store.load_sorted(records, placed).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_map(acts in prop::collection::vec(act(), 1..40)) {
        each_engine(|dir, options| {
            let store = Store::open(dir, options).unwrap();
            let mut model = Model::new();
            for (step, act) in acts.iter().cloned().enumerate() {
                perform(&store, &mut model, step as u32, act);
            }
            check_all(&store, &model);
            check_scan(&store, &model);
        });
    }
}

/// Several threads put, read, change and release rows of their own while a compactor moves them and
/// another thread saves.
#[test]
fn threads_share_a_store() {
    each_engine(|dir, options| {
        let store = Arc::new(Store::open(dir, options).unwrap());
        let models: Vec<_> = (0..3).map(|_| Arc::new(Mutex::new(Model::new()))).collect();
        let owners = models.clone();
        let compactor = Compactor::start(store.clone(), move |hash, old, new| {
            let mut model = owners[(hash >> 62) as usize % 3].lock().unwrap();
            match model.get_mut(&hash) {
                Some(place) if place.0 == old => place.0 = new,
                _ => return false,
            }
            true
        });
        let compactor = compactor.unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|i| {
                    let (store, model) = (&store, &models[i as usize]);
                    scope.spawn(move || work(store, model, i))
                })
                .collect();
            let saver = scope.spawn(|| save_until(&store, &done));
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Release);
            assert!(saver.join().unwrap() > 0);
        });
        compactor.keep_up().unwrap();
        drop(compactor);
        let all: Model = models.iter().flat_map(|model| model.lock().unwrap().clone()).collect();
        check_all(&store, &all);
        check_scan(&store, &all);
    });
}

fn work(store: &Store, model: &Mutex<Model>, owner: u64) {
    let mut random = owner + 1;
    for version in 0..150 {
        for _ in 0..20 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The two highest bits say whose it is.
            let hash = spread(random >> 40 & 255) >> 2 | owner << 62;
            put(store, &mut model.lock().unwrap(), hash, version);
        }
        // Numbers are looked up under the lock, read without it, and compared under it again.
        let wanted: Vec<_> =
            model.lock().unwrap().iter().take(40).map(|(&hash, &(n, v))| (hash, n, v)).collect();
        let numbers: Vec<RecordNo> = wanted.iter().map(|w| w.1).collect();
        let tickets: Vec<_> = numbers.chunks(15).map(|n| store.submit(n).unwrap()).collect();
        let held: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect();
        let model = model.lock().unwrap();
        for (i, (hash, number, version)) in wanted.into_iter().enumerate() {
            let record = held[i / 15].get(i % 15);
            if model.get(&hash).is_some_and(|place| place.0 == number) {
                let record = record.expect("it has had this number all the time");
                assert_eq!((record.hash, record.tag), (hash, version));
                assert_eq!(record.words, words(hash, version));
            }
        }
    }
}

/// Every save has ascending hashes and rows of one piece.
fn save_until(store: &Store, done: &AtomicBool) -> usize {
    let mut n_saves = 0;
    while !done.load(Ordering::Acquire) || n_saves == 0 {
        let pins = store.pin().unwrap();
        let mut scan = store.scan_sorted(&pins).unwrap();
        let (mut last, mut n) = (None, 0);
        while let Some(record) = scan.next_record().unwrap() {
            assert!(last < Some(record.hash), "every row once");
            assert_eq!(record.words, words(record.hash, record.tag));
            last = Some(record.hash);
            n += 1;
        }
        assert_eq!(n, pins.n_records());
        n_saves += 1;
    }
    n_saves
}
