//! Models with tables: what they score, what they do with unknown ids, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use regatta_checkpoint::{
    Encoding, ModelAbout, ModelSpec, TableRows, load_inference_model, save_inference_model,
    save_model, verify_model,
};
use regatta_exec::{Executor, Options as ExecOptions, Scope, run_startup};
use regatta_ir::{Act, Embedding, Initializer, ParamAttr, Programs};
use regatta_passes::prune;
use regatta_predict::{Error, InputKind, MissingIds, Model, Options};
use regatta_table::row_order;
use regatta_tensor::{DType, Data, Ragged, Tensor, Value};

const ROWS: usize = 50;

/// Two inputs of ids, one of any number, and floats; the name of the output.
fn net(rows: usize) -> (Programs, String) {
    let mut b = regatta_ops::builder(3);
    let user = b.data("user", DType::U64, &[-1, 1]).unwrap();
    let tags = b.sparse_data("tags").unwrap();
    let dense = b.data("dense", DType::F32, &[-1, 3]).unwrap();
    let table = Embedding {
        table: ParamAttr::with_init(Initializer::Uniform { low: -1.0, high: 1.0 }).named("table"),
        ..Embedding::new(rows as i64, 4)
    };
    let embedded = b.embedding(&[&user, &tags], &table).unwrap();
    let flat = b.reshape(&embedded, &[-1, 8]).unwrap();
    let joined = b.concat(&[&flat, &dense], 1).unwrap();
    let score = b.fc(&joined, 1, Act::Sigmoid).unwrap();
    (b.finish(), score.name().to_string())
}

struct Trained {
    programs: Programs,
    output: String,
    scope: Scope,
}

fn trained() -> Trained {
    trained_with(ROWS)
}

fn trained_with(rows: usize) -> Trained {
    let (programs, output) = net(rows);
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    Trained { programs, output, scope }
}

impl Trained {
    /// Saves the model with these ids of its table, or the whole table.
    fn save(&self, path: &Path, ids: Option<&[u64]>, encoding: Encoding) {
        let program = prune(&self.programs.main, &[&self.output]).unwrap();
        let spec = ModelSpec {
            program: &program,
            feeds: &["user", "tags", "dense"],
            fetches: &[&self.output],
            about: ModelAbout { name: "small".into(), step: Some(7), ..ModelAbout::default() },
            encoding,
        };
        let table = self.scope.get("table").unwrap();
        let rows = |_: &str| {
            let Some(ids) = ids else { return Ok(TableRows::Whole(table)) };
            let mut ids = ids.to_vec();
            ids.sort_by_key(|id| row_order(*id));
            Ok(TableRows::ById(Box::new(move |put| {
                ids.iter().try_for_each(|&id| {
                    let at = id as usize * 4;
                    put(id, &table.f32()[at..at + 4])
                })
            })))
        };
        save_model(path, &spec, |name| self.scope.get(name), rows).unwrap();
    }

    fn expected(&mut self, batch: &[(&str, &Value)]) -> Vec<f32> {
        let main = self.programs.main.clone();
        let mut executor = Executor::new(main, ExecOptions::default()).unwrap();
        executor.run(&mut self.scope, batch, &[&self.output]).unwrap()[0].f32().to_vec()
    }
}

