//! What a store promises, by both read engines, against a map in memory.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use regatta_cold::{Compactor, EngineChoice, Error, Options, RecordNo, Store};

/// Words of a record: 16 records in a page, 64 in a segment.
const WORDS: usize = 60;

const ENGINES: [EngineChoice; 2] = [EngineChoice::Ring, EngineChoice::Threads];

fn options(engine: EngineChoice) -> Options {
    let segment_bytes = 5 * 4096;
    Options { segment_bytes, engine, n_threads: 3, ..Options::new(WORDS) }
}

/// Both engines, or threads where io_uring is forbidden.
fn each_engine(test: impl Fn(&Path, &Options)) {
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("rows");
        match Store::open(&dir, &options(engine)) {
            Err(Error::Start { what: "io_uring", source }) => eprintln!("no io_uring: {source}"),
            Err(error) => panic!("{error}"),
            Ok(store) => {
                drop(store);
                test(&dir, &options(engine));
                assert!(!dir.exists(), "a store leaves nothing behind");
            }
        }
    }
}

/// The words of a version of a row.
fn words(hash: u64, version: u32) -> [u32; WORDS] {
    std::array::from_fn(|i| (hash as u32).wrapping_mul(31) ^ version ^ (i as u32) << 20)
}

/// Spreads small numbers over all hashes.
fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The rows that should be in the store: number and version by hash.
type Model = HashMap<u64, (RecordNo, u32)>;

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

fn check_all(store: &Store, model: &Model) {
    let (hashes, numbers): (Vec<u64>, Vec<RecordNo>) =
        model.iter().map(|(&hash, &(number, _))| (hash, number)).unzip();
    let records = store.read(&numbers).unwrap();
    for (i, hash) in hashes.iter().enumerate() {
        let record = records.get(i).expect("a live record is found");
        let version = model[hash].1;
        assert_eq!((record.hash, record.tag), (*hash, version));
        assert_eq!(record.words, words(*hash, version));
    }
    assert_eq!(store.stats().live, model.len() as u64);
}

fn check_scan(store: &Store, model: &Model) {
    let pins = store.pin().unwrap();
    assert_eq!(pins.n_records(), model.len() as u64);
    let mut scan = store.scan_sorted(&pins).unwrap();
    let sorted: BTreeMap<u64, u32> = model.iter().map(|(&h, &(_, version))| (h, version)).collect();
    for (hash, version) in sorted {
        let record = scan.next_record().unwrap().expect("as many records as rows");
        assert_eq!((record.hash, record.tag), (hash, version));
        assert_eq!(record.words, words(hash, version));
    }
    assert!(scan.next_record().unwrap().is_none());
}

fn put(store: &Store, model: &mut Model, hash: u64, version: u32) {
    if let Some((number, _)) = model.remove(&hash) {
        store.release(&[number]).unwrap();
    }
    let number = store.put(hash, version, &words(hash, version)).unwrap();
    model.insert(hash, (number, version));
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

/// Files stay below twice what lives, however long rows are replaced.
#[test]
fn files_are_bounded_during_churn() {
    each_engine(|dir, options| {
        let store = Arc::new(Store::open(dir, options).unwrap());
        let model = Arc::new(Mutex::new(Model::new()));
        let owner = model.clone();
        let compactor = Compactor::start(store.clone(), move |hash, old, new| {
            let mut model = owner.lock().unwrap();
            let place = model.get_mut(&hash).filter(|place| place.0 == old);
            place.map(|place| place.0 = new).is_some()
        });
        let compactor = compactor.unwrap();
        let mut random = 7_u64;
        let n_rows = 2000_u64;
        for version in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = if version < 2000 { u64::from(version) } else { (random >> 33) % n_rows };
            put(&store, &mut model.lock().unwrap(), spread(key), version);
            if version % 32 == 0 {
                compactor.keep_up().unwrap();
            }
        }
        compactor.keep_up().unwrap();
        let stats = store.stats();
        let live_bytes = n_rows * 256;
        // Open, two waiting, one written, one compacted: five; a header page for every four others.
        let bound = 2 * live_bytes * 5 / 4 + 5 * options.segment_bytes as u64;
        assert!(stats.most_disk_bytes <= bound, "{stats:?}, {bound}");
        assert!(stats.write_amplification() < 3.0, "{stats:?}");
        assert!(stats.moved > 0 && stats.live == n_rows);
        check_all(&store, &model.lock().unwrap());
    });
}

