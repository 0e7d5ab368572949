//! For each model: small hyper-parameters, synthetic data that fit to it, and what it must reach.

use regatta_optim::{Adam, Rule, Sgd};
use regatta_rec::zoo::{self, Model};
use regatta_rec::{Hyper, HyperValue};

pub(crate) struct Case {
    pub(crate) model: &'static str,
    /// Synthetic source, without `examples` and `first`.
    url: &'static str,
    /// Examples for training and for testing.
    examples: (u64, u64),
    hyper: &'static [(&'static str, Small)],
    pub(crate) rule: Rule,
    pub(crate) learning_rate: f64,
    pub(crate) batch: usize,
    pub(crate) epochs: u64,
    /// What every metric on test data must exceed.
    pub(crate) floor: f64,
}

#[derive(Clone, Copy)]
enum Small {
    Int(i64),
    Ints(&'static [i64]),
    Bool(bool),
    Str(&'static str),
}

const CTR: &str = "synthetic://ctr?slots=6&vocab=100&dense=4&seed=5";
const MANY_IDS: &str = "synthetic://ctr?slots=8&vocab=100&dense=0&ids_per_slot=3&seed=5";
const TASKS: &str = "synthetic://multitask?slots=6&vocab=100&dense=4&seed=5";
const MANY_IDS_TASKS: &str =
    "synthetic://multitask?slots=6&vocab=100&dense=0&ids_per_slot=3&seed=5";
const ADAM: Rule = Rule::Adam(Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 });
const SGD: Rule = Rule::Sgd(Sgd {});

/// The sizes of `CTR`.
macro_rules! click {
    ($dim:literal $(, $key:literal = $value:expr)*) => {
        &[
            ("sparse_inputs_slots", Small::Int(7)),
            ("sparse_feature_number", Small::Int(601)),
            ("sparse_feature_dim", Small::Int($dim)),
            ("dense_input_dim", Small::Int(4)),
            $(($key, $value)),*
        ]
    };
}

const fn click_case(
    model: &'static str,
    hyper: &'static [(&'static str, Small)],
    rule: Rule,
    learning_rate: f64,
    floor: f64,
) -> Case {
    let (url, examples, batch, epochs) = (CTR, (12_000, 4_000), 128, 3);
    Case { model, url, examples, hyper, rule, learning_rate, batch, epochs, floor }
}

