//! Every model of the zoo as an ONNX file: it can be written, says how to feed it, and scores in
//! onnxruntime as it does here.
//!
//! Running onnxruntime needs a Python that has it: `bench/check_onnx` makes one and runs the test
//! that is left out otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_checkpoint::{
    EachRow, Encoding, ModelSpec, TableRows, open_model, save_model, save_persistables,
};
use regatta_ir::VarDef;
use regatta_predict::files::{Format, convert};
use regatta_predict::{Error, InputKind, Model};
use regatta_rec::network::Network;
use regatta_rec::{Config, ModelSource, zoo};
use regatta_table::row_order;
use regatta_tensor::{Data, Ragged, Rng, Tensor, Value};
use serde_json::json;

const ALL_TABLES: Format = Format::Onnx { table_limit: u64::MAX };

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn config(model: &str, overrides: &[String]) -> Config {
    let model = zoo::find(model).unwrap();
    let path = format!("models/{}/{}/config.yaml", model.group, model.name);
    Config::load(repository().join(path), overrides).unwrap()
}

/// A value for a parameter. Nothing is zero, and variances are not negative.
fn random(var: &VarDef, rng: &mut Draw) -> Tensor {
    let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d as usize).collect();
    let n = shape.iter().product::<usize>();
    let low = if var.name.contains("variance") { 0.5 } else { -0.5 };
    Tensor::from_f32(&shape, (0..n).map(|_| low + rng.unit()).collect()).unwrap()
}

/// Numbers one after the other.
struct Draw(Rng, u64);

