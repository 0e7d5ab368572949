//! PaddleRec's own networks in PaddlePaddle: the same parameters and batches give the same losses,
//! and initial values are drawn from the same distributions. What was recorded is described in
//! bench/reference/README.md.

use regatta_data::Schema;
use regatta_exec::Scope;
use regatta_optim::{Adam, Rule, Sgd};
use regatta_passes::Optimizer;
use regatta_rec::zoo::{self, Model};
use regatta_rec::{Hyper, HyperValue};
use regatta_tensor::{Data, Ragged, Tensor, Value};
use serde_json::Value as Json;

use crate::train::Trainer;

/// How far a loss may be from PaddlePaddle's, relative to it.
const TOLERANCE: f64 = 1e-5;

/// splitmix64, as the reference uses it.
struct Uniform(u64);

impl Uniform {
    /// A number of 24 bits.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        regatta_tensor::rng::mix(self.0) >> 40
    }

    /// A number in `[-1, 1)`.
    fn float(&mut self) -> f32 {
        (self.next() as i64 - (1 << 23)) as f32 / (1 << 23) as f32
    }
}

struct Reference(Json);

impl Reference {
    fn read() -> Reference {
        let text = include_str!("../../../../bench/reference/paddlerec.json");
        Reference(serde_json::from_str(text).unwrap())
    }

    fn number(&self, key: &str) -> usize {
        self.0[key].as_u64().unwrap() as usize
    }

    fn of(&self, model: &Model) -> &Json {
        let found = &self.0["models"][model.name];
        assert!(found.is_object(), "nothing was recorded for {}", model.name);
        found
    }
}

fn hyper(model: &Model, recorded: &Json) -> Hyper {
    let mut hyper = Hyper::defaults(model.keys);
    for (name, value) in recorded["hyper"].as_object().unwrap() {
        let ints = |list: &Vec<Json>| list.iter().map(|x| x.as_i64().unwrap()).collect();
        let strs = |list: &Vec<Json>| list.iter().map(|x| x.as_str().unwrap().into()).collect();
        let value = match value {
            Json::Bool(x) => HyperValue::Bool(*x),
            Json::String(x) => HyperValue::Str(x.clone()),
            Json::Array(list) if list[0].is_string() => HyperValue::Strs(strs(list)),
            Json::Array(list) => HyperValue::Ints(ints(list)),
            number => match number.as_i64() {
                Some(x) => HyperValue::Int(x),
                None => HyperValue::Float(number.as_f64().unwrap()),
            },
        };
        hyper.set(name, value).unwrap();
    }
    hyper
}

fn optimizer(recorded: &Json) -> Optimizer {
    let rule = match recorded["optimizer"]["class"].as_str().unwrap() {
        "Adam" => Rule::Adam(Adam::default()),
        "SGD" => Rule::Sgd(Sgd {}),
        other => panic!("no test with {other}"),
    };
    Optimizer::new(rule, recorded["optimizer"]["learning_rate"].as_f64().unwrap())
}

fn trainer(model: &Model, recorded: &Json, seed: u64) -> Trainer {
    Trainer::seeded(model, &hyper(model, recorded), optimizer(recorded), 1, seed)
}

