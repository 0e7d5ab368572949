//! Order, completeness and repeatability of the kinds of datasets.

mod support;

use std::path::PathBuf;

use proptest::prelude::*;
use regatta_data::*;
use support::*;

fn source(files: Vec<PathBuf>) -> Source {
    Source::files(schema(), Format::MultiSlot, files).unwrap()
}

fn loader(source: Source, options: LoaderOptions) -> DataLoader {
    DataLoader::new(source, options).unwrap()
}

fn queue(source: Source, thread_num: usize, batch_size: usize) -> QueueDataset {
    QueueDataset::new(source, QueueOptions { thread_num, ..QueueOptions::new(batch_size) }).unwrap()
}

fn in_memory(source: Source, thread_num: usize, batch_size: usize) -> InMemoryDataset {
    let options = MemoryOptions { thread_num, ..MemoryOptions::new(batch_size) };
    let mut dataset = InMemoryDataset::new(source, options).unwrap();
    dataset.load_into_memory().unwrap();
    dataset
}

fn range(n: i64) -> Vec<i64> {
    (0..n).collect()
}

#[test]
fn one_thread_keeps_the_order_and_batches_span_files() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[3, 0, 5, 2]));
    let expected = vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]];
    assert_eq!(read(&loader(source.clone(), LoaderOptions::new(4))).unwrap(), expected);
    assert_eq!(read(&queue(source.clone(), 1, 4)).unwrap(), expected);
    assert_eq!(read(&in_memory(source.clone(), 1, 4)).unwrap(), expected);
    let whole = loader(source.clone(), LoaderOptions::rec_dataset(4));
    assert_eq!(read(&whole).unwrap(), expected[..2]);
    let piped = source.with_pipe_command("cat").unwrap();
    assert_eq!(read(&queue(piped, 1, 4)).unwrap(), expected);
}

#[test]
fn every_record_comes_once_with_three_threads() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[101, 1, 57, 0, 300, 7, 64]));
    for drop_last in [false, true] {
        let options = QueueOptions { thread_num: 3, drop_last, ..QueueOptions::new(16) };
        let batches = read(&QueueDataset::new(source.clone(), options).unwrap()).unwrap();
        let whole = batches.iter().filter(|b| b.len() == 16).count();
        assert_eq!((batches.len(), whole), (if drop_last { 33 } else { 34 }, 33));
        if !drop_last {
            assert_eq!(sorted(&batches), range(530));
        }
    }
}

#[test]
fn memory_does_not_depend_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[30, 20, 50, 1]));
    let (mut one, mut four) = (in_memory(source.clone(), 1, 8), in_memory(source, 4, 8));
    assert_eq!((one.memory_data_size(), four.memory_data_size()), (101, 101));
    assert_eq!(read(&one).unwrap(), read(&four).unwrap());
    one.local_shuffle(5).unwrap();
    four.local_shuffle(4).unwrap();
    assert_ne!(read(&one).unwrap(), read(&four).unwrap());
    four.local_shuffle(5).unwrap();
    let shuffled = read(&one).unwrap();
    assert_eq!(shuffled, read(&four).unwrap());
    assert_ne!(shuffled.concat(), range(101));
    assert_eq!(sorted(&shuffled), range(101));
}

#[test]
fn memory_keeps_the_file_order_when_the_first_file_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let slow_first = r#"read -r l; case "$l" in "1 0 "*) sleep 0.3;; esac; echo "$l"; cat"#;
    let source = source(files(dir.path(), &[3, 4, 5, 6])).with_pipe_command(slow_first).unwrap();
    assert_eq!(read(&in_memory(source, 4, 8)).unwrap().concat(), range(18));
}

#[test]
fn memory_can_be_preloaded_and_released() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[10, 10]));
    let mut dataset = InMemoryDataset::new(source, MemoryOptions::new(8)).unwrap();
    assert!(dataset.wait_preload_done().is_err());
    dataset.preload_into_memory();
    dataset.wait_preload_done().unwrap();
    assert_eq!(dataset.memory_data_size(), 20);
    assert!(dataset.memory_bytes() > 20 * 16);
    let running = dataset.pass(0).unwrap();
    dataset.release_memory();
    assert_eq!((dataset.memory_data_size(), dataset.memory_bytes()), (0, 0));
    assert!(dataset.pass(0).is_err());
    assert_eq!(drain(running).unwrap().concat(), range(20), "a running pass keeps its records");
    dataset.load_into_memory().unwrap();
    assert_eq!(read(&dataset).unwrap().concat(), range(20));
}