impl Draw {
    fn unit(&mut self) -> f32 {
        self.1 += 1;
        self.0.unit_f32(self.1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        self.0.u64(self.1) % n
    }
}

/// An exported model of the configuration, with parameters that were drawn.
fn export(config: &Config, dir: &Path) -> PathBuf {
    let network = Network::build(config).unwrap();
    let program = &network.forward.main;
    let mut draw = Draw(Rng::new(7, 1), 0);
    let values: BTreeMap<String, Tensor> =
        program.persistables().map(|var| (var.name.clone(), random(var, &mut draw))).collect();
    let (epoch, to) = (dir.join("epoch"), dir.join("model"));
    save_persistables(program, |name| values.get(name), &epoch).unwrap();
    let trained = ModelSource::open(&epoch).unwrap();
    regatta_rec::export(&trained, config, &to, Encoding::F32, &mut |note| panic!("{note}"))
        .unwrap();
    to
}

/// Ids of two kinds: small numbers, and numbers that fill 64 bits.
fn spread(id: u64) -> u64 {
    if id.is_multiple_of(2) { id } else { row_order(id) | 1 << 63 }
}

/// The same model with tables by id, a third of the rows left out.
fn by_id(model: &Path, dir: &Path) -> PathBuf {
    let to = dir.join("by_id");
    let opened = open_model(model).unwrap();
    let whole = regatta_checkpoint::load_inference_model(model).unwrap();
    let whole: BTreeMap<String, Tensor> = whole.params.into_iter().collect();
    let names = |all: &[String]| all.to_vec();
    let (feeds, fetches) = (names(&opened.feeds), names(&opened.fetches));
    let feeds: Vec<&str> = feeds.iter().map(String::as_str).collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let about = opened.manifest.about.clone();
    let (program, encoding) = (&opened.program, Encoding::F32);
    let spec = ModelSpec { program, feeds: &feeds, fetches: &fetches, about, encoding };
    let rows = |name: &str| {
        let tensor = &whole[name];
        let dim = tensor.shape()[1];
        let rows = tensor.f32().chunks_exact(dim).enumerate().filter(|(id, _)| id % 3 != 1);
        let mut rows: Vec<(u64, &[f32])> = rows.map(|(id, row)| (spread(id as u64), row)).collect();
        rows.sort_by_key(|(id, _)| row_order(*id));
        let each: EachRow<'_> =
            Box::new(move |put| rows.iter().try_for_each(|(id, row)| put(*id, row)));
        Ok(TableRows::ById(each))
    };
    save_model(&to, &spec, |name| whole.get(name), rows).unwrap();
    to
}

/// Some ids have rows and some have none, in tables by number as in tables by id.
fn one_id(draw: &mut Draw) -> u64 {
    match draw.below(20) {
        0 => u64::MAX - 1,
        1 => 0,
        n => {
            let id = draw.below(600);
            if n % 2 == 0 { id } else { spread(id) }
        }
    }
}

/// One input: the value that is fed here, and the numbers, shape and type that are fed there.
fn input(kind: InputKind, examples: usize, draw: &mut Draw) -> (Value, serde_json::Value) {
    match kind {
        InputKind::Ids(n) => {
            let ids: Vec<u64> = (0..examples * n).map(|_| one_id(draw)).collect();
            let bits: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
            let there = json!({ "type": "int64", "shape": [examples, n], "values": bits });
            (Tensor::from_u64(&[examples, n], ids).unwrap().into(), there)
        }
        InputKind::RaggedIds => {
            let lists: Vec<Vec<u64>> = (0..examples)
                .map(|_| (0..draw.below(15)).map(|_| one_id(draw)).collect())
                .collect();
            let width = lists.iter().map(Vec::len).max().unwrap_or(0);
            let mut bits: Vec<i64> = Vec::new();
            let mut offsets = vec![0_u32];
            for list in &lists {
                bits.extend(list.iter().map(|id| *id as i64));
                bits.resize(bits.len() + width - list.len(), -1);
                offsets.push(offsets[offsets.len() - 1] + list.len() as u32);
            }
            let there = json!({ "type": "int64", "shape": [examples, width], "values": bits });
            (Ragged::new(Data::U64(lists.concat()), offsets).unwrap().into(), there)
        }
        InputKind::Floats(n) => {
            let values: Vec<f32> = (0..examples * n).map(|_| 2.0 * draw.unit() - 1.0).collect();
            let there = json!({ "type": "float32", "shape": [examples, n], "values": values });
            (Tensor::from_f32(&[examples, n], values).unwrap().into(), there)
        }
        InputKind::Ints(_) => panic!("no model of the zoo predicts from whole numbers"),
    }
}

/// Scores a batch with the model and writes the ONNX file, the batch and the scores into `case`.
fn write_case(model: &Path, case: &Path) -> Vec<(String, String)> {
    let written = convert(model, case, ALL_TABLES).unwrap();
    let opened = Model::open(model).unwrap();
    let mut draw = Draw(Rng::new(11, 2), 0);
    let (mut batch, mut there) = (Vec::new(), serde_json::Map::new());
    for i in opened.inputs() {
        let (value, fed) = input(i.kind, 50, &mut draw);
        batch.push((i.name.clone(), value));
        there.insert(i.name.clone(), fed);
    }
    let batch: Vec<(&str, &Value)> = batch.iter().map(|(name, v)| (name.as_str(), v)).collect();
    let mut session = opened.session().unwrap();
    let scores = session.score(&batch).unwrap();
    let named = opened.outputs().iter().zip(scores);
    let outputs: serde_json::Map<_, _> = named
        .map(|(name, t)| (name.clone(), json!({ "shape": t.shape(), "values": t.f32() })))
        .collect();
    let text = json!({ "inputs": there, "outputs": outputs }).to_string();
    fs::write(case.join("case.json"), text).unwrap();
    written
}

/// Every model, and variants with ops or tables that no shipped configuration has.
fn write_all(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |name: String, model: &Path, cases: &Path| {
        let written = write_case(model, &cases.join(&name));
        assert!(written.iter().any(|(what, _)| what.starts_with("output ")), "{written:?}");
        names.push(name);
    };
    let none: &[&str] = &[];
    let mut variants: Vec<(&str, &str, &[&str])> =
        zoo::all().iter().map(|model| (model.name, "", none)).collect();
    variants.push(("dcn", "-normalised", &["hyper_parameters.dnn_use_bn=True"]));
    variants.push(("slot_dnn", "-hashed", &["hyper_parameters.hash_ids=True"]));
    variants.push(("din", "-gelu", &["hyper_parameters.act=gelu"]));
    let cases = dir.join("cases");
    for (model, variant, overrides) in variants {
        let work = dir.join(format!("{model}{variant}"));
        let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
        let exported = export(&config(model, &overrides), &work);
        add(format!("{model}{variant}"), &exported, &cases);
        if variant.is_empty() {
            add(format!("{model}-by-id"), &by_id(&exported, &work), &cases);
        }
    }
    names
}

#[test]
fn every_model_can_be_written_and_says_how_to_feed_it() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    let model = export(&config("dssm", &[]), &work);
    let case = dir.path().join("dssm");
    let written = convert(&model, &case, ALL_TABLES).unwrap();
    let said = |what: &str| written.iter().find(|(name, _)| name == what).unwrap().1.clone();
    assert_eq!(
        said("input query"),
        "int64[batch, query.ids], any number of ids per example, filled up with -1"
    );
    let bytes = fs::read(case.join("model.onnx")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    for word in ["regatta", "ai.onnx.ml", "input query", "filled up with -1", "dssm"] {
        assert!(text.contains(word), "{word}");
    }
    let names = write_all(&dir.path().join("all"));
    assert_eq!(names.len(), 2 * zoo::all().len() + 3);
}

#[test]
fn tables_beyond_the_limit_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let model = export(&config("dnn", &[]), dir.path());
    let to = dir.path().join("onnx");
    // 13001 rows of 9 floats.
    let small = Format::Onnx { table_limit: 13_001 * 9 * 4 - 1 };
    let refused = convert(&model, &to, small).unwrap_err();
    assert!(matches!(refused, Error::Onnx { .. }));
    let text = refused.to_string();
    for word in ["'dnn'", "'SparseFeatFactors' 13001 rows of 9 floats", "--table-limit", "0.5 MB"] {
        assert!(text.contains(word), "{text}");
    }
    assert!(!to.exists(), "nothing is left of what was refused");
    convert(&model, &to, Format::Onnx { table_limit: 13_001 * 9 * 4 }).unwrap();
}

#[test]
#[ignore = "needs a Python with onnxruntime, which bench/check_onnx installs"]
fn scores_are_those_of_onnxruntime() {
    let dir = tempfile::tempdir().unwrap();
    let names = write_all(dir.path());
    let bench = repository().join("bench/onnx");
    let output = Command::new(bench.join("venv/bin/python"))
        .arg(bench.join("compare.py"))
        .arg(dir.path().join("cases"))
        .output()
        .unwrap_or_else(|e| panic!("bench/check_onnx makes bench/onnx/venv: {e}"));
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for name in names {
        assert!(said.lines().any(|line| line.starts_with(&format!("{name}: "))), "no {name}");
    }
}