fn values(users: &[u64], tags: &[&[u64]]) -> [(&'static str, Value); 3] {
    let n = users.len();
    let user = Tensor::from_u64(&[n, 1], users.to_vec()).unwrap();
    let mut offsets = vec![0];
    tags.iter().for_each(|t| offsets.push(offsets.last().unwrap() + t.len() as u32));
    let tags = Ragged::new(Data::U64(tags.concat()), offsets).unwrap();
    let dense = (0..n * 3).map(|i| i as f32 * 0.1 - 0.4).collect();
    let dense = Tensor::from_f32(&[n, 3], dense).unwrap();
    [("user", user.into()), ("tags", tags.into()), ("dense", dense.into())]
}

fn by_ref<'a>(values: &'a [(&'static str, Value)]) -> Vec<(&'static str, &'a Value)> {
    values.iter().map(|(name, value)| (*name, value)).collect()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    (dir, path)
}

#[test]
fn whole_tables_and_tables_by_id_score_as_the_program_does() {
    let (_dir, path) = folder();
    let mut trained = trained();
    let batch = values(&[1, 49, 7, 1], &[&[3, 4], &[], &[1], &[48, 48, 2]]);
    let expected = trained.expected(&by_ref(&batch));
    let all: Vec<u64> = (0..ROWS as u64).collect();
    for ids in [None, Some(&all[..])] {
        trained.save(&path, ids, Encoding::F32);
        let model = Model::open(&path).unwrap();
        let kinds: Vec<InputKind> = model.inputs().iter().map(|input| input.kind).collect();
        assert_eq!(kinds, [InputKind::Ids(1), InputKind::RaggedIds, InputKind::Floats(3)]);
        let mut session = model.session().unwrap();
        assert_eq!(session.score(&by_ref(&batch)).unwrap()[0].f32(), expected);
        assert_eq!(session.missing_ids(), 0);
        let info = model.info();
        assert_eq!((info.name.as_str(), info.step, info.rows), ("small", Some(7), 50));
        verify_model(&path).unwrap();
        let loaded = load_inference_model(&path).unwrap();
        let table = loaded.params.iter().find(|(name, _)| name == "table").unwrap();
        assert_eq!(Some(&table.1), trained.scope.get("table"));
    }
}

#[test]
fn threads_share_a_model() {
    let (_dir, path) = folder();
    let mut trained = trained();
    trained.save(&path, None, Encoding::F32);
    let batches: Vec<_> = (0..4_u64).map(|i| values(&[i, i + 9], &[&[i, 2 * i], &[i]])).collect();
    let expected: Vec<Vec<f32>> = batches.iter().map(|b| trained.expected(&by_ref(b))).collect();
    let model = Model::open(&path).unwrap();
    std::thread::scope(|scope| {
        for (batch, expected) in batches.iter().zip(&expected) {
            let model = model.clone();
            scope.spawn(move || {
                let mut session = model.session().unwrap();
                for _ in 0..20 {
                    assert_eq!(session.score(&by_ref(batch)).unwrap()[0].f32(), *expected);
                }
            });
        }
    });
}

#[test]
fn ids_that_were_never_trained_are_zeros_and_counted_or_an_error() {
    let (_dir, path) = folder();
    let mut trained = trained();
    let known: Vec<u64> = (0..10).collect();
    trained.save(&path, Some(&known), Encoding::F32);
    trained.scope.get_mut("table").unwrap().f32_mut()[40..].fill(0.0);
    let inside = values(&[1, 20, 30], &[&[3, 20], &[4], &[49]]);
    let expected = trained.expected(&by_ref(&inside));
    let mut session = Model::open(&path).unwrap().session().unwrap();
    assert_eq!(session.score(&by_ref(&inside)).unwrap()[0].f32(), expected);
    assert_eq!(session.missing_ids(), 3, "20, 30 and 49");
    let beyond = values(&[1, u64::MAX, 30], &[&[3, 20], &[4], &[49]]);
    assert_eq!(session.score(&by_ref(&beyond)).unwrap()[0].f32(), expected);

    let strict = Options { missing_ids: MissingIds::Error, ..Options::default() };
    let mut session = Model::open_with(&path, strict).unwrap().session().unwrap();
    let error = session.score(&by_ref(&inside)).unwrap_err();
    assert!(
        matches!(&error, Error::MissingId { table, id: 20, .. } if table == "table"),
        "{error}"
    );
    let batch = values(&[1], &[&[3]]);
    session.score(&by_ref(&batch)).unwrap();
}

#[test]
fn smaller_rows_say_how_far_they_are_off() {
    let (_dir, path) = folder();
    let mut trained = trained();
    let batch = values(&[1, 49, 7], &[&[3, 4], &[], &[1]]);
    let expected = trained.expected(&by_ref(&batch));
    let mut sizes = Vec::new();
    for encoding in [Encoding::F32, Encoding::Bf16, Encoding::Int8] {
        trained.save(&path, None, encoding);
        let model = Model::open(&path).unwrap();
        let table = &model.manifest().tables[0];
        let (bound, bytes) = (table.max_error, model.manifest().file(&table.values).unwrap().bytes);
        assert_eq!(bound == 0.0, encoding == Encoding::F32);
        sizes.push(bytes);
        let mut session = model.session().unwrap();
        let scores = session.score(&by_ref(&batch)).unwrap()[0].f32();
        let worst = scores.iter().zip(&expected).map(|(a, b)| f64::from((a - b).abs()));
        // A sum of at most 16 rounded values with weights below 1, then a sigmoid.
        assert!(worst.fold(0.0, f64::max) <= 16.0 * bound);
    }
    assert_eq!(sizes, [800, 400, 400]);
}

#[test]
fn wrong_batches_are_named_and_the_session_goes_on() {
    let (_dir, path) = folder();
    trained().save(&path, None, Encoding::F32);
    let mut session = Model::open(&path).unwrap().session().unwrap();
    let good = values(&[1, 2], &[&[3], &[4]]);
    let floats = Value::from(Tensor::zeros(DType::F32, &[2, 4]));
    let one = Value::from(Tensor::zeros(DType::F32, &[1, 3]));
    let none = values(&[], &[]);
    let [user, tags, dense] = &by_ref(&good)[..] else { unreachable!() };
    for (batch, expected) in [
        (vec![*user, *tags], "input 'dense' (f32[batch, 3]) is missing"),
        (vec![*user, *tags, *dense, ("age", &floats)], "'age' is no input of the model"),
        (vec![*user, *user, *tags, *dense], "input 'user' is given twice"),
        (vec![*user, *tags, ("dense", &floats)], "takes f32[batch, 3], but was given f32[2, 4]"),
        (vec![*user, *tags, ("dense", &one)], "'dense' has 1 examples, but 'user' has 2"),
        (vec![("user", tags.1), *tags, *dense], "takes u64[batch, 1], but was given ragged u64[2]"),
        (vec![*user, ("tags", user.1), *dense], "takes ragged u64[batch], but was given u64[2, 1]"),
        (by_ref(&none), "the batch has no examples"),
    ] {
        let error = session.score(&batch).unwrap_err();
        assert!(error.is_input() && error.to_string().contains(expected), "{error}");
    }
    session.score(&by_ref(&good)).unwrap();
}

fn refusal(path: &Path) -> String {
    Model::open(path).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn models_that_are_not_whole_are_refused_with_what_is_missing() {
    let (dir, path) = folder();
    let trained = trained();
    trained.save(&path, Some(&[1, 2, 3]), Encoding::F32);
    for (name, expected) in [
        ("table.values", "table.values has 47 of 48 bytes"),
        ("table.keys", "table.keys has 23 of 24 bytes"),
    ] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert!(refusal(&path).contains(expected), "{}", refusal(&path));
        fs::remove_file(&file).unwrap();
        let error = refusal(&path);
        assert!(error.contains("is not whole") && error.contains(name), "{error}");
        // A byte that flipped on disk is found by a check of all bytes.
        let mut changed = whole.clone();
        changed[5] ^= 1;
        fs::write(&file, changed).unwrap();
        let error = verify_model(&path).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("damaged"), "{error}");
        fs::write(&file, whole).unwrap();
    }
    for name in ["manifest.json", "model.program", "params.safetensors"] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        for len in [0, whole.len() / 2, whole.len() - 1] {
            fs::write(&file, &whole[..len]).unwrap();
            assert!(refusal(&path).contains(name), "{}", refusal(&path));
        }
        fs::remove_file(&file).unwrap();
        assert!(refusal(&path).contains(name), "{}", refusal(&path));
        fs::write(&file, whole).unwrap();
    }
    Model::open(&path).unwrap();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(refusal(&empty).starts_with("cannot read"), "{}", refusal(&empty));
}

