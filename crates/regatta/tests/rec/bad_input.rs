//! Bad data: a message with its place, a code that is not 0, nothing half-written.

use crate::support::{SMALL_HYPER, Scratch};

const LINE: &str = "1 1 1 7 1 8 1 9 1 10 3 0.5 0.25 0.75\n";

/// A configuration on MultiSlot files in `data`, four slots of one id each.
fn on_files(s: &Scratch, runner: &str) {
    let base = "  train_data_dir: data\n  train_batch_size: 2\n  \
                data_format: multislot\n  reader_type: QueueDataset\n";
    s.write("c.yaml", &format!("model: dnn\nrunner:\n{base}{runner}\n{SMALL_HYPER}"));
}

fn train(s: &Scratch) -> crate::support::Ran {
    s.run(&["train", "-m", "c.yaml", "--report", "report.json"])
}

#[track_caller]
fn nothing_written(s: &Scratch) {
    assert_eq!(s.list("runs/latest/epochs"), [""; 0]);
    assert!(!s.path("report.json").exists());
}

#[test]
fn missing_and_empty_data() {
    let s = Scratch::new();
    on_files(&s, "");
    let dir = s.path("data").canonicalize();
    assert!(dir.is_err());
    train(&s).fails(1, &["/data: no such data directory"]);
    std::fs::create_dir(s.path("data")).unwrap();
    train(&s).fails(1, &["/data: no data files"]);
    s.write("data/a.txt", "");
    train(&s).fails(1, &["a.txt", "no examples"]);
    s.write("data/a.txt", LINE);
    on_files(&s, "  drop_last: True");
    train(&s).fails(1, &["fewer than one batch of 2"]);
    nothing_written(&s);
}

#[test]
fn malformed_lines() {
    for (bad, words) in [
        ("1 1 1 x 1 8 1 9 1 10 3 0.5 0.25 0.75", ["expected", "'x'"]),
        ("1 1 1 -7 1 8 1 9 1 10 3 0.5 0.25 0.75", ["expected", "'-7'"]),
        ("1 1 1 99999999999999999999 1 8 1 9 1 10 3 0.5 0.25 0.75", ["expected", "9999"]),
        ("1 1 1 7 1 8 1 9", ["expected", "the end of the line"]),
        ("1 1 1 7 1 8 1 9 1 10 1 11 3 0.5 0.25 0.75", ["expected", "slot 'dense_input'"]),
        ("1 1 1 7 1 8 1 9 1 10 3 0.5 y 0.75", ["expected", "'y'"]),
    ] {
        let s = Scratch::new();
        on_files(&s, "");
        s.write("data/a.txt", &format!("{LINE}{LINE}{bad}\n{LINE}"));
        train(&s).fails(1, &[&["/data/a.txt:3: column "], &words[..]].concat());
        nothing_written(&s);
    }
}

#[test]
fn a_budget_of_malformed_lines() {
    let s = Scratch::new();
    s.write("data/a.txt", &format!("{LINE}oh\n{LINE}no\n{LINE}{LINE}"));
    on_files(&s, "  max_bad_lines: 2");
    let out = train(&s).ok();
    assert!(out.contains("skipped 2 malformed lines") && out.contains("a.txt:4: "), "{out}");
    assert!(out.contains("examples: 4,"), "{out}");
    on_files(&s, "  max_bad_lines: 1");
    train(&s).fails(1, &["more than 1 malformed lines", "a.txt:4: "]);
}

#[test]
fn ids_and_labels_out_of_range() {
    let s = Scratch::new();
    let bad = [LINE.replace(" 10 ", " 999999 "), LINE.replacen("1 1 ", "1 2 ", 1)];
    s.write("data/a.txt", &format!("{LINE}{}{LINE}{}{LINE}", bad[0], bad[1]));
    on_files(&s, "");
    let id = "a.txt:2: expected an id from 0 to 200 in slot '4', found 999999";
    let label = "a.txt:4: expected a label from 0 to 1 in slot 'label', found 2";
    train(&s).fails(1, &[id]);
    on_files(&s, "  max_bad_lines: 1");
    train(&s).fails(1, &["more than 1 malformed lines", label]);
    nothing_written(&s);
    s.run(&["train", "-m", "c.yaml", "--ranks", "1"]).fails(1, &[label]);
    on_files(&s, "  max_bad_lines: 2");
    let out = train(&s).ok();
    assert!(out.contains("skipped 2 malformed lines"), "{out}");
    assert!(out.contains(id) && out.contains(label) && out.contains("examples: 3,"), "{out}");
    // Tables of servers have a row for any id, and hashed ids are all in range.
    on_files(&s, "  max_bad_lines: 1");
    let out = s.run(&["train", "-m", "c.yaml", "--servers", "1", "--workers", "1"]).ok();
    assert!(out.contains("examples: 4,"), "{out}");
    let hashed = ["train", "-m", "c.yaml", "-o", "hyper_parameters.hash_ids=True"];
    assert!(s.run(&hashed).ok().contains("examples: 4,"));
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let s = Scratch::new();
    s.write("data/a.txt", &format!("\u{feff}{}", LINE.repeat(4)));
    on_files(&s, "");
    assert!(train(&s).ok().contains("examples: 4,"));
}