fn shape(parameter: &Json) -> Vec<usize> {
    parameter["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Gives every parameter its value. Those of batch norm begin alike on both sides.
fn set_parameters(trainer: &mut Trainer, recorded: &Json, seed: u64) {
    let block = trainer.forward.main.block();
    let mut left: Vec<String> = block.params().map(|p| p.name.clone()).collect();
    let mut draw = Uniform(1000 + seed);
    for parameter in recorded["parameters"].as_array().unwrap() {
        let (name, shape) = (parameter["name"].as_str().unwrap(), shape(parameter));
        let scale = parameter["scale"].as_f64().unwrap() as f32;
        assert_eq!(trainer.scope.get(name).unwrap().shape(), shape, "{name}");
        let values = (0..shape.iter().product()).map(|_| draw.float() * scale).collect();
        trainer.scope.set(name, Tensor::from_f32(&shape, values).unwrap());
        left.retain(|other| other != name);
    }
    left.retain(|name| !name.starts_with("batch_norm"));
    assert!(left.is_empty(), "nothing is recorded for {left:?}");
}

/// One input of a batch.
fn input(spec: &Json, schema: &Schema, draw: &mut Uniform, rows: usize, step: usize) -> Value {
    let width = spec["width"].as_u64().unwrap() as usize;
    let below = spec["below"].as_u64().unwrap_or(2);
    let name = spec["name"].as_str().unwrap();
    assert!(schema.slots().iter().any(|slot| slot.name == name), "no input {name}");
    let n = rows * width;
    let mut id = || 1 + draw.next() % (below - 1);
    match spec["kind"].as_str().unwrap() {
        "label" => {
            let labels = (0..n).map(|_| (draw.next() & 1) as i64).collect();
            Tensor::from_i64(&[rows, width], labels).unwrap().into()
        }
        "dense" => {
            let floats = (0..n).map(|_| draw.float()).collect();
            Tensor::from_f32(&[rows, width], floats).unwrap().into()
        }
        "ids" => Tensor::from_u64(&[rows, width], (0..n).map(|_| id()).collect()).unwrap().into(),
        "ragged" => {
            let (mut ids, mut offsets) = (Vec::new(), vec![0]);
            for row in 0..rows {
                let all: Vec<u64> = (0..width).map(|_| id()).collect();
                ids.extend(&all[..1 + (row + step) % width]);
                offsets.push(ids.len() as u32);
            }
            Ragged::new(Data::U64(ids), offsets).unwrap().into()
        }
        other => panic!("no input is {other}"),
    }
}

/// The losses of a model with the parameters and batches of a seed.
fn losses(reference: &Reference, model: &Model, seed: u64) -> Vec<f64> {
    let recorded = reference.of(model);
    let mut trainer = trainer(model, recorded, 7);
    set_parameters(&mut trainer, recorded, seed);
    let schema = (model.schema)(&hyper(model, recorded)).unwrap();
    let loss = trainer.net.loss.name().to_string();
    let mut draw = Uniform(seed);
    let steps = 0..reference.number("steps");
    let steps = steps.map(|step| {
        let rows = reference.number("batch");
        let inputs: Vec<(&str, Value)> = recorded["inputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|spec| {
                let name = spec["name"].as_str().unwrap();
                (name, input(spec, &schema, &mut draw, rows, step))
            })
            .collect();
        let feeds: Vec<(&str, &Value)> = inputs.iter().map(|(name, v)| (*name, v)).collect();
        f64::from(trainer.step_feeding(&feeds, &[&loss])[0].f32()[0])
    });
    steps.collect()
}

#[test]
fn losses_are_those_of_paddlerecs_networks() {
    let reference = Reference::read();
    let mut apart = Vec::new();
    for model in zoo::all() {
        for (seed, want) in reference.of(model)["losses"].as_object().unwrap() {
            let seed: u64 = seed.parse().unwrap();
            let got = losses(&reference, model, seed);
            let want: Vec<f64> = want
                .as_array()
                .unwrap()
                .iter()
                .map(|text| text.as_str().unwrap().parse().unwrap())
                .collect();
            assert!(want.len() == got.len() && want.len() >= 10, "{}", model.name);
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / b.abs());
            let worst = worst.fold(0.0, f64::max);
            println!("{} seed {seed}: {worst:.1e}", model.name);
            if worst.is_nan() || worst > TOLERANCE {
                apart.push(format!("{} seed {seed}: {worst:.1e}\n{got:?}\n{want:?}", model.name));
            }
        }
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
}

/// What numbers are like.
struct Summary {
    mean: f64,
    std: f64,
    largest: f64,
}

fn summary(values: &[f32]) -> Summary {
    let n = values.len() as f64;
    let values = || values.iter().map(|x| f64::from(*x));
    let mean = values().sum::<f64>() / n;
    let std = (values().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt();
    Summary { mean, std, largest: values().fold(0.0, |a, x| a.max(x.abs())) }
}

/// The initial values of a parameter, without the row of padding.
fn initial(scope: &Scope, parameter: &Json) -> Vec<f32> {
    let value = scope.get(parameter["name"].as_str().unwrap()).unwrap();
    let row: usize = shape(parameter)[1..].iter().product();
    let skipped = parameter["padding"].as_u64().unwrap_or(0) as usize * row;
    value.f32()[skipped..].to_vec()
}

/// The statistics of samples of one distribution differ by chance: by five standard errors at most.
fn compare(what: &str, got: &Summary, want: &Summary, n: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let n = n as f64;
    let mut check = |name: &str, a: f64, b: f64, by: f64| {
        if (a - b).abs() > by + 1e-4 * b.abs() {
            wrong.push(format!("{what}: {name} is {a:.4}, there it is {b:.4} (by {by:.4})"));
        }
    };
    check("mean", got.mean, want.mean, 5.0 * want.std * (2.0 / n).sqrt());
    check("standard deviation", got.std, want.std, 5.0 * want.std / n.sqrt());
    // The largest of many tells a uniform distribution (1.7) from a truncated normal one (2.3) and
    // that from a normal one (above 2.8).
    if n >= 1000.0 && want.std > 0.0 {
        let of = |s: &Summary| (s.largest / s.std).min(2.8);
        check("largest number over standard deviation", of(got), of(want), 0.2);
    }
    wrong
}

#[test]
fn initial_values_have_the_distributions_of_paddlerecs() {
    let reference = Reference::read();
    let mut wrong = Vec::new();
    for model in zoo::all() {
        let recorded = reference.of(model);
        let seeds = 1..=reference.number("initial_seeds") as u64;
        let scopes: Vec<Scope> = seeds.map(|s| trainer(model, recorded, s).scope).collect();
        for parameter in recorded["parameters"].as_array().unwrap() {
            let name = parameter["name"].as_str().unwrap();
            // Servers make its rows there.
            if (model.name, name) == ("slot_dnn", "SparseFeatFactors") {
                continue;
            }
            let values: Vec<f32> = scopes.iter().flat_map(|s| initial(s, parameter)).collect();
            let of = |key: &str| -> f64 {
                recorded["initial"][name][key].as_str().unwrap().parse().unwrap()
            };
            let want = Summary { mean: of("mean"), std: of("std"), largest: of("largest") };
            let what = format!("{} {name}", model.name);
            wrong.extend(compare(&what, &summary(&values), &want, values.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