/// A pin keeps its records, whatever happens to them afterwards.
#[test]
fn pins_keep_what_they_saw() {
    each_engine(|dir, options| {
        let store = Store::open(dir, options).unwrap();
        let mut model = Model::new();
        (0..300).for_each(|key| put(&store, &mut model, spread(key), 1));
        let (pins, then) = (store.pin().unwrap(), model.clone());
        (0..300).for_each(|key| put(&store, &mut model, spread(key), 2));
        store.flush().unwrap();
        while store
            .compact(|hash, _, new| {
                model.get_mut(&hash).unwrap().0 = new;
                true
            })
            .unwrap()
            .is_some()
        {}
        let mut scan = store.scan_sorted(&pins).unwrap();
        let mut n = 0;
        while let Some(record) = scan.next_record().unwrap() {
            assert_eq!(record.words, words(record.hash, then[&record.hash].1));
            n += 1;
        }
        assert_eq!(n, 300);
        drop((pins, scan));
        check_all(&store, &model);
        assert!(store.stats().disk_bytes <= 2 * 300 * 256 + 12 * 4096);
    });
}

/// Many records of one segment are read in sequence, few page by page, each page once.
#[test]
fn pages_are_read_once_and_segments_in_sequence() {
    each_engine(|dir, options| {
        let options = Options { segment_bytes: 101 * 4096, ..options.clone() };
        let store = Store::open(dir, &options).unwrap();
        let mut numbers = vec![RecordNo::from_u32(0); 1600];
        let records = (0..1600_u64).map(|hash| (hash, 0, words(hash, 0)));
        store.load_sorted(records, |hash, number| numbers[hash as usize] = number).unwrap();
        // Three records of two pages.
        let few = store.read(&[numbers[20], numbers[3], numbers[17]]).unwrap();
        assert_eq!(few.iter().map(|r| r.unwrap().hash).collect::<Vec<_>>(), [20, 3, 17]);
        let stats = store.stats();
        assert_eq!((stats.reads, stats.pages, stats.scans, stats.memory_hits), (3, 2, 0, 0));
        // One record of every second page: half of all pages.
        let half: Vec<RecordNo> = numbers.iter().copied().step_by(32).collect();
        let many = store.read(&half).unwrap();
        assert!(many.iter().enumerate().all(|(i, r)| r.unwrap().hash == 32 * i as u64));
        let stats = store.stats();
        assert_eq!((stats.scans, stats.pages), (1, 2 + 100));
        // Every record of a full segment costs a bit and no place in memory if it was loaded.
        assert_eq!(stats.index_bytes, 200);
    });
}

#[test]
fn wrong_use_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("rows");
    let store = Store::open(&dir, &options(EngineChoice::Threads)).unwrap();
    let error = store.put(1, 0, &[0; 3]).unwrap_err().to_string();
    assert_eq!(error, "cold store: a record of 3 words, not 60");
    let rows = [(5, 0, [0; WORDS]), (5, 0, [0; WORDS])];
    let error = store.load_sorted(rows, |_, _| ()).unwrap_err().to_string();
    assert!(error.ends_with("must ascend: 0x0000000000000005 follows 0x0000000000000005"));
    // None of this harms the store.
    let number = store.put(1, 9, &[7; WORDS]).unwrap();
    assert_eq!(store.read(&[number]).unwrap().get(0).unwrap().tag, 9);
    let unknown = RecordNo::from_u32(u32::MAX);
    assert!(store.read(&[unknown]).unwrap().get(0).is_none());
    drop(store);
    let few = Options { max_records: 64 * 2, ..options(EngineChoice::Threads) };
    let store = Store::open(&dir, &few).unwrap();
    let all = (0..200).map(|hash| (hash, 0, &[0; WORDS][..]));
    let error = store.put_all(all, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("all 128 record numbers are taken"), "{error}");
}
