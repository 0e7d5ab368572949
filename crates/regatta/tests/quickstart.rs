//! The built-in models learn what there is to learn.

use regatta::listing::Listing;
use regatta::optim::{Adam, Rule};
use regatta::passes::{Clip, Optimizer};
use regatta::quickstart::fit_a_line::{self, BIAS, Housing, WEIGHTS};
use regatta::quickstart::{FitALine, Mlp, mlp};

#[test]
fn a_long_training_finds_the_known_weights() {
    let options = fit_a_line::Options { batch_size: 20, learning_rate: 0.05, threads: 1, seed: 2 };
    let mut fit = FitALine::new(Housing::synthetic(2), &options).unwrap();
    for pass in 0..200 {
        for rows in fit.batches(pass) {
            fit.train_batch(&rows).unwrap();
        }
    }
    let (loss, _) = fit.test().unwrap();
    assert!(loss < 6.0, "the noise has variance 4, the loss is {loss}");
    let found = fit.weights();
    for (found, known) in found.iter().zip(WEIGHTS.iter().chain([&BIAS])) {
        assert!((found - known).abs() < 2.0, "{found} should be near {known}");
    }
}

#[test]
fn threads_do_not_change_the_result() {
    let costs = |threads| {
        let optimizer = Optimizer::new(Rule::Adam(Adam::default()), 0.001);
        let options = mlp::Options { batch_size: 30, optimizer, threads, seed: 3 };
        let mut mlp = Mlp::new(&options).unwrap();
        (0..40).map(|step| mlp.step(step).unwrap()).collect::<Vec<f32>>()
    };
    for (one, three) in costs(1).iter().zip(costs(3)) {
        assert!((one - three).abs() < 1e-4, "{one} {three}");
    }
}

#[test]
fn the_classifier_learns() {
    let optimizer = Optimizer::new(Rule::Adam(Adam::default()), 0.001);
    let options = mlp::Options { batch_size: 128, optimizer, threads: 1, seed: 3 };
    let mut mlp = Mlp::new(&options).unwrap();
    let (before, _) = mlp.test().unwrap();
    for step in 0..300 {
        mlp.step(step).unwrap();
    }
    let (after, accuracy) = mlp.test().unwrap();
    assert!(before > 0.6 && after < 0.3 && accuracy > 0.88, "{before} {after} {accuracy}");
}

#[test]
fn stages_follow_one_program() {
    let mut optimizer = Optimizer::new(Rule::Adam(Adam::default()), 0.001);
    let titles = |optimizer: &Optimizer| -> Vec<String> {
        let listing = Listing::of_model(&mlp::model(1).unwrap(), optimizer, 128).unwrap();
        let title = |text: &str| text.split(':').next().unwrap().to_string();
        listing.stages().iter().map(|stage| title(&stage.title)).collect()
    };
    let usual = [
        "build",
        "build",
        "backward",
        "insert_updates",
        "insert_updates",
        "memory_reuse",
        "concrete_types",
    ];
    assert_eq!(titles(&optimizer), usual);
    optimizer.clip = Some(Clip::GlobalNorm(1.0));
    optimizer.regularizer = Some(regatta::ir::Regularizer::L2(0.1));
    let mut all = usual.to_vec();
    all.splice(3..3, ["clip", "regularize"]);
    assert_eq!(titles(&optimizer), all);
    // What is printed can be read back.
    for stage in Listing::of_model(&fit_a_line::model(1).unwrap(), &optimizer, 20).unwrap().stages()
    {
        assert_eq!(regatta::ir::text::parse(&stage.text).unwrap().to_string(), stage.text);
    }
}