/// One for each model, in the order of [`zoo::all`].
static CASES: [Case; 16] = [
    click_case("dcn", click!(8, "fc_sizes" = Small::Ints(&[32, 16])), ADAM, 0.003, 0.76),
    click_case(
        "dcn_v2",
        click!(
            8,
            "fc_sizes" = Small::Ints(&[32, 16]),
            "low_rank" = Small::Int(8),
            "num_experts" = Small::Int(2)
        ),
        ADAM,
        0.003,
        0.80,
    ),
    click_case("deepfm", click!(8, "fc_sizes" = Small::Ints(&[32, 16])), ADAM, 0.003, 0.80),
    Case {
        model: "din",
        url: "synthetic://din?items=200&categories=10&history=10&seed=5",
        examples: (8_000, 4_000),
        hyper: &[
            ("item_emb_size", Small::Int(8)),
            ("cat_emb_size", Small::Int(8)),
            ("item_count", Small::Int(201)),
            ("cat_count", Small::Int(11)),
            ("max_len", Small::Int(10)),
        ],
        rule: ADAM,
        learning_rate: 0.03,
        batch: 64,
        epochs: 16,
        floor: 0.75,
    },
    click_case(
        "dlrm",
        click!(
            8,
            "bot_layer_sizes" = Small::Ints(&[16, 8]),
            "top_layer_sizes" = Small::Ints(&[32, 16, 2])
        ),
        ADAM,
        0.05,
        0.78,
    ),
    click_case("dnn", click!(8, "fc_sizes" = Small::Ints(&[32, 16])), ADAM, 0.003, 0.76),
    Case {
        model: "dssm",
        url: "synthetic://dssm?vocab=300&topics=10&seed=5",
        examples: (6_000, 2_000),
        hyper: &[
            ("trigram_d", Small::Int(301)),
            ("neg_num", Small::Int(4)),
            ("fc_sizes", Small::Ints(&[32, 16])),
            ("fc_acts", Small::Str("tanh")),
        ],
        rule: ADAM,
        learning_rate: 0.005,
        batch: 128,
        epochs: 3,
        floor: 0.90,
    },
    Case {
        model: "esmm",
        url: MANY_IDS_TASKS,
        examples: (16_000, 4_000),
        hyper: &[
            ("num_field", Small::Int(6)),
            ("sparse_feature_number", Small::Int(601)),
            ("sparse_feature_dim", Small::Int(8)),
            ("ctr_fc_sizes", Small::Ints(&[16])),
            ("cvr_fc_sizes", Small::Ints(&[16])),
        ],
        rule: ADAM,
        learning_rate: 0.003,
        batch: 128,
        epochs: 3,
        floor: 0.67,
    },
    click_case("fm", click!(8), ADAM, 0.01, 0.80),
    click_case(
        "logistic_regression",
        &[
            ("sparse_inputs_slots", Small::Int(7)),
            ("sparse_feature_number", Small::Int(601)),
            ("dense_input_dim", Small::Int(4)),
        ],
        ADAM,
        0.01,
        0.80,
    ),
    Case {
        model: "mmoe",
        url: TASKS,
        examples: (12_000, 4_000),
        hyper: &[
            ("feature_size", Small::Int(4)),
            ("sparse_inputs_slots", Small::Int(7)),
            ("sparse_feature_number", Small::Int(601)),
            ("sparse_feature_dim", Small::Int(8)),
            ("expert_num", Small::Int(4)),
        ],
        rule: ADAM,
        learning_rate: 0.005,
        batch: 128,
        epochs: 3,
        floor: 0.73,
    },
    Case {
        model: "ncf",
        url: "synthetic://ncf?users=200&items=100&groups=10&seed=5",
        examples: (20_000, 20_000),
        hyper: &[
            ("num_users", Small::Int(200)),
            ("num_items", Small::Int(100)),
            ("fc_layers", Small::Ints(&[32, 16, 8])),
        ],
        rule: ADAM,
        learning_rate: 0.01,
        batch: 250,
        epochs: 3,
        // One right item among 100: a list of 10 holds it by chance one time in ten.
        floor: 0.60,
    },
    Case {
        model: "slot_dnn",
        url: MANY_IDS,
        examples: (12_000, 4_000),
        hyper: &[
            ("slot_num", Small::Int(8)),
            ("dict_dim", Small::Int(801)),
            ("emb_dim", Small::Int(8)),
            ("layer_sizes", Small::Ints(&[32, 16])),
        ],
        rule: ADAM,
        learning_rate: 0.003,
        batch: 128,
        epochs: 3,
        floor: 0.66,
    },
    click_case("wide_deep", click!(8, "fc_sizes" = Small::Ints(&[32, 16])), ADAM, 0.003, 0.76),
    Case {
        model: "word2vec",
        url: "synthetic://corpus?pairs=8&topic_words=4&fillers=20&negatives=5&window=5&seed=5",
        examples: (4_000, 1),
        hyper: &[
            ("sparse_feature_number", Small::Int(200)),
            ("sparse_feature_dim", Small::Int(16)),
            ("with_shuffle_batch", Small::Bool(false)),
        ],
        rule: SGD,
        learning_rate: 4.0,
        batch: 64,
        epochs: 1,
        // One right answer of four among 77 words: 0.05 by chance.
        floor: 0.70,
    },
    click_case(
        "xdeepfm",
        click!(
            8,
            "layer_sizes_dnn" = Small::Ints(&[32, 16]),
            "layer_sizes_cin" = Small::Ints(&[8, 8])
        ),
        ADAM,
        0.003,
        0.80,
    ),
];

pub(crate) fn case(model: &str) -> &'static Case {
    CASES.iter().find(|c| c.model == model).unwrap_or_else(|| panic!("no case for '{model}'"))
}

impl Case {
    pub(crate) fn zoo_model(&self) -> &'static Model {
        zoo::find(self.model).unwrap()
    }

    pub(crate) fn hyper(&self) -> Hyper {
        let mut h = Hyper::defaults(self.zoo_model().keys);
        for (name, value) in self.hyper {
            let value = match *value {
                Small::Int(x) => HyperValue::Int(x),
                Small::Ints(x) => HyperValue::Ints(x.to_vec()),
                Small::Bool(x) => HyperValue::Bool(x),
                Small::Str(x) => HyperValue::Str(x.to_string()),
            };
            h.set(name, value).unwrap();
        }
        h
    }

    /// Without what needs the whole batch at once or has no kernel for devices: `dlrm` normalises
    /// over the batch, `dcn_v2` drops elements.
    pub(crate) fn plain_hyper(&self) -> Hyper {
        let mut h = self.hyper();
        match self.model {
            "dlrm" => h.set("batch_norm", HyperValue::Bool(false)).unwrap(),
            "dcn_v2" => h.set("dropout_rate", HyperValue::Float(0.0)).unwrap(),
            _ => {}
        }
        h
    }

    pub(crate) fn train_url(&self) -> String {
        format!("{}&examples={}", self.url, self.examples.0)
    }

    /// Other examples of the same hidden model. `ncf` gets the usual 99 negatives.
    pub(crate) fn test_url(&self) -> String {
        let (train, test) = self.examples;
        let negatives = if self.model == "ncf" { "&negatives=99" } else { "" };
        format!("{}&examples={test}&first={}{negatives}", self.url, 10 * train)
    }
}

#[test]
fn every_model_has_a_case() {
    let names: Vec<&str> = CASES.iter().map(|c| c.model).collect();
    let all: Vec<&str> = zoo::all().iter().map(|m| m.name).collect();
    assert_eq!(names, all);
    assert!(all.is_sorted());
}
