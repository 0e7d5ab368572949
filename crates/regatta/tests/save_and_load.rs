//! Train, save, load: the same numbers to the bit, whatever the model is made of.

use std::fs;

use regatta::io;
use regatta::prelude::*;
use regatta::quickstart::FitALine;
use regatta::quickstart::fit_a_line::{Housing, Options as FitOptions};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn options() -> FitOptions {
    FitOptions { batch_size: 20, learning_rate: 0.01, threads: 1, seed: 5 }
}

fn fit(passes: std::ops::Range<usize>, fit: &mut FitALine) -> Vec<u32> {
    let mut costs = Vec::new();
    for pass in passes {
        for rows in fit.batches(pass) {
            costs.push(fit.train_batch(&rows).unwrap());
        }
    }
    bits(&costs)
}

#[test]
fn training_goes_on_as_if_it_had_never_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = FitALine::new(Housing::synthetic(5), &options()).unwrap();
    fit(0..3, &mut whole);
    whole.save(dir.path()).unwrap();
    let expected = fit(3..6, &mut whole);

    // The learning rate is part of what is saved.
    let other = FitOptions { learning_rate: 0.5, ..options() };
    let mut resumed = FitALine::new(Housing::synthetic(5), &other).unwrap();
    resumed.load(dir.path()).unwrap();
    assert_eq!(fit(3..6, &mut resumed), expected);
    assert_eq!(bits(&resumed.weights()), bits(&whole.weights()));
}

/// A net with everything that behaves differently in training, on the rules with most state.
fn net() -> (Programs, String, String) {
    let mut b = builder(3);
    let x = b.data("x", DType::F32, &[-1, 8]).unwrap();
    let y = b.data("y", DType::I64, &[-1, 1]).unwrap();
    let hidden = b.fc(&x, 16, Act::Relu).unwrap();
    let hidden = b.batch_norm(&hidden, 0.9, 1e-5).unwrap();
    let hidden = b.dropout(&hidden, 0.3, 9).unwrap();
    let predict = b.fc(&hidden, 3, Act::Softmax).unwrap();
    let cost = b.cross_entropy(&predict, &y, false).unwrap();
    let loss = b.mean(&cost).unwrap();
    let (loss, predict) = (loss.name().to_string(), predict.name().to_string());
    let mut adam = Optimizer::new(Rule::Adam(Adam::default()), 0.01);
    adam.schedule = Schedule::Exponential { decay_steps: 2, decay_rate: 0.9, staircase: false };
    let trained = minimize(&b.finish(), &loss, &adam, &Backward::default()).unwrap();
    (trained.programs, loss, predict)
}

fn batch(n: u64) -> (Value, Value) {
    let rng = regatta::tensor::Rng::new(4, n);
    let x = (0..10 * 8).map(|i| rng.normal(i) as f32).collect();
    let y = (0..10).map(|i| (rng.u64(1000 + i) % 3) as i64).collect();
    let x = Tensor::from_f32(&[10, 8], x).unwrap();
    (x.into(), Tensor::from_i64(&[10, 1], y).unwrap().into())
}

fn train(programs: &Programs, loss: &str, scope: &mut Scope, steps: u64) {
    let mut executor = Executor::new(programs.main.clone(), Options::default()).unwrap();
    for step in 0..steps {
        let (x, y) = batch(step);
        executor.run(scope, &[("x", &x), ("y", &y)], &[loss]).unwrap();
    }
}

#[test]
fn everything_that_is_kept_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (programs, loss, _) = net();
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    train(&programs, &loss, &mut scope, 7);
    save_persistables(&programs.main, &scope, dir.path()).unwrap();

    // No startup: the file is all that is needed.
    let mut loaded = Scope::new();
    load_persistables(&programs.main, &mut loaded, dir.path()).unwrap();
    let names: Vec<&str> = programs.main.persistables().map(|v| v.name.as_str()).collect();
    assert!(names.len() > 15, "moments and statistics are kept: {names:?}");
    for name in names {
        assert_eq!(loaded.get(name), scope.get(name), "{name}");
    }
}

