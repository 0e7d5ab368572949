//! Bits that flip on disk: in saved epochs, exports and checkpoints that real jobs have written.
//! Every one is found by `verify`, and by whoever loads the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use regatta_checkpoint::{Check, CheckpointDir, Encoding, Resume, verify_path};
use regatta_predict::Model;
use regatta_predict::files::{Format, convert};
use regatta_rec::ModelSource;

const FLIPS: usize = 500;
const DATA: &str = "synthetic://ctr?slots=26&vocab=20&dense=13&seed=1&examples=400";

fn regatta(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    // Folders of runs are made where it is.
    let here = tempfile::tempdir().unwrap();
    command.args(args).current_dir(&here).stdin(Stdio::null()).output().unwrap()
}

fn done(args: &[&str]) -> String {
    let output = regatta(args);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}\n{out}\n{err}");
    out.into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn train(epochs: &Path, flags: &[&str]) {
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let save = format!("runner.model_save_path={}", epochs.display());
    let data = format!("runner.train_data_dir={DATA}");
    let mut args = vec!["train", "-m", text(&config), "-o", &save, &data];
    args.extend(["runner.epochs=1", "runner.train_batch_size=100", "runner.use_inference=True"]);
    args.extend(["hyper_parameters.sparse_feature_number=521", "runner.sync_mode=sync"]);
    args.extend(flags);
    done(&args);
}

/// What is stored, by the way that it is used.
struct Stored {
    local: PathBuf,
    servers: PathBuf,
    export: PathBuf,
    checkpoints: PathBuf,
}

impl Stored {
    fn make(dir: &Path) -> Stored {
        let path = |name: &str| dir.join(name);
        let (local, servers) = (path("local"), path("servers"));
        let (export, checkpoints) = (path("export"), path("checkpoints"));
        train(&local, &[]);
        let every = ["--checkpoint-steps", "2", "--checkpoint-full-every", "2"];
        let job = ["--servers", "2", "--workers", "1", "--checkpoint-dir", text(&checkpoints)];
        train(&servers, &[&job[..], &every[..]].concat());
        done(&["export", text(&checkpoints), "--to", text(&export)]);
        Stored { local: local.join("0"), servers: servers.join("0"), export, checkpoints }
    }

    fn roots(&self) -> [&Path; 4] {
        [&self.local, &self.servers, &self.export, &self.checkpoints]
    }

    /// Uses what a damaged file belongs to; an error if that is noticed.
    fn load(&self, root: &Path, file: &Path, scratch: &Path) -> Result<(), String> {
        if root == self.checkpoints {
            let dir = CheckpointDir::open(root);
            let choice = dir.choose(&Resume::Auto, Check::Checksums).map_err(|e| e.to_string())?;
            let newest = choice.checkpoint.unwrap();
            let skipped = choice.passed_over.iter().any(|p| file.starts_with(&p.path));
            // An older one may be damaged while the newest stands alone.
            let used = newest.chain().iter().any(|(path, _)| file.starts_with(path));
            return if skipped || !used { Err("passed over".into()) } else { Ok(()) };
        }
        let exported = file.ancestors().find(|dir| dir.join("model.program").exists());
        if let Some(model) = exported {
            Model::open(model).map_err(|e| e.to_string())?;
            let to = scratch.join("converted");
            return convert(model, &to, Format::Safetensors)
                .map(|_| fs::remove_dir_all(&to).unwrap())
                .map_err(|e| e.to_string());
        }
        let to = scratch.join("exported");
        let trained = ModelSource::open(root).map_err(|e| e.to_string())?;
        let config = trained.config(&[]).map_err(|e| e.to_string())?.unwrap();
        let made = regatta_rec::export(&trained, &config, &to, Encoding::F32, &mut |_| {});
        made.map(|_| fs::remove_dir_all(&to).unwrap()).map_err(|e| e.to_string())
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Numbers that are the same in every run: SplitMix64.
fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % below as u64) as usize
}

#[test]
fn every_flipped_bit_is_found_and_its_file_named() {
    let dir = tempfile::tempdir().unwrap();
    let stored = Stored::make(dir.path());
    for root in stored.roots() {
        assert_eq!(verify_path(root).unwrap().problems, [], "{}", root.display());
        let file = files(root).remove(0);
        let found = stored.load(root, &file, dir.path());
        assert_eq!(found.err().filter(|_| root != stored.checkpoints), None, "{}", root.display());
    }
    let mut seed = 4;
    for flip in 0..FLIPS {
        let root = stored.roots()[flip % 4];
        let all = files(root);
        let file = &all[random(&mut seed, all.len())];
        let whole = fs::read(file).unwrap();
        if whole.is_empty() {
            continue;
        }
        let bit = random(&mut seed, whole.len() * 8);
        let what = format!("flip {flip}: bit {bit} of {}", file.display());
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        fs::write(file, changed).unwrap();
        let problems = verify_path(root).unwrap().problems;
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let is_named = problems.iter().any(|problem| problem.to_string().contains(&name));
        assert!(is_named, "{what}: {problems:?}");
        assert!(stored.load(root, file, dir.path()).is_err(), "{what} was loaded");
        fs::write(file, whole).unwrap();
    }
}

