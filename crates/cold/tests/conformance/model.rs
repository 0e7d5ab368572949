//! The rows that should be in a store, and how they are compared with it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use regatta_cold::{EngineChoice, Error, Options, RecordNo, Store};

/// Words of a record: 16 records in a page, 64 in a segment.
pub(crate) const WORDS: usize = 60;

const ENGINES: [EngineChoice; 2] = [EngineChoice::Ring, EngineChoice::Threads];

pub(crate) fn options(engine: EngineChoice) -> Options {
    let segment_bytes = 5 * 4096;
    Options { segment_bytes, engine, n_threads: 3, ..Options::new(WORDS) }
}

/// Both engines, or threads where io_uring is forbidden.
pub(crate) fn each_engine(test: impl Fn(&Path, &Options)) {
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
pub(crate) fn words(hash: u64, version: u32) -> [u32; WORDS] {
    std::array::from_fn(|i| (hash as u32).wrapping_mul(31) ^ version ^ (i as u32) << 20)
}

/// Spreads small numbers over all hashes.
pub(crate) fn spread(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The rows that should be in the store: number and version by hash.
pub(crate) type Model = HashMap<u64, (RecordNo, u32)>;

pub(crate) fn check_all(store: &Store, model: &Model) {
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

pub(crate) fn check_scan(store: &Store, model: &Model) {
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

pub(crate) fn put(store: &Store, model: &mut Model, hash: u64, version: u32) {
    if let Some((number, _)) = model.remove(&hash) {
        store.release(&[number]).unwrap();
    }
    let number = store.put(hash, version, &words(hash, version)).unwrap();
    model.insert(hash, (number, version));
}
