//! A directory that grows: `tail:`.

use std::path::Path;

use rustix::process::Signal;

use crate::job::{BATCH, EVENTS, Job, SYNC, command, events, newest, signal, values};

const FILES: usize = 20;

/// Moves a file into the directory, as whoever writes it does.
fn add(dir: &Path, number: usize) {
    let each = EVENTS / FILES;
    const { assert!((EVENTS / FILES).is_multiple_of(BATCH)) };
    let folder = dir.join("incoming");
    std::fs::create_dir_all(&folder).unwrap();
    let temp = dir.join("being-written");
    std::fs::write(&temp, events(number * each..(number + 1) * each)).unwrap();
    std::fs::rename(&temp, folder.join(format!("part-{number:03}"))).unwrap();
}

fn url(dir: &Path) -> String {
    format!("tail:{}", dir.join("incoming").display())
}

#[test]
fn the_files_of_a_directory_that_grows_are_trained_as_those_of_one_that_does_not() {
    let (still, growing) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    (0..FILES).for_each(|number| add(still.path(), number));
    let folder = still.path().join("incoming").display().to_string();
    let train = command(still.path(), &folder, &[], &["runner.epochs=1"]);
    Job::start(train).ok();
    // Half of the files are there, the other half comes while the job waits.
    (0..FILES / 2).for_each(|number| add(growing.path(), number));
    let stop = growing.path().join("stop");
    let settings = [
        "runner.online.files_per_pass=3".to_string(),
        format!("runner.online.stop_file={}", stop.display()),
        "runner.online.save_examples=500".to_string(),
        "runner.online.keep_models=2".to_string(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let mut job = Job::start(command(growing.path(), &url(growing.path()), &[], &settings));
    assert!(job.wait_for("epoch 3 is file part-009"), "{}", job.out);
    assert!(job.wait_for("waiting for a new file in "), "{}", job.out);
    (FILES / 2..FILES).for_each(|number| add(growing.path(), number));
    assert!(job.wait_for("waiting for a new file in "), "{}", job.out);
    std::fs::write(&stop, "").unwrap();
    let out = job.ok();
    assert!(out.contains(&format!("the data have ended: {} is there", stop.display())), "{out}");
    let names = std::fs::read_dir(growing.path().join("model")).unwrap().flatten();
    let is_epoch = |e: &std::fs::DirEntry| e.file_name().to_str().unwrap().parse::<u64>().is_ok();
    assert_eq!(names.filter(is_epoch).count(), 2, "older models are removed");
    let (still, growing) = (newest(still.path()), newest(growing.path()));
    assert!(values(&still) == values(&growing), "{}", growing.display());
}

#[test]
fn a_job_that_is_killed_trains_every_file_once() {
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let settings = [
        "runner.sync_mode=sync",
        "runner.online.files_per_pass=4",
        "runner.online.idle_seconds=12",
    ];
    let start = |dir: &Path| Job::start(command(dir, &url(dir), &SYNC, &settings));
    (0..FILES).for_each(|number| add(calm.path(), number));
    start(calm.path()).ok();
    (0..8).for_each(|number| add(stormy.path(), number));
    let mut resumed = 0;
    // Files come in whole data passes, so that every run has the same ones.
    let kills = [("epoch: 0, batch_id: 13", 8..12), ("epoch: 1, batch_id: 2", 12..FILES)];
    for (at, more) in kills {
        let mut job = start(stormy.path());
        job.reach(at);
        let out = job.kill();
        resumed += usize::from(out.contains("resuming from"));
        more.for_each(|number| add(stormy.path(), number));
    }
    let out = start(stormy.path()).ok();
    resumed += usize::from(out.contains("resuming from"));
    assert_eq!(resumed, 2, "{out}");
    assert!(values(&newest(calm.path())) == values(&newest(stormy.path())));
    // Started again when nothing has come: nothing is trained.
    let again = start(stormy.path()).ok();
    assert!(!again.contains("batch_id:") && again.contains("nothing has come"), "{again}");
}

#[test]
fn what_cannot_be_read_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |data: &str, settings: &[&str], words: &str| {
        let (ok, out) = Job::start(command(dir.path(), data, &[], settings)).end();
        assert!(!ok && out.contains(words), "'{words}' is not in: {out}");
    };
    let missing = format!("tail:{}", dir.path().join("no").display());
    fails(&missing, &[], "no: no such data directory");
    fails(&missing, &["runner.start_day=20240101"], "days are folders of a directory, not tail:");
    fails(&missing, &["runner.drop_last=True"], "runner.drop_last: True cannot be honoured");
    fails(&missing, &["runner.online.idle_seconds=-1"], "-1 is no number of seconds");
    add(dir.path(), 0);
    std::fs::write(dir.path().join("incoming/part-001"), "1 0 1 5 1 0.0\n1 zero\n").unwrap();
    let settings = ["runner.online.idle_seconds=0", "runner.online.files_per_pass=1"];
    fails(&url(dir.path()), &settings, "part-001:2: column 3");
}

#[test]
fn a_worker_that_is_lost_for_a_while_leaves_no_file_out() {
    const LINES: usize = 8000;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("incoming");
    std::fs::create_dir(&folder).unwrap();
    for file in 0..4 {
        std::fs::write(folder.join(format!("{file}")), events(0..LINES)).unwrap();
    }
    let table = format!("hyper_parameters.sparse_feature_number={}", LINES + 1);
    let stop = dir.path().join("stop");
    let ends = format!("runner.online.stop_file={}", stop.display());
    let settings = ["runner.sync_mode=async", "runner.online.files_per_pass=2", &table, &ends];
    let mut job = Job::start(command(dir.path(), &url(dir.path()), &SYNC, &settings));
    assert!(job.wait_for("epoch: 0, batch_id: 20"), "{}", job.out);
    let worker = job.worker(1);
    signal(worker, Signal::STOP);
    assert!(job.wait_for("takes over its data of epoch 0"), "{}", job.out);
    // It comes back in the midst of another pass, or while the job waits for one.
    assert!(job.wait_for("epoch: 1, batch_id: 50"), "{}", job.out);
    signal(worker, Signal::CONT);
    assert!(job.wait_for("epoch: 1 done"), "{}", job.out);
    let temp = dir.path().join("being-written");
    std::fs::write(&temp, events(0..LINES)).unwrap();
    std::fs::rename(&temp, folder.join("4")).unwrap();
    assert!(job.wait_for("epoch: 2 done"), "{}", job.out);
    std::fs::write(&stop, "").unwrap();
    let (_, out) = job.end();
    let done = out.lines().filter(|line| line.contains(" done, "));
    let examples = |line: &str| -> usize {
        let rest = line.split("examples: ").nth(1).unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    let trained: usize = done.map(examples).sum();
    assert_eq!(trained, 5 * LINES, "{out}");
}
