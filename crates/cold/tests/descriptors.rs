//! Files that a process may open. The limit belongs to the process, so this is one test.

use regatta_cold::{Options, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const WORDS: usize = 27;

fn limit(current: u64, maximum: u64) {
    let limit = Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn stores_use_all_files_that_there_may_be_and_name_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 1 << 20, ..Options::new(WORDS) };
    limit(32, 96);
    let store = Store::open(&folder.path().join("rows"), &options).unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(96));
    // About 8000 records are a segment: more files than the first limit, fewer than the second.
    let fill = |records: u64| -> Result<(), regatta_cold::Error> {
        for hash in 0..records {
            store.put(hash, 0, &[hash as u32; WORDS])?;
        }
        store.flush()
    };
    fill(40 * 9000).unwrap();
    let error = fill(90 * 9000).unwrap_err().to_string();
    for word in ["rows", "each segment", "may have 96", "ulimit -Hn"] {
        assert!(error.contains(word), "{word}: {error}");
    }
}
