//! Update rules against regatta-optim, dense and on rows, over several steps.

use regatta_device::{Arena, Device, Queue, Step};
use regatta_optim::table_rule::{AdagradConfig, AdamConfig};
use regatta_optim::{
    Adadelta, Adagrad, Adam, AdamD2Sum, AdamW, Ftrl, Lamb, LarsMomentum, Momentum, Per, RmsProp,
    RowRule, Rule, Sgd, SharedState, Sum, Summary, TableRule, table_rule,
};

use super::{device, noise};

fn rules() -> Vec<Rule> {
    vec![
        Rule::Sgd(Sgd {}),
        Rule::Sum(Sum {}),
        Rule::Summary(Summary { decay_rate: 0.9 }),
        Rule::Momentum(Momentum::default()),
        Rule::Momentum(Momentum { nesterov: true, ..Momentum::default() }),
        Rule::Adagrad(Adagrad { initial_accumulator: 0.1, ..Adagrad::default() }),
        Rule::Adam(Adam::default()),
        Rule::AdamW(AdamW::default()),
        Rule::RmsProp(RmsProp { momentum: 0.5, ..RmsProp::default() }),
        Rule::RmsProp(RmsProp { centered: true, ..RmsProp::default() }),
        Rule::Adadelta(Adadelta::default()),
        Rule::Ftrl(Ftrl { l1: 0.01, l2: 0.02, ..Ftrl::default() }),
        Rule::Ftrl(Ftrl { lr_power: -0.7, ..Ftrl::default() }),
        Rule::AdamD2Sum(AdamD2Sum::default()),
    ]
}

fn assert_near(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (have, want)) in got.iter().zip(want).enumerate() {
        let near = (have - want).abs() <= 2e-6 * want.abs().max(1.0);
        assert!(near, "{what}: float {i} is {have}, not {want}");
    }
}

const STEPS: u64 = 3;

#[test]
fn dense_parameters_move_as_on_the_cpu() {
    let Some(device) = device() else { return };
    for rule in rules() {
        for n in [1_usize, 3, 128, 1001] {
            dense(&device, &rule, n);
        }
    }
}

fn dense(device: &Device, rule: &Rule, n: usize) {
    let mut w = noise(1, n);
    let own: Vec<_> = rule.states().into_iter().collect();
    let mut states: Vec<Vec<f32>> =
        own.iter().map(|state| vec![state.initial; state.len_for(n)]).collect();
    let w_on = device.buffer_of(&w).unwrap();
    let states_on: Vec<_> = own
        .iter()
        .zip(&states)
        .filter(|(desc, _)| desc.per == Per::Element)
        .map(|(_, state)| device.buffer_of(state).unwrap())
        .collect();
    let mut shared = rule.shared_state();
    for t in 0..STEPS {
        let g = noise(10 + t, n);
        let step = Step::new(rule, 0.05, &shared).unwrap();
        let g_on = device.buffer_of(&g).unwrap();
        let refs: Vec<_> = states_on.iter().collect();
        device.update_dense(Queue::Compute, &step, (&w_on, &g_on), &refs, n as u64).unwrap();
        rule.advance(&mut shared);
        rule.update(0.05, &mut w, &g, states.iter_mut().collect());
    }
    let got = device.read_floats(Queue::Compute, &w_on, 0, n).unwrap();
    assert_near(rule.name(), &got, &w);
    for (state_on, state) in states_on.iter().zip(&states) {
        let got = device.read_floats(Queue::Compute, state_on, 0, n).unwrap();
        assert_near(rule.name(), &got, state);
    }
}

#[test]
fn rows_move_as_on_the_cpu() {
    let Some(device) = device() else { return };
    for rule in rules() {
        for dim in [1, 9, 16] {
            let step = |shared: &SharedState| Step::new(&rule, 0.05, shared).unwrap();
            rows(&device, rule.name(), &rule, dim, &step);
        }
    }
}

