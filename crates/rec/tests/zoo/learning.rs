//! Every model learns: the loss falls and the metrics on test data pass a floor.

use std::time::Instant;

use crate::cases::case;
use crate::evaluate::evaluate;
use crate::train::Trainer;

fn learns(model: &str) {
    let case = case(model);
    let begin = Instant::now();
    let mut trainer = Trainer::new(case, 1);
    let losses = trainer.train(case);
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let tenth = losses.len().div_ceil(10);
    let (first, last) = (mean(&losses[..tenth]), mean(&losses[losses.len() - tenth..]));
    let metrics = evaluate(case.zoo_model(), &case.test_url(), &mut trainer);
    let seconds = begin.elapsed().as_secs_f64();
    println!("{model}: loss {first:.4} -> {last:.4}, {metrics:.4?}, {seconds:.1} s");
    assert!(last < 0.97 * first, "the loss went from {first} to {last}");
    for (metric, value) in metrics {
        assert!(value > case.floor, "{metric} is {value}, not above {}", case.floor);
    }
}

macro_rules! learning {
    ($($model:ident)*) => {
        $(
            #[test]
            fn $model() {
                learns(stringify!($model));
            }
        )*

        #[test]
        fn every_model_is_trained() {
            let all: Vec<&str> = regatta_rec::zoo::all().iter().map(|m| m.name).collect();
            assert_eq!([$(stringify!($model)),*], all[..]);
        }
    };
}

learning! {
    dcn dcn_v2 deepfm din dlrm dnn dssm esmm fm logistic_regression mmoe ncf slot_dnn wide_deep
    word2vec xdeepfm
}
