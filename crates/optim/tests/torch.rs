//! A logistic regression trained for 100 steps has PyTorch's losses within 1e-5, densely and as one
//! row of a table. `torch/losses.py` made the reference.

use std::collections::BTreeMap;

use regatta_optim::{Adadelta, Adagrad, Adam, AdamW, Momentum, Per, RowRule, Rule, Sgd, StateMut};

const N: usize = 64;
const DIM: usize = 9;

fn x(i: usize, j: usize) -> f64 {
    ((7 * i + 13 * j) % 17) as f64 / 8.0 - 1.0
}

fn y(i: usize) -> f64 {
    if 5 * i % 11 > 5 { 1.0 } else { 0.0 }
}

fn first_weights() -> Vec<f32> {
    (0..DIM).map(|j| if j % 2 == 0 { 0.3 } else { -0.3 }).collect()
}

/// Mean binary cross entropy and its gradient.
fn loss_and_gradient(w: &[f32]) -> (f64, Vec<f32>) {
    let mut loss = 0.0;
    let mut gradient = [0.0; DIM];
    for i in 0..N {
        let logit: f64 = (0..DIM).map(|j| x(i, j) * f64::from(w[j])).sum();
        loss += logit.max(0.0) - logit * y(i) + (-logit.abs()).exp().ln_1p();
        let error = 1.0 / (1.0 + (-logit).exp()) - y(i);
        (0..DIM).for_each(|j| gradient[j] += error * x(i, j));
    }
    (loss / N as f64, gradient.iter().map(|g| (g / N as f64) as f32).collect())
}

fn rules() -> [(&'static str, f32, Rule); 7] {
    let nesterov = Momentum { nesterov: true, ..Momentum::default() };
    [
        ("sgd", 0.5, Rule::Sgd(Sgd {})),
        ("momentum", 0.1, Rule::Momentum(Momentum::default())),
        ("nesterov", 0.1, Rule::Momentum(nesterov)),
        ("adagrad", 0.1, Rule::Adagrad(Adagrad::default())),
        ("adam", 0.01, Rule::Adam(Adam::default())),
        ("adamw", 0.01, Rule::AdamW(AdamW::default())),
        ("adadelta", 1.0, Rule::Adadelta(Adadelta::default())),
    ]
}

#[track_caller]
fn check(name: &str, mut step: impl FnMut(&mut [f32], &[f32])) {
    let reference: BTreeMap<String, Vec<f64>> =
        serde_json::from_str(include_str!("torch/losses.json")).unwrap();
    let mut w = first_weights();
    for (t, expected) in reference[name].iter().enumerate() {
        let (loss, gradient) = loss_and_gradient(&w);
        assert!((loss - expected).abs() < 1e-5, "{name}, step {t}: {loss}, PyTorch {expected}");
        step(&mut w, &gradient);
    }
    assert_eq!(reference[name].len(), 100);
}

#[test]
fn dense_parameters_have_the_losses_of_pytorch() {
    for (name, lr, rule) in rules() {
        let mut states: Vec<Vec<f32>> =
            rule.states().iter().map(|s| vec![s.initial; s.len_for(DIM)]).collect();
        check(name, |w, g| rule.update(lr, w, g, states.iter_mut().collect::<StateMut>()));
    }
}

#[test]
fn table_rows_have_the_losses_of_pytorch() {
    for (name, lr, rule) in rules() {
        let mut state = vec![0.0; rule.row_state_len(DIM)];
        rule.init_row_state(DIM, &mut state);
        let mut shared = rule.shared_state();
        check(name, |w, g| {
            rule.update_row(lr, &shared, w, g, &mut state);
            rule.advance(&mut shared);
        });
    }
}

#[test]
fn adam_describes_its_states() {
    let states = Rule::Adam(Adam::default()).states();
    let names: Vec<_> = states.iter().map(|s| (s.name, s.per, s.initial)).collect();
    let expected = [
        ("moment1", Per::Element, 0.0),
        ("moment2", Per::Element, 0.0),
        ("beta1_pow", Per::Scalar, 0.9),
        ("beta2_pow", Per::Scalar, 0.999),
    ];
    assert_eq!(names, expected);
}