#[test]
fn a_shuffle_buffer_follows_seed_and_pass() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[300, 200]));
    let options = LoaderOptions { shuffle_buffer: 64, seed: 3, ..LoaderOptions::new(10) };
    let dataset = loader(source.clone(), options.clone());
    let pass = |dataset: &DataLoader, n| drain(dataset.pass(n).unwrap()).unwrap();
    assert_eq!(pass(&dataset, 0), pass(&dataset, 0));
    assert_ne!(pass(&dataset, 0), pass(&dataset, 1));
    let other = loader(source, LoaderOptions { seed: 4, ..options });
    assert_ne!(pass(&dataset, 0), pass(&other, 0));
    // A record cannot come before it has been read into the buffer.
    for (i, label) in pass(&dataset, 0).concat().into_iter().enumerate() {
        assert!((label as usize) < i + 64 + 10, "record {label} at {i}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn shuffles_are_permutations(
        sizes in prop::collection::vec(0usize..60, 1..5),
        buffer in 0usize..100,
        batch in 1usize..20,
        seed in any::<u64>(),
    ) {
        let n: usize = sizes.iter().sum();
        prop_assume!(n > 0);
        let dir = tempfile::tempdir().unwrap();
        let source = source(files(dir.path(), &sizes));
        let options = LoaderOptions { shuffle_buffer: buffer, seed, ..LoaderOptions::new(batch) };
        let batches = read(&loader(source.clone(), options)).unwrap();
        prop_assert_eq!(sorted(&batches), range(n as i64));
        prop_assert!(batches[..batches.len() - 1].iter().all(|b| b.len() == batch));
        let mut memory = in_memory(source, 2, batch);
        memory.local_shuffle(seed).unwrap();
        prop_assert_eq!(sorted(&read(&memory).unwrap()), range(n as i64));
    }

    #[test]
    fn a_resumed_pass_goes_on_exactly(
        sizes in prop::collection::vec(0usize..60, 1..5),
        batch in 1usize..20,
        stop in 0usize..30,
        buffer in prop_oneof![Just(0usize), 1usize..80],
    ) {
        let n: usize = sizes.iter().sum();
        prop_assume!(n > 0);
        let dir = tempfile::tempdir().unwrap();
        let source = source(files(dir.path(), &sizes));
        let defaults = LoaderOptions::new(batch);
 let options = LoaderOptions { shuffle_buffer: buffer, seed: 1, ..defaults };
        let datasets: Vec<Box<dyn Dataset>> = vec![
            Box::new(loader(source.clone(), options)),
            Box::new(in_memory(source.clone(), 1, batch)),
            Box::new(queue(source, 1, batch)),
        ];
        for dataset in datasets {
            let whole = drain(dataset.pass(2).unwrap()).unwrap();
            let mut batches = dataset.pass(2).unwrap();
            let mut parts = Vec::new();
            for _ in 0..stop.min(whole.len()) {
                parts.push(labels(&batches.next().unwrap().unwrap()));
            }
            let position = batches.position().clone();
            drop(batches);
            prop_assert_eq!(position.examples as usize, parts.concat().len());
            parts.extend(drain(dataset.resume(2, &position).unwrap()).unwrap());
            prop_assert_eq!(parts, whole);
        }
    }

    #[test]
    fn with_threads_a_resumed_pass_gives_each_record_once(
        sizes in prop::collection::vec(0usize..60, 1..7),
        batch in 1usize..20,
        stop in 0usize..30,
    ) {
        let n: usize = sizes.iter().sum();
        prop_assume!(n > 0);
        let dir = tempfile::tempdir().unwrap();
        let dataset = queue(source(files(dir.path(), &sizes)), 3, batch);
        let mut batches = dataset.pass(0).unwrap();
        let mut parts = Vec::new();
        while parts.len() < stop && let Some(batch) = batches.next().unwrap() {
            parts.push(labels(&batch));
        }
        let position = batches.position().clone();
        drop(batches);
        parts.extend(drain(dataset.resume(0, &position).unwrap()).unwrap());
        prop_assert_eq!(sorted(&parts), range(n as i64));
    }
}

#[test]
fn batches_say_how_far_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = queue(source(files(dir.path(), &[3, 4])), 1, 5);
    let mut batches = dataset.pass(0).unwrap();
    let batch = batches.next().unwrap().unwrap();
    let read = |file, records, done| FileRead { file, records, line: records, done };
    assert_eq!(batch.reads(), [read(0, 3, true), read(1, 2, false)]);
    assert_eq!(batches.position().files[&1].records, 2);
    let batch = batches.next().unwrap().unwrap();
    assert_eq!(batch.reads(), [read(1, 4, true)]);
}

