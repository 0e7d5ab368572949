//! What users see when data are not as they should be.

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use regatta_data::*;
use support::*;

fn source(dir: &Path, text: &str) -> Source {
    let file = write(dir, "part-0", text);
    Source::files(schema(), Format::MultiSlot, vec![file]).unwrap()
}

fn queue(source: Source, threads: usize) -> QueueDataset {
    let options = QueueOptions { thread_num: threads, ..QueueOptions::new(4) };
    QueueDataset::new(source, options).unwrap()
}

/// The message without the directory of the test.
fn message(dir: &Path, error: Error) -> String {
    error.to_string().replace(&format!("{}/", dir.display()), "")
}

#[test]
fn missing_and_empty_data() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    let of = |path: &Path| Source::directory(schema(), Format::MultiSlot, path);
    assert_eq!(message(dir.path(), of(&missing).unwrap_err()), "none: no such data directory");
    let empty = of(dir.path()).unwrap_err().to_string();
    assert_eq!(empty, format!("{}: no data files", dir.path().display()));
    let none = source(dir.path(), "\n");
    let error = message(dir.path(), read(&queue(none.clone(), 1)).unwrap_err());
    assert_eq!(error, "part-0: no examples, or fewer than one batch of 4");
    let mut memory = InMemoryDataset::new(none, MemoryOptions::new(4)).unwrap();
    let error = message(dir.path(), memory.load_into_memory().unwrap_err());
    assert_eq!(error, "part-0: no examples");
    let gone = Source::files(schema(), Format::MultiSlot, vec![dir.path().join("gone")]).unwrap();
    let error = message(dir.path(), read(&queue(gone, 1)).unwrap_err());
    assert!(error.starts_with("gone: No such file"), "{error}");
}

#[test]
fn fewer_examples_than_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), &lines(0..3));
    let loader = DataLoader::new(source, LoaderOptions::rec_dataset(4)).unwrap();
    let error = message(dir.path(), read(&loader).unwrap_err());
    assert_eq!(error, "part-0: no examples, or fewer than one batch of 4");
}

#[test]
fn a_worker_without_files() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path(), &[1, 1]);
    let source = Source::files(schema(), Format::MultiSlot, files).unwrap();
    let error = message(dir.path(), source.split(2, 3).unwrap_err());
    assert_eq!(error, "worker 2 of 3 gets none of 2 files (part-0 and 1 more): no data files");
}

#[test]
fn malformed_lines_name_their_place() {
    let dir = tempfile::tempdir().unwrap();
    for (bad, expected) in [
        ("1 9 1 -4", "column 7: expected an id (u64) for slot 'a', found '-4'"),
        (
            "1 9 1 99999999999999999999",
            "column 7: expected an id (u64) for slot 'a', found '99999999999999999999'",
        ),
        (
            "1 9",
            "column 4: expected the number of values of slot 'a', at least 1, found the end of the \
             line",
        ),
        ("1 9 1 9 1 9", "column 9: expected the end of the line after 2 slots, found '1'"),
        ("1 9 0", "column 5: expected the number of values of slot 'a', at least 1, found '0'"),
        (
            "rubbish",
            "column 1: expected the number of values of slot 'y', at least 1, found 'rubbish'",
        ),
    ] {
        let text = format!("{}{bad}\n{}", lines(0..6), lines(6..9));
        let source = source(dir.path(), &text);
        let error = read(&queue(source.clone(), 1)).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)));
        assert_eq!(message(dir.path(), error), format!("part-0:7: {expected}"));
        let dataset = queue(source.with_max_bad_lines(1), 1);
        assert_eq!(read(&dataset).unwrap().concat(), (0..9).collect::<Vec<i64>>());
    }
}

#[test]
fn the_budget_counts_reports_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let bad = "oops\n".repeat(10);
    let source = source(dir.path(), &format!("{bad}{}", lines(0..4)));
    let dataset = queue(source.clone().with_max_bad_lines(10), 1);
    let mut batches = dataset.pass(0).unwrap();
    assert_eq!(labels(&batches.next().unwrap().unwrap()), [0, 1, 2, 3]);
    assert_eq!(batches.next().unwrap(), None);
    let report = batches.bad_lines();
    assert_eq!((report.count, report.first.len(), report.first[2].line), (10, 8, 3));
    let error = read(&queue(source.clone().with_max_bad_lines(9), 1)).unwrap_err();
    let text = message(dir.path(), error);
    assert!(text.starts_with("more than 9 malformed lines; the last one: part-0:10: "), "{text}");
    let mut memory =
        InMemoryDataset::new(source.with_max_bad_lines(10), MemoryOptions::new(4)).unwrap();
    memory.load_into_memory().unwrap();
    assert_eq!((memory.bad_lines().count, memory.memory_data_size()), (10, 4));
}