/// A damaged block is named when it is first touched; all others answer as before.
#[test]
fn a_flipped_bit_in_a_table_is_never_a_wrong_score() {
    const MANY: usize = 5000;
    let (_dir, path) = folder();
    let trained = trained_with(MANY);
    let all: Vec<u64> = (0..MANY as u64).collect();
    for ids in [Some(&all[..]), None] {
        trained.save(&path, ids, Encoding::F32);
        let scores = |model: &Model, id: u64| {
            let batch = values(&[id], &[&[]]);
            let mut session = model.session().unwrap();
            session.score(&by_ref(&batch)).map(|scores| scores[0].f32()[0].to_bits())
        };
        let good = Model::open(&path).unwrap();
        let expected: Vec<u32> = all.iter().map(|id| scores(&good, *id).unwrap()).collect();
        for name in ["table.values", "table.keys"].into_iter().take(1 + ids.iter().len()) {
            let file = path.join(name);
            let whole = fs::read(&file).unwrap();
            let mut changed = whole.clone();
            changed[20_000] ^= 4;
            fs::write(&file, &changed).unwrap();
            // No row is read before it is needed, so the model opens.
            let model = Model::open(&path).unwrap();
            let mut damaged = 0;
            for (id, expected) in all.iter().zip(&expected) {
                match scores(&model, *id) {
                    Ok(score) => assert_eq!(score, *expected, "{name}, id {id}"),
                    Err(error) => {
                        let text = error.to_string();
                        let named = format!("{}: block 1 (bytes 16384", file.display());
                        assert!(text.starts_with(&named), "{text}");
                        assert!(!error.is_input(), "the client has made no mistake");
                        damaged += 1;
                    }
                }
            }
            // 1024 rows of 16 bytes or 2048 keys are in a block; searches for others may touch it.
            let least = if name == "table.values" { 1024 } else { 2048 };
            assert!(damaged >= least && damaged < MANY, "{name}: {damaged}");
            fs::write(&file, whole).unwrap();
        }
        // The checksums themselves.
        let sums = path.join("table.values.sums");
        let mut changed = fs::read(&sums).unwrap();
        changed[9] ^= 1;
        fs::write(&sums, changed).unwrap();
        assert!(refusal(&path).contains("table.values.sums: it is damaged"), "{}", refusal(&path));
    }
}

