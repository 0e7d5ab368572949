//! Compaction, pins, reads of many pages, and wrong use.

use std::sync::{Arc, Mutex};

use regatta_cold::{Compactor, EngineChoice, Options, RecordNo, Store};

use crate::model::{Model, WORDS, check_all, check_scan, each_engine, options, put, spread, words};

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

/// Whoever is told that a record moves may release it at once, by either number, and save meanwhile.
#[test]
fn owners_release_records_while_they_are_told() {
    each_engine(|dir, options| {
        let store = Store::open(dir, options).unwrap();
        let mut model = Model::new();
        (0..64).for_each(|key| put(&store, &mut model, spread(key), 1));
        store.flush().unwrap();
        for key in 0..34 {
            let (number, _) = model.remove(&spread(key)).unwrap();
            store.release(&[number]).unwrap();
        }
        let mut n_told = 0;
        let done = store.compact(|hash, old, new| {
            let place = model.get_mut(&hash).unwrap();
            assert_eq!(place.0, old);
            assert!(store.read(&[old, new]).unwrap().iter().all(|r| r.unwrap().hash == hash));
            n_told += 1;
            // The first ones leave nothing alive in the new segment.
            let accepted = match n_told {
                1..=5 => {
                    store.release(&[new]).unwrap();
                    model.remove(&hash);
                    true
                }
                6..=10 => {
                    store.release(&[old]).unwrap();
                    model.remove(&hash);
                    false
                }
                11..=15 => false,
                _ => {
                    place.0 = new;
                    true
                }
            };
            check_scan(&store, &model);
            accepted
        });
        let done = done.unwrap().unwrap();
        assert_eq!((done.n_segments, done.n_moved, done.n_refused), (1, 20, 10));
        check_all(&store, &model);
        check_scan(&store, &model);
        // The old file stays for those who refused.
        assert_eq!(store.stats().segments, 2);
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
