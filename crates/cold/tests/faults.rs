//! Broken files and full disks: an error that names file and offset, a poisoned store, never a
//! wrong row. Everything by both read engines.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_cold::{EngineChoice, Error, Options, RecordNo, Store};

/// Words of a record: 16 records in a page, 64 in a segment.
const WORDS: usize = 60;

fn options(engine: EngineChoice) -> Options {
    Options { segment_bytes: 5 * 4096, engine, n_threads: 2, ..Options::new(WORDS) }
}

fn row(hash: u64) -> [u32; WORDS] {
    std::array::from_fn(|i| hash as u32 + i as u32)
}

/// A full segment in a file, and the numbers of its records in the order of their hashes.
fn filled(dir: &Path, engine: EngineChoice) -> Option<(Store, Vec<RecordNo>)> {
    let store = match Store::open(dir, &options(engine)) {
        Err(Error::Start { what: "io_uring", .. }) => return None,
        opened => opened.unwrap(),
    };
    // Put in descending order, so that sorting has something to do.
    let mut numbers: Vec<RecordNo> =
        (0..64).rev().map(|hash| store.put(hash, 0, &row(hash)).unwrap()).collect();
    numbers.reverse();
    store.flush().unwrap();
    Some((store, numbers))
}

fn segment_file(dir: &Path) -> PathBuf {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|e| e == "cold")).min().unwrap()
}

/// Runs a test for both engines, with the file of a full segment.
fn each_engine(test: impl Fn(&Store, &[RecordNo], &Path)) {
    for engine in [EngineChoice::Ring, EngineChoice::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("rows");
        let Some((store, numbers)) = filled(&dir, engine) else { continue };
        test(&store, &numbers, &segment_file(&dir));
    }
}