#[test]
fn a_table_without_rows_is_a_model_too() {
    let (_dir, path) = folder();
    trained().save(&path, Some(&[]), Encoding::F32);
    let mut session = Model::open(&path).unwrap().session().unwrap();
    let batch = values(&[1], &[&[3]]);
    session.score(&by_ref(&batch)).unwrap();
    assert_eq!(session.missing_ids(), 2);
}

#[test]
fn images_are_given_as_such_or_in_rows() {
    let (_dir, path) = folder();
    let mut b = regatta_ops::builder(3);
    let image = b.data("image", DType::F32, &[-1, 2, 3]).unwrap();
    let turned = b.transpose(&image, &[0, 2, 1]).unwrap();
    let flat = b.reshape(&turned, &[-1, 6]).unwrap();
    let score = b.fc(&flat, 1, Act::None).unwrap();
    let programs = b.finish();
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    let program = prune(&programs.main, &[score.name()]).unwrap();
    let value = |name: &str| scope.get(name);
    let (feeds, fetches) = (["image"], [score.name()]);
    save_inference_model(&path, &program, &feeds, &fetches, value).unwrap();

    let model = Model::open(&path).unwrap();
    assert_eq!(model.inputs()[0].kind, InputKind::Floats(6));
    assert_eq!(model.inputs()[0].dims, [2, 3]);
    let values: Vec<f32> = (0..12).map(|i| i as f32 * 0.3 - 1.0).collect();
    let mut session = model.session().unwrap();
    let mut found = Vec::new();
    for shape in [&[2, 2, 3][..], &[2, 6]] {
        let batch: Value = Tensor::from_f32(shape, values.clone()).unwrap().into();
        found.push(session.score(&[("image", &batch)]).unwrap()[0].f32().to_vec());
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].len(), 2);
    let turned: Value = Tensor::from_f32(&[2, 3, 2], values).unwrap().into();
    let error = session.score(&[("image", &turned)]).unwrap_err().to_string();
    assert!(error.contains("f32[2, 3, 2]"), "{error}");
}