#[test]
fn ids_and_labels_out_of_range_are_bad_lines() {
    let dir = tempfile::tempdir().unwrap();
    let slots = vec![Slot::label("y").below(2), Slot::ids("a").below(100), Slot::ids("any")];
    let slots = [slots, vec![Slot::fixed_ids("b", 2).below(10)]].concat();
    let schema = Schema::new(slots).unwrap();
    let good = "1 1 2 0 99 1 18446744073709551615 2 0 9\n";
    let run = |bad: &str, budget: u64| {
        let file = write(dir.path(), "part-0", format!("{good}{good}{bad}\n{good}"));
        let source = Source::files(schema.clone(), Format::MultiSlot, vec![file]).unwrap();
        let mut batches = queue(source.with_max_bad_lines(budget), 1).pass(0).unwrap();
        let batch = batches.next().map_err(|e| message(dir.path(), e))?.unwrap();
        Ok::<_, String>((batch.examples(), batches.bad_lines()))
    };
    for (bad, error) in [
        ("1 1 2 0 100 1 5 2 0 9", "part-0:3: expected an id from 0 to 99 in slot 'a', found 100"),
        (
            "1 1 1 0 1 5 2 10 18446744073709551615",
            "part-0:3: expected an id from 0 to 9 in slot 'b', found 10",
        ),
        ("1 2 1 0 1 5 2 0 9", "part-0:3: expected a label from 0 to 1 in slot 'y', found 2"),
        ("1 -1 1 0 1 5 2 0 9", "part-0:3: expected a label from 0 to 1 in slot 'y', found -1"),
    ] {
        assert_eq!(run(bad, 0).unwrap_err(), error);
        let (examples, skipped) = run(bad, 1).unwrap();
        assert_eq!((examples, skipped.count), (3, 1));
        assert!(skipped.first[0].to_string().ends_with(error), "{}", skipped.first[0]);
    }
    assert_eq!(run(good.trim_end(), 0).unwrap().0, 4);
}

#[test]
fn an_error_ends_the_pass_once() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), &format!("{}x\n", lines(0..6)));
    let mut batches = queue(source, 1).pass(0).unwrap();
    assert_eq!(labels(&batches.next().unwrap().unwrap()), [0, 1, 2, 3]);
    assert!(matches!(batches.next(), Err(Error::Malformed(_))));
    assert!(matches!(batches.next(), Err(Error::Stopped)));
}

#[test]
fn pipe_commands_that_fail() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), &lines(0..100));
    let run = |command: &str| {
        let source = source.clone().with_pipe_command(command).unwrap();
        read(&queue(source, 1)).map_err(|e| message(dir.path(), e))
    };
    assert_eq!(run("head -5 | tail -3").unwrap(), [vec![2, 3, 4]]);
    assert_eq!(
        run("cat >/dev/null; echo 'cannot import reader' >&2; exit 7").unwrap_err(),
        "part-0: pipe command `cat >/dev/null; echo 'cannot import reader' >&2; exit 7` ended with \
         exit status 7; it wrote to stderr: cannot import reader"
    );
    let error = run("cat; kill -9 $$").unwrap_err();
    assert_eq!(error, "part-0: pipe command `cat; kill -9 $$` was ended by signal 9");
    let error = run("no-such-command-at-all").unwrap_err();
    assert!(error.contains("exit status 127") && error.contains("not found"), "{error}");
    let error = run("echo debug output; cat").unwrap_err();
    assert_eq!(
        error,
        "part-0:1: column 1: expected the number of values of slot 'y', at least 1, found 'debug' \
         (in the output of pipe command `echo debug output; cat`)"
    );
    let error = run("true").unwrap_err();
    assert!(error.starts_with("part-0 through pipe command `true`: no examples"), "{error}");
    let piped = source.clone().with_pipe_command("exit 3").unwrap();
    let mut memory = InMemoryDataset::new(piped, MemoryOptions::new(4)).unwrap();
    assert!(matches!(memory.load_into_memory(), Err(Error::Pipe { .. })));
}

/// Whether a process with this text in its command line is running.
fn running(marker: &str) -> bool {
    let of = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| of(entry.ok()?))
        .any(|line| memchr::memmem::find(&line, marker.as_bytes()).is_some())
}

#[test]
fn dropping_a_pass_ends_its_commands() {
    let dir = tempfile::tempdir().unwrap();
    let all = files(dir.path(), &[10; 3]);
    let source = Source::files(schema(), Format::MultiSlot, all).unwrap();
    let seconds = format!("601.{}", std::process::id());
    for command in [format!("cat; sleep {seconds}"), format!("sleep {seconds} | cat")] {
        let dataset = queue(source.clone().with_pipe_command(&command).unwrap(), 3);
        let begin = Instant::now();
        let batches = dataset.pass(0).unwrap();
        while !running(&format!("sleep\0{seconds}")) {
            assert!(begin.elapsed() < Duration::from_secs(20), "the command does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(batches);
        assert!(begin.elapsed() < Duration::from_secs(30));
        assert!(!running(&format!("sleep\0{seconds}")), "`{command}` left a process behind");
    }
    let piped = source.with_pipe_command(&format!("sleep {seconds}")).unwrap();
    let mut memory = InMemoryDataset::new(piped, MemoryOptions::new(4)).unwrap();
    memory.preload_into_memory();
    drop(memory);
    assert!(!running(&format!("sleep\0{seconds}")));
}

#[test]
fn waiting_can_be_limited() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), &lines(0..4)).with_pipe_command("sleep 0.3; cat").unwrap();
    let mut batches = queue(source, 1).pass(0).unwrap();
    let error = batches.next_within(Duration::from_millis(10)).unwrap_err();
    let text = message(dir.path(), error);
    assert_eq!(text, "part-0 through pipe command `sleep 0.3; cat`: no batch within 10ms");
    let batch = batches.next_within(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(labels(&batch), [0, 1, 2, 3]);
    assert_eq!(batches.next_within(Duration::from_secs(60)).unwrap(), None);
}

