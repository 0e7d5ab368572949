//! A good epoch stays what it is: values that are no numbers, and other networks, do not reach it.

use crate::support::{SMALL_HYPER, Scratch, small};

/// One batch: its loss is a number, and the update makes parameters that are none.
const ONE_BATCH: &str = "1 1 1 7 1 8 1 9 1 10 3 0.5 0.25 0.75\n";
const TOO_FAST: &str = "hyper_parameters.optimizer.learning_rate=1e39";
const MODES: [&[&str]; 5] = [
    &[],
    &["--ranks", "2"],
    &["--servers", "1", "--workers", "2", "-o", "runner.sync_mode=sync"],
    &["--servers", "1", "--workers", "1", "-o", "runner.sync_mode=async"],
    &["--servers", "1", "--workers", "1", "-o", "runner.sync_mode=geo", "runner.geo_step=1"],
];

#[test]
fn values_that_are_no_numbers_are_not_saved() {
    for mode in MODES {
        let s = Scratch::new();
        s.write("data/a.txt", ONE_BATCH);
        s.write("data/b.txt", ONE_BATCH);
        let runner = "  train_data_dir: data\n  train_batch_size: 1\n  data_format: multislot\n  \
                      reader_type: QueueDataset\n  split_file_list: True\n  epochs: 1\n  \
                      model_save_path: epochs\n";
        s.write("c.yaml", &format!("model: dnn\nrunner:\n{runner}\n{SMALL_HYPER}"));
        let batch = if mode.contains(&"2") { "1" } else { "2" };
        let size = format!("runner.train_batch_size={batch}");
        let base = ["train", "-m", "c.yaml", "-o", &size];
        s.run(&[&base[..], mode].concat()).ok();
        let files = s.list("epochs");
        let contents = |s: &Scratch| -> Vec<Vec<u8>> {
            let files = files.iter().map(|name| s.path("epochs").join(name));
            files.filter(|path| path.is_file()).map(|path| std::fs::read(path).unwrap()).collect()
        };
        let good = contents(&s);
        let words = ["epoch 0: '", "holds NaN or infinity, so the epoch is not saved", "step 1"];
        s.run(&[&base[..], &[TOO_FAST], mode].concat()).fails(1, &words);
        assert_eq!(s.list("epochs"), files, "{mode:?}");
        assert!(contents(&s) == good, "{mode:?}");
    }
}

#[test]
fn checkpoints_say_the_learning_rate_and_refuse_another_network() {
    for mode in [&[][..], &["--servers", "1", "--workers", "1"]] {
        let s = Scratch::new();
        s.write("c.yaml", &small("  model_save_path: epochs\n  sync_mode: sync\n"));
        let kept = ["-o", "runner.checkpoint.keep_when_done=True"];
        let base = ["train", "-m", "c.yaml", "--checkpoint-dir", "checkpoints"];
        s.run(&[&base[..], mode, &kept].concat()).ok();
        let said = s.run(&["checkpoint", "inspect", "checkpoints"]).ok();
        assert!(said.contains("learning rate 0.01 after 40 steps"), "{said}");
        let wider = "hyper_parameters.fc_sizes=[8]";
        let words = ["belongs to another program", "hyper_parameters.fc_sizes was [16] and is [8]"];
        s.run(&[&base[..], mode, &kept, &[wider]].concat()).fails(1, &words);
    }
}
