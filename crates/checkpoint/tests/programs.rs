//! Persistables and inference models on a real disk.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use regatta_checkpoint::{
    Difference, Error, InferenceModel, MANIFEST_FILE, Metadata, PARAMS_FILE, PERSISTABLES_FILE,
    PROGRAM_FILE, load_inference_model, load_persistables, program_hash, save_inference_model,
    save_persistables, save_tensors,
};
use regatta_ir::{Program, text};
use regatta_tensor::Tensor;

const PROGRAM: &str = "\
program infer
block 0
  data x: f32[-1, 3]
  param w: f32[3, 2]
  persist count: i64[1]
  var y: f32[-1, 2]
  Out: y = fc(X: x, W: w)
";

fn program() -> Program {
    text::parse(PROGRAM).unwrap()
}

fn values() -> HashMap<String, Tensor> {
    let w = Tensor::from_f32(&[3, 2], vec![0.5, -0.0, 1e-40, f32::MAX, 3.0, -1.0]).unwrap();
    let count = Tensor::from_i64(&[1], vec![41]).unwrap();
    HashMap::from([("w".to_string(), w), ("count".to_string(), count)])
}

fn save(dir: &Path) -> Result<(), Error> {
    let values = values();
    save_persistables(&program(), |name| values.get(name), dir)
}

fn save_model(dir: &Path) -> Result<(), Error> {
    let values = values();
    save_inference_model(dir, &program(), &["x"], &["y"], |name| values.get(name))
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn persistables_come_back_in_the_order_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("a/b");
    save(&dir).unwrap();
    let loaded = load_persistables(&program(), &dir).unwrap();
    let values = values();
    let expected = ["w", "count"].map(|n| (n.to_string(), values[n].clone()));
    assert_eq!(loaded, expected);
    assert_eq!(entries(&dir), [PERSISTABLES_FILE]);
}

#[test]
fn all_differences_are_reported_at_once() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path()).unwrap();
    let other = PROGRAM
        .replace("param w: f32[3, 2]", "param w: f32[3, 4]\n  param b: f32[4]")
        .replace("  persist count: i64[1]\n", "");
    let error = load_persistables(&text::parse(&other).unwrap(), dir.path()).unwrap_err();
    let expected = format!(
        "{}: does not fit program 'infer'\n  'w' should be f32[3, 4], but is f32[3, 2]\n  'b' \
         (f32[4]) is missing\n  'count' is unexpected",
        dir.path().join(PERSISTABLES_FILE).display()
    );
    assert_eq!(error.to_string(), expected);
    let Error::Mismatch { differences, .. } = error else { panic!("{error:?}") };
    assert_eq!(differences[2], Difference::Unexpected { name: "count".into() });

    // Bits of another kind are not numbers of this kind.
    let other = PROGRAM.replace("count: i64[1]", "count: u64[1]");
    let error = load_persistables(&text::parse(&other).unwrap(), dir.path()).unwrap_err();
    assert!(error.to_string().contains("'count' should be u64[1], but is i64[1]"), "{error}");
}

#[test]
fn a_program_without_values_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("new");
    let wrong = Tensor::scalar(1.0);
    let lookup = |name: &str| (name == "w").then_some(&wrong);
    let error = save_persistables(&program(), lookup, &dir).unwrap_err().to_string();
    let expected = "cannot save program 'infer'\n  'w' should be f32[3, 2], but is f32[1]\n  \
                    'count' (i64[1]) is missing";
    assert_eq!(error, expected);
    assert!(!dir.exists());
}

#[test]
fn other_versions_and_plain_tensor_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(PERSISTABLES_FILE);
    let values = values();
    save_tensors(&path, &values, &Metadata::new()).unwrap();
    let error = load_persistables(&program(), dir.path()).unwrap_err().to_string();
    assert!(error.contains("not of a program: no 'regatta.format_version' entry"), "{error}");

    let metadata = Metadata::from([("regatta.format_version".into(), "2".into())]);
    save_tensors(&path, &values, &metadata).unwrap();
    let error = load_persistables(&program(), dir.path()).unwrap_err();
    assert!(matches!(&error, Error::Version { found, supported: 1, .. } if found == "2"));
    let expected = format!("{}: format version 2 is not supported (only 1)", path.display());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn truncated_persistables() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path()).unwrap();
    let path = dir.path().join(PERSISTABLES_FILE);
    let whole = fs::read(&path).unwrap();
    for tenth in 0..10 {
        fs::write(&path, &whole[..whole.len() * tenth / 10]).unwrap();
        let error = load_persistables(&program(), dir.path()).unwrap_err().to_string();
        assert!(error.contains(PERSISTABLES_FILE) && error.contains("truncated"), "{error}");
    }
}

