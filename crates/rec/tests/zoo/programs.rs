//! Every model makes a sound program that the passes can take apart.

use regatta_data::Synthetic;
use regatta_ir::{Origin, Role, verify};
use regatta_ops::OPS;
use regatta_passes::{clone_for_test, prune};
use regatta_rec::zoo;
use regatta_rec::{Hyper, HyperValue};

use crate::cases::{Case, case};
use crate::train::{Trainer, for_each_batch};

fn each(f: impl Fn(&Case, Trainer)) {
    for model in zoo::all() {
        let case = case(model.name);
        println!("{}", model.name);
        f(case, Trainer::new(case, 1));
    }
}

#[test]
fn programs_verify_and_their_text_is_read_back() {
    each(|_, trainer| {
        for program in [&trainer.forward.main, &trainer.programs.main, &trainer.programs.startup] {
            verify(program, &OPS).unwrap();
            assert_eq!(&regatta_ir::text::parse(&program.to_string()).unwrap(), program);
        }
    });
}

#[test]
fn the_schema_is_what_the_network_and_the_synthetic_source_name() {
    each(|case, trainer| {
        let schema = case.zoo_model().schema_of(&case.hyper()).unwrap();
        assert_eq!(Synthetic::parse(&case.train_url()).unwrap().schema(), schema);
        let vars = trainer.forward.main.block().vars.values();
        let mut inputs: Vec<&str> =
            vars.filter(|v| v.origin == Origin::Data).map(|v| v.name.as_str()).collect();
        let mut slots: Vec<&str> = schema.slots().iter().map(|s| s.name.as_str()).collect();
        inputs.sort_unstable();
        slots.sort_unstable();
        assert_eq!(inputs, slots);
    });
}

#[test]
fn inference_programs_need_no_labels() {
    each(|_, trainer| {
        let test = clone_for_test(&trainer.programs.main).unwrap();
        let trained = trainer.programs.main.block().ops.iter();
        let forward = trained.filter(|op| op.role == Role::Forward).count();
        assert_eq!(test.block().ops.len(), forward);
        for head in &trainer.net.heads {
            let infer = prune(&trainer.programs.main, &[head.predict.name()]).unwrap();
            assert!(infer.block().ops.len() < test.block().ops.len());
            let label = trainer.forward.main.block().vars[head.label.name()].clone();
            if label.origin == Origin::Data {
                assert!(!infer.block().vars.contains_key(&label.name), "{}", label.name);
            }
        }
    });
}

#[test]
fn two_threads_give_the_losses_of_one() {
    for model in zoo::all() {
        let case = case(model.name);
        let with = |threads| Trainer::with_hyper(case, &case.plain_hyper(), threads);
        let (mut one, mut two) = (with(1), with(2));
        let mut steps = 0;
        for_each_batch(&case.train_url(), 50, 0, |batch| {
            if steps < 8 {
                let (a, b) = (one.step(batch), two.step(batch));
                assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{}: {a} {b}", model.name);
            }
            steps += 1;
        });
        assert!(steps >= 8);
    }
}

/// The error of a build after changing one hyper-parameter of a case.
fn refused(model: &str, key: &str, value: HyperValue) -> String {
    let case = case(model);
    let mut h: Hyper = case.hyper();
    h.set(key, value).unwrap();
    let mut b = regatta_ops::builder(7);
    match (case.zoo_model().build)(&h, &mut b) {
        Ok(_) => panic!("{model} takes {key}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn sizes_that_do_not_fit_are_explained() {
    use HyperValue::{Bool, Int, Ints, Str};
    for (model, key, value, part) in [
        ("dnn", "sparse_feature_dim", Int(0), "is 0, not at least 1"),
        ("dlrm", "bot_layer_sizes", Ints(vec![16, 4]), "does not end in 8"),
        ("dlrm", "top_layer_sizes", Ints(vec![16]), "does not end in 2"),
        ("dlrm", "num_field", Int(26), "is 26, but 6 follows"),
        ("logistic_regression", "num_field", Int(39), "is 39, but 10 follows"),
        ("mmoe", "gate_num", Int(3), "there are two labels"),
        ("ncf", "fc_layers", Ints(vec![7, 4]), "even width"),
        ("din", "act", Str("selu".into()), "is 'selu', not relu"),
        ("dssm", "fc_acts", Str("relu,tanh,relu".into()), "3 activations for 2 layers"),
        ("dssm", "fc_sizes", Ints(vec![]), "is empty"),
        ("word2vec", "with_shuffle_batch", Bool(true), "set it to false"),
        ("slot_dnn", "sparse_feature_dim", Int(9), "is 9, but 8 follows"),
    ] {
        let error = refused(model, key, value);
        let start = format!("hyper_parameters.{key}: ");
        assert!(error.starts_with(&start) && error.contains(part), "{error}");
    }
}

/// Options that the cases leave at their defaults.
#[test]
fn other_forms_of_models_build_and_take_a_step() {
    use HyperValue::{Bool, Float, Int, Str};
    for (model, changes) in [
        ("dcn", vec![("dnn_use_bn", Bool(true))]),
        ("dcn_v2", vec![("use_low_rank_mixture", Bool(false)), ("is_Stacked", Bool(false))]),
        ("dcn_v2", vec![("clip_by_norm", Float(0.0)), ("dnn_use_bn", Bool(true))]),
        ("dlrm", vec![("batch_norm", Bool(false))]),
        ("din", vec![("act", Str("relu".into())), ("max_len", Int(3))]),
        ("dssm", vec![("fc_acts", Str("relu, linear".into()))]),
        ("dnn", vec![("hash_ids", Bool(true)), ("sparse_feature_number", Int(50))]),
    ] {
        let case = case(model);
        let mut h = case.hyper();
        changes.into_iter().for_each(|(key, value)| h.set(key, value).unwrap());
        let mut trainer = Trainer::with_hyper(case, &h, 1);
        let mut losses = Vec::new();
        for_each_batch(&case.train_url(), 1000, 0, |batch| losses.push(trainer.step(batch)));
        assert!(losses.iter().all(|l| l.is_finite()), "{model}: {losses:?}");
        assert!(losses.last() < losses.first(), "{model}: {losses:?}");
    }
}