#[test]
fn rules_of_tables_move_rows_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let tight = Some([-0.5, 0.5]);
    let adagrad = AdagradConfig { weight_bounds: tight, ..AdagradConfig::default() };
    let adam = AdamConfig { weight_bounds: tight, ..AdamConfig::default() };
    let rules = [
        TableRule::Naive(table_rule::Naive { weight_bounds: tight, ..Default::default() }),
        TableRule::Adagrad(table_rule::Adagrad(adagrad)),
        TableRule::StdAdagrad(table_rule::StdAdagrad(adagrad)),
        TableRule::AdagradV2(table_rule::AdagradV2(AdagradConfig::default())),
        TableRule::Adam(table_rule::Adam(AdamConfig::default())),
        TableRule::Adam(table_rule::Adam(adam)),
        TableRule::SharedAdam(table_rule::SharedAdam(adam)),
    ];
    for rule in rules {
        for dim in [1, 9, 16] {
            rows(&device, rule.name(), &rule, dim, &|_| Step::of_table(&rule, 0.05));
        }
    }
}

/// Steps of some rows of an arena, each with other rows; those that are not named rest.
fn rows(
    device: &Device,
    name: &str,
    rule: &impl RowRule,
    dim: usize,
    step: &dyn Fn(&SharedState) -> Step,
) {
    let (n_slots, stride) = (40, dim + rule.row_state_len(dim) + 1);
    let mut table = noise(2, n_slots * stride);
    for row in table.chunks_mut(stride) {
        rule.init_row_state(dim, &mut row[dim..stride - 1]);
    }
    let arena = Arena::new(device, n_slots as u64, stride as u32, dim as u32).unwrap();
    device.write_values(Queue::Compute, &arena.buffer, 0, &table).unwrap();
    let mut shared = rule.shared_state();
    for t in 0..STEPS {
        let slots: Vec<u32> = (0..13).map(|i| (i * 3 + t as u32) % n_slots as u32).collect();
        let g = noise(20 + t, slots.len() * dim);
        let [slots_on, g_on] = [device.buffer_of(&slots).unwrap(), device.buffer_of(&g).unwrap()];
        let n = slots.len() as u32;
        device.update_rows(Queue::Compute, &step(&shared), &arena, &slots_on, (&g_on, n)).unwrap();
        for (i, &slot) in slots.iter().enumerate() {
            let row = &mut table[slot as usize * stride..][..stride - 1];
            let (w, state) = row.split_at_mut(dim);
            rule.update_row(0.05, &shared, w, &g[i * dim..(i + 1) * dim], state);
        }
        rule.advance(&mut shared);
    }
    let got = device.read_floats(Queue::Compute, &arena.buffer, 0, table.len()).unwrap();
    assert_near(name, &got, &table);
}

#[test]
fn rules_without_a_kernel_are_named() {
    let shared = SharedState::default();
    for rule in [Rule::Lamb(Lamb::default()), Rule::LarsMomentum(LarsMomentum::default())] {
        let error = Step::new(&rule, 0.1, &shared).unwrap_err().to_string();
        assert!(error.contains(&format!("'{}'", rule.name())), "{error}");
    }
    let Some(device) = device() else { return };
    let w = device.alloc(16).unwrap();
    let step = Step::of_table(&TableRule::Naive(table_rule::Naive::default()), 0.1);
    let error = device.update_dense(Queue::Compute, &step, (&w, &w), &[], 4).unwrap_err();
    assert!(error.to_string().contains("rule for rows of tables"), "{error}");
}

#[test]
fn a_step_of_ftrl_without_a_rate_rests() {
    let Some(device) = device() else { return };
    let rule = Rule::Ftrl(Ftrl::default());
    let step = Step::new(&rule, 0.0, &rule.shared_state()).unwrap();
    let w = device.buffer_of(&[1.0_f32, 2.0]).unwrap();
    let before = device.counters().now();
    device.update_dense(Queue::Compute, &step, (&w, &w), &[&w, &w], 2).unwrap();
    assert_eq!(device.counters().now(), before);
}
