//! Training by days: PaddleRec's online configuration of `slot_dnn`.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::job::{Job, regatta, values};

const DAYS: [&str; 2] = ["20240228", "20240229"];
const TIMES: [&str; 4] = ["0000", "0600", "1200", "1800"];

/// PaddleRec's file as it stands, in a folder of its own.
fn prepare(dir: &Path) {
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rec/paddlerec/config_online.yaml");
    let folder = dir.join("slot_dnn");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(from, folder.join("config_online.yaml")).unwrap();
}

/// The data of an interval, complete or without the file that says so.
fn fill(dir: &Path, day: &str, time: &str) {
    let folder = dir.join("slot_dnn/data").join(day).join(time);
    std::fs::create_dir_all(&folder).unwrap();
    for file in 0..2 {
        let mut text = String::new();
        for line in 0..40 {
            let seed = file * 40 + line + day.len() * 7 + time.parse::<usize>().unwrap();
            write!(text, "{}:1", seed % 2).unwrap();
            for slot in 2..302 {
                write!(text, " {}:{slot}", (seed * slot) % 5000 + 1).unwrap();
            }
            text.push('\n');
        }
        std::fs::write(folder.join(format!("part-{file}")), text).unwrap();
    }
}

fn complete(dir: &Path, day: &str, time: &str) {
    std::fs::write(dir.join("slot_dnn/data").join(day).join(time).join("data.done"), "").unwrap();
}

/// Two passes a day, with a small network.
fn command(dir: &Path, more: &[&str], flags: &[&str]) -> Command {
    let mut command = regatta();
    command.arg("train").arg("-m").arg(dir.join("slot_dnn/config_online.yaml"));
    command.args(["-o", "runner.start_day=20240228", "runner.end_day=20240229"]);
    command.args(["runner.split_interval=360", "runner.split_per_pass=2"]);
    command.args(["runner.train_batch_size=8", "hyper_parameters.layer_sizes=[16]"]);
    command.args(["hyper_parameters.optimizer.learning_rate=0.001"]);
    command.args(more).args(["--servers", "2", "--workers", "2"]).args(flags);
    command
}

fn names(dir: &Path, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("slot_dnn/output_model").join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

fn lines(dir: &Path, list: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("slot_dnn/output_model").join(list)).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn paddlerecs_online_configuration_trains_saves_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    DAYS.iter().for_each(|day| TIMES.iter().for_each(|time| fill(dir, day, time)));
    let out = Job::start(command(dir, &["runner.save_first_base=True"], &[])).ok();
    assert!(out.contains("epoch 3 is day 20240229, pass 2 of 2: 4 files"), "{out}");
    // 4 files of 40 lines, shared by the workers.
    assert!(out.contains("epoch: 3 done, ") && out.contains("examples: 160,"), "{out}");
    assert!(out.contains("day 20240229 is over: 0 rows removed from the tables"), "{out}");
    assert_eq!(names(dir, "20240228"), ["1", "base", "delta-1", "delta-2"]);
    assert_eq!(names(dir, "20240229"), ["0", "1", "base", "delta-1", "delta-2"]);
    assert_eq!(names(dir, "20240301"), ["0", "base"]);
    let done = lines(dir, "donefile.txt");
    let fields: Vec<Vec<&str>> = done.iter().map(|line| line.split('\t').collect()).collect();
    let saved: Vec<(&str, &str)> = fields.iter().map(|fields| (fields[0], fields[3])).collect();
    let expected = [("20240228", "1"), ("20240229", "-1"), ("20240229", "1"), ("20240301", "-1")];
    assert_eq!(saved, expected);
    assert_eq!(lines(dir, "base_donefile.txt").len(), 3);
    assert_eq!(lines(dir, "patch_donefile.txt").len(), 4);
    // Nothing was trained since the last delta: the base is the whole model.
    let model = |folder: &str| values(&dir.join("slot_dnn/output_model").join(folder));
    assert!(model("20240301/base") == model("20240301/0"));
    // Without checkpoints the last model in the list is continued from.
    fill(dir, "20240301", "0000");
    fill(dir, "20240301", "0600");
    let (ok, out) = Job::start(command(dir, &["runner.end_day=20240301"], &[])).end();
    let continues = "donefile.txt: continuing after day 20240229, pass 2 with ";
    assert!(!ok && out.contains(continues), "{out}");
    assert!(out.contains("epoch 0 is day 20240301, pass 1 of 2"), "{out}");
    assert!(out.contains("20240301/1200: no such directory"), "{out}");
    // A delta holds only what was trained.
    let (delta, whole) = (model("20240301/delta-1"), model("20240301/1"));
    let rows = |values: &std::collections::BTreeMap<String, Vec<u8>>| {
        values.keys().filter(|name| name.contains("/keys/")).count()
    };
    assert!(rows(&delta) < rows(&whole), "{} of {} rows", rows(&delta), rows(&whole));
    assert!(delta.iter().all(|(name, value)| whole.get(name) == Some(value)));
}