#[test]
fn a_saved_model_predicts_what_the_test_program_predicts() {
    let dir = tempfile::tempdir().unwrap();
    let (programs, loss, predict) = net();
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    train(&programs, &loss, &mut scope, 7);
    let model = dir.path().join("model");
    save_inference_model(&model, &programs.main, &["x"], &[&predict], &scope).unwrap();

    let (x, y) = batch(100);
    let test = clone_for_test(&programs.main).unwrap();
    let mut executor = Executor::new(test, Options::default()).unwrap();
    let expected = executor.run(&mut scope, &[("x", &x), ("y", &y)], &[&predict]).unwrap();

    let mut predictor = Predictor::load(&model).unwrap();
    assert_eq!((predictor.feeds(), predictor.fetches()), (&["x".into()][..], &[predict][..]));
    let found = predictor.predict(&[("x", &x)]).unwrap();
    assert_eq!(bits(found[0].f32()), bits(expected[0].f32()));
    let again = predictor.predict(&[("x", &x)]).unwrap();
    assert_eq!(again, found, "a prediction changes nothing");
}

#[test]
fn a_saved_line_predicts_what_the_training_program_computed() {
    let dir = tempfile::tempdir().unwrap();
    let mut fit_a_line = FitALine::new(Housing::synthetic(5), &options()).unwrap();
    fit(0..2, &mut fit_a_line);
    fit_a_line.save(dir.path()).unwrap();
    let (_, expected) = fit_a_line.test().unwrap();
    let test = &fit_a_line.data().test;
    let x = Tensor::from_f32(&[test.len(), 13], test.x.clone()).unwrap().into();
    let mut predictor = Predictor::load(dir.path().join("inference")).unwrap();
    assert_eq!(bits(predictor.predict(&[("x", &x)]).unwrap()[0].f32()), bits(&expected));
}

#[test]
fn wrong_inputs_of_a_predictor_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let fit_a_line = FitALine::new(Housing::synthetic(5), &options()).unwrap();
    fit_a_line.save(dir.path()).unwrap();
    let mut predictor = Predictor::load(dir.path().join("inference")).unwrap();
    let mut error = |name: &str, tensor: Tensor| {
        predictor.predict(&[(name, &Value::from(tensor))]).unwrap_err().to_string()
    };
    let floats = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
    assert!(error("xx", floats(&[1, 13])).contains("'xx' is no input of the model"));
    assert!(error("x", floats(&[1, 12])).contains("input 'x' takes f32[batch, 13]"));
    assert!(error("x", Tensor::zeros(DType::I64, &[1, 13])).contains("but was given i64[1, 13]"));
    let missing = predictor.predict(&[]).unwrap_err().to_string();
    assert_eq!(missing, "input 'x' (f32[batch, 13]) is missing");
}

#[test]
fn what_cannot_be_saved_or_loaded_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (programs, _, predict) = net();
    let empty = Scope::new();
    let error = save_persistables(&programs.main, &empty, dir.path()).unwrap_err().to_string();
    assert!(error.contains("'fc_0.w_0' (f32[8, 16]) is missing"), "{error}");

    let model = dir.path().join("model");
    let save = |feeds: &[&str], fetch: &str, scope: &Scope| {
        save_inference_model(&model, &programs.main, feeds, &[fetch], scope).unwrap_err()
    };
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    let error = save(&["x"], "nothing", &scope);
    assert!(matches!(error, io::Error::Program(_)), "{error}");
    let error = save(&["x", "y"], &predict, &scope).to_string();
    assert!(error.contains("'y' is not an input that the outputs depend on"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

    // The persistables of another model.
    FitALine::new(Housing::synthetic(5), &options()).unwrap().save(dir.path()).unwrap();
    let before = scope.get("fc_0.w_0").cloned();
    let error = load_persistables(&programs.main, &mut scope, dir.path()).unwrap_err().to_string();
    assert!(error.contains("'fc_0.w_0' should be f32[8, 16], but is f32[13, 1]"), "{error}");
    assert_eq!(scope.get("fc_0.w_0").cloned(), before);
}