fn flip(file: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Whatever the store is asked for after a failure, it answers with the failure.
fn assert_poisoned(store: &Store, number: RecordNo, cause: &str) {
    let errors = [
        store.read(&[number]).err(),
        store.put(1, 0, &row(1)).err(),
        store.pin().err(),
        store.compact(|_, _, _| true).err(),
        store.flush().err(),
        store.load_sorted([(1, 0, row(1))], |_, _| ()).err(),
    ];
    for error in errors {
        let error = error.expect("a poisoned store does nothing");
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
        assert!(error.to_string().contains(cause), "{error}");
    }
}

/// Any byte of a record: hash, tag, checksum, words.
#[test]
fn a_flipped_byte_is_a_wrong_checksum() {
    for within in [0, 7, 8, 12, 16, 255] {
        each_engine(|store, numbers, file| {
            // Record 21 is the sixth of the second page of records.
            flip(file, 2 * 4096 + 5 * 256 + within);
            // Its neighbours are not harmed.
            assert_eq!(store.read(&[numbers[20]]).unwrap().get(0).unwrap().words, row(20));
            let error = store.read(&[numbers[20], numbers[21]]).unwrap_err().to_string();
            let name = file.display();
            assert_eq!(error, format!("{name}: wrong checksum at byte 9472"));
            assert_poisoned(store, numbers[20], &error);
        });
    }
}

/// A page with right checksums at a wrong place is no right page.
#[test]
fn an_exchanged_page_is_a_wrong_checksum() {
    each_engine(|store, numbers, file| {
        let open = OpenOptions::new().read(true).write(true).open(file).unwrap();
        let mut page = vec![0; 4096];
        open.read_exact_at(&mut page, 4096).unwrap();
        open.write_all_at(&page, 3 * 4096).unwrap();
        let error = store.read(&[numbers[33]]).unwrap_err().to_string();
        assert!(error.ends_with("wrong checksum at byte 12544"), "{error}");
    });
}

#[test]
fn a_truncated_file_is_a_short_read() {
    each_engine(|store, numbers, file| {
        OpenOptions::new().write(true).open(file).unwrap().set_len(3 * 4096 + 512).unwrap();
        assert_eq!(store.read(&[numbers[31]]).unwrap().get(0).unwrap().words, row(31));
        let error = store.read(&[numbers[32], numbers[0]]).unwrap_err().to_string();
        // Half of the pages are wanted, so they are read in one piece.
        let name = file.display();
        assert!(error.starts_with(&format!("{name}: only ")), "{error}");
        assert!(error.contains(" bytes at byte "), "{error}");
        assert_poisoned(store, numbers[0], &error);
    });
}

#[test]
fn another_version_is_refused_by_scans_and_compactions() {
    each_engine(|store, numbers, file| {
        flip(file, 8);
        let pins = store.pin().unwrap();
        let error = store.scan_sorted(&pins).unwrap_err().to_string();
        assert_eq!(error, format!("{}: the version at byte 8 is 17, not 1", file.display()));
        assert_poisoned(store, numbers[0], &error);
    });
    each_engine(|store, numbers, file| {
        flip(file, 20);
        store.release(&numbers[..40]).unwrap();
        let error = store.compact(|_, _, _| panic!("nothing is moved")).unwrap_err().to_string();
        assert!(error.contains("the number of records at byte 20 is 80, not 64"), "{error}");
        assert_poisoned(store, numbers[50], &error);
    });
}

/// A scan in the middle of a file finds the bad record, and returns those before it.
#[test]
fn a_scan_ends_at_the_bad_record() {
    each_engine(|store, numbers, file| {
        flip(file, 4096 + 3 * 256 + 40);
        let pins = store.pin().unwrap();
        let mut scan = store.scan_sorted(&pins).unwrap();
        for hash in 0..3 {
            let record = scan.next_record().unwrap().unwrap();
            assert_eq!((record.hash, record.words), (hash, &row(hash)[..]));
        }
        let error = scan.next_record().unwrap_err().to_string();
        assert!(error.ends_with("wrong checksum at byte 4864"), "{error}");
        assert!(scan.next_record().is_err());
        assert_poisoned(store, numbers[0], &error);
    });
}

/// The thread that writes cannot: whoever puts or flushes next is told why.
#[test]
fn a_failed_write_poisons() {
    each_engine(|store, numbers, file| {
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        (100..130).for_each(|hash| _ = store.put(hash, 0, &row(hash)).unwrap());
        let error = store.flush().unwrap_err().to_string();
        assert!(error.contains("00000001.cold: cannot create at byte 0: No such file"), "{error}");
        assert_poisoned(store, numbers[0], "cannot create");
    });
}

/// Unmounts at the end of a test, whatever happened in it.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// A file system of 128 KB, if this system lets us mount one.
#[test]
fn a_full_disk_poisons() {
    let folder = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=128k", "none"])
        .arg(folder.path())
        .output();
    if !mount.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!("not tested: no tmpfs can be mounted: {mount:?}");
        return;
    }
    let _mounted = Mounted(folder.path());
    let dir = folder.path().join("rows");
    for engine in [EngineChoice::Ring, EngineChoice::Threads] {
        let Some((store, numbers)) = filled(&dir, engine) else { continue };
        let error = (64..100_000).find_map(|hash| store.put(hash, 0, &row(hash)).err()).unwrap();
        let text = error.to_string();
        assert!(text.contains("No space left on device") && text.contains(".cold: cannot"));
        assert_poisoned(&store, numbers[0], "No space left on device");
        drop(store);
        assert!(!dir.exists(), "a full disk is emptied");
    }
}

#[test]
fn directories_are_private_and_nobody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("rows");
    let options = options(EngineChoice::Threads);
    let store = Store::open(&dir, &options).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    let error = Store::open(&dir, &options).err().unwrap();
    let (name, own) = (dir.display(), std::process::id());
    assert!(error.to_string().starts_with(&format!("{name}: in use by process {own};")), "{error}");
    drop(store);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis.txt"), "years of work").unwrap();
    let error = Store::open(&dir, &options).err().unwrap().to_string();
    assert!(error.contains("holds 'thesis.txt', which is not of a cold store"), "{error}");
    assert_eq!(fs::read_to_string(dir.join("thesis.txt")).unwrap(), "years of work");
}