#[test]
fn a_job_by_days_waits_and_is_killed_and_ends_as_if_nothing_had_been() {
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let more = ["runner.sync_mode=sync", "runner.data_donefile=data.done"];
    for dir in [calm.path(), stormy.path()] {
        prepare(dir);
        DAYS.iter().for_each(|day| TIMES.iter().for_each(|time| fill(dir, day, time)));
    }
    let start = |dir: &Path| {
        let checkpoints = dir.join("checkpoints").display().to_string();
        Job::start(command(
            dir,
            &more,
            &["--checkpoint-dir", &checkpoints, "--checkpoint-steps", "3"],
        ))
    };
    let all_complete = |dir: &Path| {
        DAYS.iter().for_each(|day| TIMES.iter().for_each(|time| complete(dir, day, time)));
    };
    all_complete(calm.path());
    start(calm.path()).ok();
    let dir = stormy.path();
    complete(dir, "20240228", "0000");
    let mut job = start(dir);
    assert!(job.wait_for("waiting for ") && job.out.contains("0600/data.done"), "{}", job.out);
    complete(dir, "20240228", "0600");
    job.reach("epoch: 0, batch_id: 7");
    job.kill();
    // The rest of the day; the job is killed while it waits for the next one.
    ["1200", "1800"].iter().for_each(|time| complete(dir, "20240228", time));
    let mut job = start(dir);
    assert!(job.wait_for("20240229/0000/data.done"), "{}", job.out);
    assert!(job.out.contains("resuming from"), "{}", job.out);
    // A job that waits has a checkpoint of all that it has trained.
    assert!(job.wait_for(": epoch 2, batch 0, step 20, "), "{}", job.out);
    job.kill();
    all_complete(dir);
    let mut job = start(dir);
    job.reach("epoch: 2, batch_id: 8");
    let out = job.kill();
    assert!(!out.contains("epoch 1 is") && out.contains("epoch 2 is day 20240229"), "{out}");
    let out = start(dir).ok();
    assert!(!out.contains("epoch 0 is"), "{out}");
    for folder in ["20240228/delta-2", "20240229/base", "20240229/1", "20240301/0"] {
        let of = |dir: &Path| values(&dir.join("slot_dnn/output_model").join(folder));
        assert!(of(calm.path()) == of(dir), "{folder} differs");
    }
    assert_eq!(lines(calm.path(), "donefile.txt").len(), lines(dir, "donefile.txt").len());
}

#[test]
fn what_days_cannot_do_is_said() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    fill(dir.path(), "20240228", "0000");
    let fails = |more: &[&str], words: &str| {
        let (ok, out) = Job::start(command(dir.path(), more, &[])).end();
        assert!(!ok && out.contains(words), "'{words}' is not in: {out}");
    };
    fails(&["runner.end_day="], "runner.end_day: must be set for training by days");
    fails(&["runner.start_day=20240230"], "'20240230' is no day");
    fails(&["runner.split_interval=7"], "would never be trained");
    fails(&["runner.validation.data_dir=data"], "epochs are judged");
    let wait = ["runner.data_donefile=data.done", "runner.data_wait_limit=1"];
    fails(&wait, "data.done has not come within 1 s (runner.data_wait_limit)");
    // One process knows nothing of changes.
    let mut alone = regatta();
    alone.arg("train").arg("-m").arg(dir.path().join("slot_dnn/config_online.yaml"));
    let (ok, out) = Job::start(alone).end();
    assert!(!ok && out.contains("runner.save_delta_frequency: only parameter servers"), "{out}");
}
