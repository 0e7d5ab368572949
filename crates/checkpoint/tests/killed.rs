//! Processes that are killed while they save the same epoch, model and file again and again: the
//! old or the new is there, whole, and what was left goes with the next save.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use regatta_checkpoint::{
    Error, ModelAbout, load_about, load_persistables, open_model, publish_epoch, save_about,
    save_inference_model, save_persistables, verify_path,
};
use regatta_ir::{Program, text};
use regatta_tensor::Tensor;

const ROUNDS: u64 = 60;

fn program() -> Program {
    text::parse("program train\nblock 0\n  param w: f32[40000]\n").unwrap()
}

/// Saves an epoch in which every number says when it was written.
fn save(n: u64) {
    let program = program();
    let w = Tensor::from_f32(&[40_000], vec![n as f32; 40_000]).unwrap();
    let value = |_: &str| Some(&w);
    publish_epoch(Path::new("models/7"), |dir| -> Result<(), Error> {
        save_persistables(&program, value, dir)?;
        let about = ModelAbout { name: "m".into(), step: Some(n), ..ModelAbout::default() };
        save_about(dir, &about)?;
        save_inference_model(dir.join("inference_model"), &program, &[], &["w"], value)
    })
    .unwrap();
}

/// Not a test of its own: saves for ever, counting on from what is there.
#[test]
#[ignore = "run by the test below"]
fn child() {
    let first = load_about("models/7").unwrap().map_or(0, |about| about.step.unwrap());
    println!();
    for n in first + 1.. {
        save(n);
        println!("saved {n}");
        std::io::stdout().flush().unwrap();
    }
}

/// Numbers that are the same in every run: SplitMix64.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn the_old_or_the_new_epoch_is_there_after_every_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut seed = 22;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut saved = lines.filter_map(|line| line.strip_prefix("saved ")?.parse::<u64>().ok());
        let wanted = 1 + random(&mut seed) as usize % 3;
        let last = saved.by_ref().take(wanted).last().unwrap();
        // Somewhere in one of the next saves.
        std::thread::sleep(Duration::from_micros(random(&mut seed) % 8_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let last = saved.last().unwrap_or(last);

        let folder = dir.path().join("models/7");
        let found = verify_path(&folder).unwrap();
        assert_eq!((found.what, found.problems), ("saved epoch", vec![]), "round {round}");
        let n = load_about(&folder).unwrap().unwrap().step.unwrap();
        assert!(n == last || n == last + 1, "round {round}: {n} after {last}");
        let values = load_persistables(&program(), &folder).unwrap();
        let model = open_model(folder.join("inference_model")).unwrap().params;
        for (_, tensor) in values.iter().chain(&model) {
            assert!(tensor.f32().iter().all(|x| *x == n as f32), "round {round}: parts are mixed");
        }
        // At most what this kill has left.
        let left = fs::read_dir(dir.path().join("models")).unwrap().count();
        assert!(left <= 2, "round {round}: {left} things beside each other");
    }
}