#[test]
fn a_silent_pipe_command_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    // It begins to write when the notice has come, whenever that is.
    let command = format!("until [ -e {} ]; do sleep 0.01; done; cat", go.display());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    let notice = move |line: &str| {
        hear.lock().unwrap().push(line.to_string());
        std::fs::write(&go, "").unwrap();
    };
    let source = source(dir.path(), &lines(0..4)).with_pipe_command(&command).unwrap();
    let source = source.with_notices(Duration::from_millis(1), notice);
    assert_eq!(read(&queue(source, 1)).unwrap(), [vec![0, 1, 2, 3]]);
    let line = heard.lock().unwrap()[0].replace(&*dir.path().to_string_lossy(), "D");
    let start =
        "waiting for pipe command `until [ -e D/go ]; do sleep 0.01; done; cat` on D/part-0";
    assert_eq!(line, format!("{start} to write something (0 s)"));
}

#[test]
fn a_silent_pipe_command_has_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let seconds = format!("602.{}", std::process::id());
    for command in [
        format!("sleep {seconds} | cat"),
        format!("head -1; sleep {seconds}"),
        format!("cat; exec >/dev/null; sleep {seconds}"),
    ] {
        let source = source(dir.path(), &lines(0..100)).with_pipe_command(&command).unwrap();
        let source = source.with_pipe_timeout(Duration::from_millis(300));
        let error = message(dir.path(), read(&queue(source, 1)).unwrap_err());
        // On a busy machine it may not even have written what it would.
        let start = format!("part-0: pipe command `{command}` ");
        assert!(error.starts_with(&start), "{error}");
        let problem = &error[start.len()..];
        assert!(["wrote nothing", "did not end"].iter().any(|p| problem.starts_with(p)), "{error}");
        assert!(problem.ends_with(" for 0.3 s, the limit (pipe_timeout)"), "{error}");
        assert!(!running(&format!("sleep\0{seconds}")), "`{command}` left a process behind");
    }
}

#[test]
fn dropping_a_pass_in_the_middle_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let all = files(dir.path(), &[1000; 4]);
    let source = Source::files(schema(), Format::MultiSlot, all).unwrap();
    for threads in [1, 4] {
        let options =
            QueueOptions { thread_num: threads, queue_batches: 1, ..QueueOptions::new(2) };
        let mut batches = QueueDataset::new(source.clone(), options).unwrap().pass(0).unwrap();
        batches.next().unwrap().unwrap();
    }
    let options = LoaderOptions { shuffle_buffer: 100, queue_batches: 1, ..LoaderOptions::new(2) };
    DataLoader::new(source, options).unwrap().pass(0).unwrap();
}

#[test]
fn a_panic_in_a_reader_is_an_error() {
    struct Panics;
    impl LineParser for Panics {
        fn parse_line(
            &mut self,
            n: u64,
            _: &[u8],
            out: &mut Records,
        ) -> Result<(), Box<LineError>> {
            assert!(n < 10, "line {n} is too much");
            out.push_label(0, n as i64);
            (0..1 + n % 3).for_each(|_| out.push_id(1, n));
            out.end_record()
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let all = files(dir.path(), &[20, 20]);
    let format = Format::Custom(Arc::new(|_, _| Box::new(Panics)));
    let source = Source::files(schema(), format, all).unwrap();
    for threads in [1, 2] {
        let error = read(&queue(source.clone(), threads)).unwrap_err();
        assert_eq!(error.to_string(), "a reader thread panicked: line 10 is too much");
    }
    let mut memory = InMemoryDataset::new(source, MemoryOptions::new(4)).unwrap();
    assert!(matches!(memory.load_into_memory(), Err(Error::Panic(_))));
}

#[test]
fn options_that_make_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), &lines(0..4));
    assert!(DataLoader::new(source.clone(), LoaderOptions::new(0)).is_err());
    let none = QueueOptions { thread_num: 0, ..QueueOptions::new(4) };
    assert!(QueueDataset::new(source.clone(), none).is_err());
    let memory = InMemoryDataset::new(source.clone(), MemoryOptions::new(4)).unwrap();
    let error = memory.pass(0).err().unwrap().to_string();
    assert_eq!(error, "load_into_memory has not been called");
    let raw = Source::files(schema(), Format::CriteoRaw(CriteoRaw::default()), vec!["x".into()]);
    assert!(raw.unwrap_err().to_string().contains("26 slots of one id"));
}