#[test]
fn a_line_with_several_records_resumes_in_its_middle() {
    let dir = tempfile::tempdir().unwrap();
    let words = (0..5).map(|i| (format!("w{i}"), 10 + i)).collect();
    let dictionary = std::sync::Arc::new(Dictionary::new(words).unwrap());
    let samples = SkipGram::new(dictionary, 3, 2, Tokens::Ids, 9).unwrap();
    let file = write(dir.path(), "corpus", "0 1 2 3 4 0 1\n2 3\n4 3 2 1 0\n".repeat(40));
    let source = Source::files(samples.schema(), Format::SkipGram(samples), vec![file]).unwrap();
    let dataset = loader(source, LoaderOptions::new(7));
    let all = |mut batches: Batches| {
        let mut all = Vec::new();
        while let Some(batch) = batches.next().unwrap() {
            all.push(batch);
        }
        all
    };
    let whole = all(dataset.pass(1).unwrap());
    for stop in [1, 2, 3, 50, whole.len()] {
        let mut batches = dataset.pass(1).unwrap();
        let mut parts: Vec<Batch> = (0..stop).map(|_| batches.next().unwrap().unwrap()).collect();
        parts.extend(all(dataset.resume(1, batches.position()).unwrap()));
        let values = |b: &[Batch]| b.iter().map(|b| b.values().to_vec()).collect::<Vec<_>>();
        assert_eq!(values(&parts), values(&whole), "stopped after {stop}");
    }
    let values = |b: &[Batch]| b.iter().map(|b| b.values().to_vec()).collect::<Vec<_>>();
    assert_ne!(
        values(&all(dataset.pass(0).unwrap())),
        values(&whole),
        "each data pass draws again"
    );
}

#[test]
fn workers_share_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[3, 4, 5, 6, 7]));
    let of = |worker| read(&queue(source.clone().split(worker, 3).unwrap(), 2, 4)).unwrap();
    assert_eq!(sorted(&of(0)), range(7));
    assert_eq!(sorted(&[of(0), of(1), of(2)].concat()), range(25));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Workers that share the records of files read all of them, each one once and in order.
    #[test]
    fn workers_share_the_records(
        sizes in prop::collection::vec(0usize..40, 1..4),
        workers in 1usize..6,
        batch_size in 1usize..9,
    ) {
        // A worker without any record would be an error.
        prop_assume!(sizes.iter().any(|n| *n >= workers));
        let dir = tempfile::tempdir().unwrap();
        let whole = source(files(dir.path(), &sizes));
        let mut all = Vec::new();
        for worker in 0..workers {
            let own = whole.clone().every_nth(worker, workers).unwrap();
            let read_one = read(&loader(own.clone(), LoaderOptions::new(batch_size))).unwrap();
            prop_assert!(read_one.concat().is_sorted());
            prop_assert_eq!(&read_one, &read(&in_memory(own.clone(), 2, batch_size)).unwrap());
            prop_assert_eq!(read_one.concat(), sorted(&read(&queue(own, 2, batch_size)).unwrap()));
            let mut start = 0;
            for n in &sizes {
                let of_file = start..start + *n as i64;
                let mine = read_one.iter().flatten().filter(|i| of_file.contains(i)).count();
                let share = n / workers..=n.div_ceil(workers);
                prop_assert!(share.contains(&mine), "{} of {} records", mine, n);
                start = of_file.end;
            }
            all.push(read_one.concat());
        }
        prop_assert_eq!(sorted(&all), range(sizes.iter().sum::<usize>() as i64));
    }
}

#[test]
fn a_worker_that_is_not_there_has_no_records() {
    let dir = tempfile::tempdir().unwrap();
    let error = source(files(dir.path(), &[3])).every_nth(2, 2).unwrap_err().to_string();
    assert!(error.contains("there is no worker 2 of 2"), "{error}");
}

#[test]
fn stages_are_measured_and_buffers_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(files(dir.path(), &[20_000]));
    let mut batches = loader(source, LoaderOptions::new(100)).pass(0).unwrap();
    let mut buffers = std::collections::HashSet::new();
    while let Some(batch) = batches.next().unwrap() {
        buffers.insert(batch.values()[0].as_dense().unwrap().i64().as_ptr());
        batches.recycle(batch);
    }
    let stages = batches.stages();
    assert!(!stages.read.is_zero() && !stages.parse.is_zero() && !stages.batch.is_zero());
    assert!(buffers.len() < 100, "{} buffers for 200 batches", buffers.len());
}