#[test]
fn a_model_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/model");
    save_model(&path).unwrap();
    let values = values();
    let expected = InferenceModel {
        program: program(),
        feeds: vec!["x".into()],
        fetches: vec!["y".into()],
        params: ["w", "count"].map(|n| (n.to_string(), values[n].clone())).into(),
    };
    assert_eq!(load_inference_model(&path).unwrap(), expected);
    assert_eq!(entries(&path), [MANIFEST_FILE, PROGRAM_FILE, PARAMS_FILE]);
    assert_eq!(entries(path.parent().unwrap()), ["model"]);
    let text = fs::read_to_string(path.join(PROGRAM_FILE)).unwrap();
    let hash = program_hash(&program());
    assert_eq!(text, format!("regatta-model 1\nfeeds x\nfetches y\nhash {hash}\n{PROGRAM}"));
}

#[test]
fn a_model_is_replaced_but_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    save_model(&path).unwrap();
    save_model(&path).unwrap();
    assert_eq!(entries(dir.path()), ["model"]);
    fs::write(path.join("notes.txt"), "mine").unwrap();
    let error = save_model(&path).unwrap_err().to_string();
    assert!(
        error.contains("the directory holds 'notes.txt', which is not part of a model"),
        "{error}"
    );
    assert_eq!(entries(&path), [MANIFEST_FILE, PROGRAM_FILE, "notes.txt", PARAMS_FILE]);

    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let error = save_model(&file).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot replace {}: ", file.display())), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_model_with_a_missing_value_leaves_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    save_model(&path).unwrap();
    save_inference_model(&path, &program(), &["x"], &["y"], |_| None).unwrap_err();
    load_inference_model(&path).unwrap();
    assert_eq!(entries(dir.path()), ["model"]);
}

#[test]
fn inputs_and_outputs_must_be_those_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    let values = values();
    for (feeds, fetches, reason) in [
        (&["x", "label"][..], &["y"][..], "'label' is not an input that the outputs depend on"),
        (&["w"], &["y"], "'w' is not an input that the outputs depend on"),
        (&[], &["y"], "the outputs depend on 'x', which is not among the feeds"),
        (&["x"], &["z"], "the program has no output 'z'"),
        (&["x"], &[], "there are no outputs"),
    ] {
        let saved = save_inference_model(&path, &program(), feeds, fetches, |n| values.get(n));
        let expected = format!("cannot save an inference model: {reason}");
        assert_eq!(saved.unwrap_err().to_string(), expected);
        assert!(!path.exists());
    }
}

#[test]
fn every_truncation_of_a_model_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    save_model(&path).unwrap();
    for name in [PROGRAM_FILE, PARAMS_FILE, MANIFEST_FILE] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        for len in 0..whole.len() {
            fs::write(&file, &whole[..len]).unwrap();
            let error = load_inference_model(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: ", file.display())), "{error}");
        }
        fs::remove_file(&file).unwrap();
        let error = load_inference_model(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot read {}: ", file.display())), "{error}");
        fs::write(&file, &whole).unwrap();
    }
    load_inference_model(&path).unwrap();
}

#[test]
fn foreign_changed_and_mixed_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    save_model(&path).unwrap();
    let file = path.join(PROGRAM_FILE);
    let text = fs::read_to_string(&file).unwrap();
    for (bytes, expected) in [
        (b"\x08\xff a protobuf".to_vec(), "not a model: it is not text"),
        (b"hello\n".to_vec(), "not a model: no 'regatta-model' in line 1"),
        (b"regatta-models 1\n".to_vec(), "not a model: no 'regatta-model' in line 1"),
        (text.replace("model 1", "model 7").into(), "format version 7 is not supported (only 1)"),
        (text.replace("feeds x", "inputs x").into(), "line 2: expected 'feeds ..'"),
        (text.replace("W: w)", "W: v)").into(), "truncated or was changed"),
        (text.replace("fetches y", "fetches q").into(), "the program has no output 'q'"),
    ] {
        fs::write(&file, bytes).unwrap();
        let error = load_inference_model(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(PROGRAM_FILE), "{error}");
    }

    // The program of another model, complete in itself.
    let other = dir.path().join("other");
    let program = text::parse(&PROGRAM.replace("fc(X: x, W: w)", "fc(X: x, W: w) {act: \"relu\"}"));
    let values = values();
    save_inference_model(&other, &program.unwrap(), &["x"], &["y"], |n| values.get(n)).unwrap();
    fs::copy(other.join(PROGRAM_FILE), &file).unwrap();
    let error = load_inference_model(&path).unwrap_err().to_string();
    assert!(error.contains("belongs to another program than the model.program"), "{error}");
}
