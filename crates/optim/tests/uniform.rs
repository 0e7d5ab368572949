//! What must hold for every rule, whatever its formula: dense, row by row and many rows at once are
//! the same arithmetic, and no state is touched that does not belong to the row.

use proptest::prelude::*;
use regatta_optim::table_rule::{AdagradV2, Naive, SharedAdam, StdAdagrad};
use regatta_optim::{
    Adadelta, Adagrad, Adam, AdamD2Sum, AdamW, Ftrl, Kernel, Lamb, LarsMomentum, Momentum, Per,
    RmsProp, RowLoop, RowRule, RowUpdater, Rule, Sgd, StateMut, Sum, Summary, TableRule,
    table_rule,
};

fn rules() -> Vec<Rule> {
    vec![
        Rule::Sgd(Sgd::default()),
        Rule::Momentum(Momentum::default()),
        Rule::Adagrad(Adagrad { initial_accumulator: 0.1, ..Adagrad::default() }),
        Rule::Adam(Adam::default()),
        Rule::AdamW(AdamW::default()),
        Rule::RmsProp(RmsProp { centered: true, momentum: 0.5, ..RmsProp::default() }),
        Rule::Adadelta(Adadelta::default()),
        Rule::Ftrl(Ftrl::default()),
        Rule::Lamb(Lamb::default()),
        Rule::LarsMomentum(LarsMomentum::default()),
        Rule::AdamD2Sum(AdamD2Sum::default()),
        Rule::Sum(Sum::default()),
        Rule::Summary(Summary::default()),
    ]
}

fn table_rules() -> Vec<TableRule> {
    vec![
        TableRule::Naive(Naive::default()),
        TableRule::Adagrad(table_rule::Adagrad::default()),
        TableRule::StdAdagrad(StdAdagrad::default()),
        TableRule::AdagradV2(AdagradV2::default()),
        TableRule::Adam(table_rule::Adam::default()),
        TableRule::SharedAdam(SharedAdam::default()),
    ]
}

/// Rows `[w | state]` in one slab, as a table keeps them; updates those named by `slots`.
struct SlabRows<'a> {
    slab: &'a mut [f32],
    stride: usize,
    slots: &'a [usize],
    gradients: &'a [f32],
    n: usize,
}

impl RowLoop for SlabRows<'_> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        for (&slot, g) in self.slots.iter().zip(self.gradients.chunks_exact(self.n)) {
            let row = &mut self.slab[slot * self.stride..][..self.stride];
            let (w, state) = row.split_at_mut(self.n);
            update.row_scaled(2.0, w, g, state);
        }
    }
}

/// Updates `slots` of a slab of `n_rows` in one loop, and again row by row, and compares.
fn check_rows(rule: &impl RowRule, n: usize, n_rows: usize, slots: &[usize], gradients: &[f32]) {
    let stride = n + rule.row_state_len(n);
    let mut slab = vec![0.5; n_rows * stride];
    for row in slab.chunks_exact_mut(stride) {
        rule.init_row_state(n, &mut row[n..]);
    }
    let before = slab.clone();
    let shared = rule.shared_after(3);

    let mut expected = slab.clone();
    for (&slot, g) in slots.iter().zip(gradients.chunks_exact(n)) {
        let (w, state) = expected[slot * stride..][..stride].split_at_mut(n);
        rule.update_row_scaled(0.1, 2.0, &shared, w, g, state);
    }

    rule.run_rows(0.1, &shared, SlabRows { slab: &mut slab, stride, slots, gradients, n });
    assert_eq!(slab, expected);
    for slot in (0..n_rows).filter(|slot| !slots.contains(slot)) {
        let row = slot * stride..(slot + 1) * stride;
        assert_eq!(slab[row.clone()], before[row], "row {slot} was not named");
    }
    assert!(slab.iter().all(|x| x.is_finite()));
}

proptest! {
    #[test]
    fn many_rows_are_one_row_many_times(
        n in 1usize..40,
        slots in prop::collection::vec(0usize..6, 0..8),
        seed in prop::collection::vec(-3.0f32..3.0, 320),
    ) {
        let gradients = &seed[..n * slots.len()];
        for rule in rules() {
            check_rows(&rule, n, 6, &slots, gradients);
        }
        for rule in table_rules() {
            check_rows(&rule, n, 6, &slots, gradients);
        }
    }

    #[test]
    fn a_row_is_a_small_dense_parameter(
        n in 1usize..40,
        gradients in prop::collection::vec(prop::collection::vec(-3.0f32..3.0, 40), 3),
    ) {
        for rule in rules() {
            let mut dense: Vec<Vec<f32>> =
                rule.states().iter().map(|s| vec![s.initial; s.len_for(n)]).collect();
            let mut row = vec![f32::NAN; rule.row_state_len(n)];
            rule.init_row_state(n, &mut row);
            let mut shared = rule.shared_state();
            prop_assert_eq!(&dense.concat(), &[&row, &*shared.values_mut()].concat());

            let (mut dense_w, mut row_w) = (vec![0.5; n], vec![0.5; n]);
            for g in &gradients {
                rule.update(0.1, &mut dense_w, &g[..n], dense.iter_mut().collect::<StateMut>());
                rule.update_row(0.1, &shared, &mut row_w, &g[..n], &mut row);
                rule.advance(&mut shared);
            }
            prop_assert_eq!(&dense_w, &row_w);
            prop_assert_eq!(&dense.concat(), &[&row, &*shared.values_mut()].concat());
            prop_assert_eq!(shared, rule.shared_after(3));
        }
    }
}

#[test]
fn states_per_element_come_first_and_defaults_are_valid() {
    let check = |states: Vec<regatta_optim::StateDesc>| {
        let order = |per| [Per::Element, Per::Row, Per::Scalar].iter().position(|p| *p == per);
        assert!(states.is_sorted_by_key(|s| order(s.per)), "{states:?}");
    };
    for rule in rules() {
        rule.validate().unwrap();
        check(rule.states());
        let text = serde_json::to_string(&rule).unwrap();
        assert!(text.starts_with(&format!(r#"{{"rule":"{}""#, rule.name())), "{text}");
        assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), rule, "{text}");
    }
    for rule in table_rules() {
        rule.validate().unwrap();
        check(rule.states());
        let text = serde_json::to_string(&rule).unwrap();
        assert!(text.starts_with(&format!(r#"{{"rule":"{}""#, rule.name())), "{text}");
        assert_eq!(serde_json::from_str::<TableRule>(&text).unwrap(), rule, "{text}");
    }
}

#[test]
fn state_sizes_are_those_of_paddle() {
    let sizes: Vec<usize> = table_rules().iter().map(|rule| rule.row_state_len(8)).collect();
    assert_eq!(sizes, [0, 1, 8, 1, 18, 4]);
}

#[test]
#[should_panic(expected = "longer than its rule needs")]
fn a_row_state_of_another_rule_is_refused() {
    let rule = Rule::Sgd(Sgd {});
    rule.update_row(0.1, &rule.shared_state(), &mut [0.0; 2], &[0.0; 2], &mut [0.0; 2]);
}