#[test]
fn what_is_no_file_is_named() {
    let s = Scratch::new();
    s.write("data/a.txt", &LINE.repeat(4));
    on_files(&s, "");
    let odd = s.path("data/odd");
    std::os::unix::fs::symlink("/nowhere/at/all", &odd).unwrap();
    train(&s).fails(1, &["data/odd is a link to /nowhere/at/all: No such file"]);
    std::fs::remove_file(&odd).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&odd).status().unwrap().success());
    train(&s).fails(1, &["data/odd is a FIFO"]);
    nothing_written(&s);
}

#[test]
fn a_loss_that_is_no_number_ends_the_training() {
    let s = Scratch::new();
    s.write("data/a.txt", &LINE.repeat(16));
    on_files(&s, "");
    let train = |more: &[&str]| {
        let rate = "hyper_parameters.optimizer.learning_rate=1e30";
        s.run(&[&["train", "-m", "c.yaml", "-o", rate], more].concat())
    };
    let place = "in a batch of 2 examples, read up to ";
    train(&[])
        .fails(1, &["step 1, epoch 0, batch 1: the loss '", "check_nan_inf=True names the op"]);
    train(&[]).fails(1, &[place, "data/a.txt:4\n"]);
    let words = ["epoch 0, batch ", ": the loss '", "allow_non_finite_loss=True continues"];
    train(&["--ranks", "1"]).fails(1, &words);
    train(&["--servers", "1", "--workers", "1"]).fails(1, &words);
    nothing_written(&s);
    let named = ["step 1: op ", " wrote ", place, "data/a.txt:4\n"];
    train(&["runner.check_nan_inf=True"]).fails(1, &named);
    train(&["runner.check_nan_inf=True", "--ranks", "1"]).fails(1, &named[1..]);
    assert!(train(&["runner.allow_non_finite_loss=True"]).ok().contains("epoch: 0 done"));
    // Steps that overflow are left out until the scale of the loss fits.
    assert!(train(&["runner.amp=fp16"]).ok().contains("epoch: 0 done"));
}

#[test]
fn pipe_commands_that_fail() {
    let s = Scratch::new();
    s.write("data/a.txt", &LINE.repeat(4));
    on_files(&s, "  pipe_command: \"head -1; echo broken >&2; exit 3\"");
    train(&s).fails(1, &["a.txt", "ended with exit status 3", "broken"]);
    on_files(&s, "  pipe_command: \"no_such_command\"");
    train(&s).fails(1, &["a.txt", "exit status 127"]);
    on_files(&s, "  pipe_command: \"echo reading file; cat\"");
    train(&s).fails(1, &["a.txt:1: column 1", "'reading'", "pipe command `"]);
    on_files(&s, "  pipe_command: \"cat > /dev/null\"");
    train(&s).fails(1, &["no examples"]);
    nothing_written(&s);
}

/// Files in memory of a size that is soon used up. Needs the right to mount, so it is left out
/// where that is missing.
#[test]
fn disk_full() {
    let s = Scratch::new();
    let full = s.path("full");
    std::fs::create_dir(&full).unwrap();
    let mount = |args: &[&str]| {
        let run = std::process::Command::new(args[0]).args(&args[1..]).arg(&full).output();
        run.is_ok_and(|o| o.status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs"]) {
        eprintln!("left out: cannot mount");
        return;
    }
    s.write("data/a.txt", &LINE.repeat(4));
    on_files(&s, "  model_save_path: full/model");
    let ran = s.run(&["train", "-m", "c.yaml", "-o", "hyper_parameters.fc_sizes=[400, 400]"]);
    let left = s.list("full");
    assert!(mount(&["umount"]));
    ran.fails(1, &["full/model/0", "No space left"]);
    assert!(left.iter().all(|f| f == "model"), "{left:?}");
}

#[test]
fn epochs_that_were_not_saved() {
    let s = Scratch::new();
    s.write("data/a.txt", &LINE.repeat(4));
    on_files(&s, "  test_data_dir: data\n  infer_end_epoch: 3");
    train(&s).ok();
    let ran = s.run(&["infer", "-m", "c.yaml"]);
    assert!(ran.out.contains("epoch: 0 done"), "{}", ran.out);
    ran.fails(1, &["epochs/1/persistables.safetensors"]);
    let smaller = ["infer", "-m", "c.yaml", "-o", "hyper_parameters.fc_sizes=[8]"];
    s.run(&smaller).fails(1, &["epochs/0/persistables.safetensors", "should be"]);
    let warm = ["train", "-m", "c.yaml", "-o", "runner.model_init_path=nowhere"];
    s.run(&warm).fails(1, &["nowhere/persistables.safetensors"]);
}

#[test]
fn reports_and_logs_that_cannot_be_written() {
    let s = Scratch::new();
    s.write("data/a.txt", &LINE.repeat(4));
    s.write("file", "x");
    on_files(&s, "");
    s.run(&["train", "-m", "c.yaml", "--report", "no/dir/r.json"]).fails(1, &["no/dir/r.json"]);
    s.run(&["train", "-m", "c.yaml", "--logdir", "file"]).fails(1, &["cannot write file/"]);
}