#[test]
fn the_command_names_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let stored = Stored::make(dir.path());
    let epochs = stored.servers.parent().unwrap();
    for (path, what) in [
        (stored.local.as_path(), "1 saved epoch is whole\n"),
        (epochs, "1 saved epoch is whole\n"),
        (&stored.export, "1 model is whole\n"),
    ] {
        assert_eq!(done(&["verify", text(path)]), what);
    }
    // How many there are depends on how fast they are written.
    let out = done(&["verify", text(&stored.checkpoints)]);
    assert!(out.contains(" checkpoint") && out.ends_with(" whole\n"), "{out}");
    assert_eq!(done(&["checkpoint", "verify", text(&stored.checkpoints)]), out);
    let flip = |path: PathBuf| {
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    flip(stored.servers.join("server-0-of-2.safetensors"));
    flip(stored.servers.join("server-1-of-2.safetensors"));
    flip(stored.servers.join("about.json"));
    flip(stored.servers.join("inference_model/params.safetensors"));
    let output = regatta(&["verify", text(epochs)]);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert_eq!(err, "4 problems in 1 saved epoch\n");
    for name in ["server-0-of-2", "server-1-of-2", "about.json", "inference_model/params"] {
        assert!(out.lines().any(|line| line.contains(name)), "{out}");
    }
    let output = regatta(&["verify", text(dir.path())]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("there is no checkpoint, no saved epoch and no model"), "{error}");
}

/// Every command that takes a saved epoch or an export refuses a damaged one.
#[test]
fn no_command_uses_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let stored = Stored::make(dir.path());
    let flip_last = |path: PathBuf| {
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    flip_last(stored.local.join("persistables.safetensors"));
    flip_last(stored.servers.join("server-1-of-2.safetensors"));
    flip_last(stored.export.join("SparseFeatWeights.keys"));
    flip_last(stored.export.join("SparseFeatWeights.values"));
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/rank/logistic_regression/config.yaml");
    let refused = |args: &[&str], named: &str| {
        let output = regatta(args);
        // A job may name the process that ended first, after what that has said.
        let error = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let error = error.concat();
        assert!(!output.status.success() && error.contains(named), "{args:?}: {error}");
        assert!(error.contains("damaged"), "{args:?}: {error}");
    };
    let train = format!("runner.train_data_dir={DATA}");
    let test = format!("runner.test_data_dir={DATA}");
    let size = "hyper_parameters.sparse_feature_number=521";
    let again = format!("runner.model_save_path={}", dir.path().join("again").display());
    for (epoch, named) in [
        (&stored.local, "persistables.safetensors"),
        (&stored.servers, "server-1-of-2.safetensors"),
    ] {
        let init = format!("runner.model_init_path={}", epoch.display());
        let begin = ["train", "-m", text(&config), "-o", &train, size, &again, &init];
        refused(&begin, named);
        let load = format!("runner.infer_load_path={}", epoch.parent().unwrap().display());
        let first = ["runner.infer_start_epoch=0", "runner.infer_end_epoch=1"];
        let infer = ["infer", "-m", text(&config), "-o", &test, size, &load];
        refused(&[&infer[..], &first[..]].concat(), named);
        refused(&["predict", "-m", text(epoch), "--data", DATA], named);
    }
    let init = format!("runner.model_init_path={}", stored.servers.display());
    let begin = ["train", "-m", text(&config), "-o", &train, size, &again, &init];
    refused(&[&begin[..], &["--servers", "1", "--workers", "1"]].concat(), "server-1-of-2");
    refused(&["predict", "-m", text(&stored.export), "--data", DATA], "block 0");
}

/// Epochs of earlier versions have no checksums: they are refused with what to do, and usable then.
#[test]
fn checksums_are_added_to_an_epoch_of_an_earlier_version() {
    let dir = tempfile::tempdir().unwrap();
    let epochs = dir.path().join("epochs");
    train(&epochs, &[]);
    let epoch = epochs.join("0");
    let (values, about) = (epoch.join("persistables.safetensors"), epoch.join("about.json"));
    // As they were written before.
    let mark = b"\"regatta.checksum\":\"";
    let mut bytes = fs::read(&values).unwrap();
    let at = bytes.windows(mark.len()).position(|window| window == mark).unwrap();
    bytes[at + 1] = b'X';
    fs::write(&values, bytes).unwrap();
    let text_of = fs::read_to_string(&about).unwrap();
    let end = text_of.rfind(",\n  \"checksum\"").unwrap();
    fs::write(&about, format!("{}\n}}\n", &text_of[..end])).unwrap();
    let export = dir.path().join("export");
    let args = ["export", text(&epoch), "--to", text(&export)];
    let output = regatta(&args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--add-checksums"), "{error}");
    let out = done(&["verify", text(&epoch), "--add-checksums"]);
    assert!(out.contains("about.json: checksum added"), "{out}");
    assert!(out.contains("persistables.safetensors: checksum added"), "{out}");
    assert!(out.ends_with("1 saved epoch is whole\n"), "{out}");
    done(&args);
}
