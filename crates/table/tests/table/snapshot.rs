//! Saving one moment of a table that goes on, whole or as changes since the last time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use regatta_table::{
    Accessor, Admission, CtrConfig, Error, PullMode, Row, RowBody, SaveMode, Scope, Scratch,
    SnapshotRows, SparseConfig, SparseTable, TableId,
};

use crate::{pull, random_config, tiered};

/// Everything there is to know of a row, with the bits of its words.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    /// Rows that changed, candidates, and days: the day is that of the last push.
    head: (bool, u32),
    stage: u8,
    words: Vec<u32>,
}

type State = BTreeMap<u64, Known>;

fn known(row: &Row<'_>, day: u32) -> (u64, Known) {
    let bits = |words: &[f32]| words.iter().map(|w| w.to_bits()).collect();
    let (stage, words) = match row.body {
        RowBody::Candidate { appearances } => (0, vec![appearances]),
        RowBody::Base(words) => (1, bits(words)),
        RowBody::Extended(words) => (2, bits(words)),
    };
    (row.key, Known { head: (row.changed, day.wrapping_sub(row.unseen_days)), stage, words })
}

fn state(table: &SparseTable) -> State {
    let shards = (0..table.n_shards()).map(|shard| table.export(shard, SaveMode::All).unwrap());
    shards
        .flat_map(|rows| rows.rows().map(|r| known(&r, table.day())).collect::<Vec<_>>())
        .collect()
}

/// Applies the next slice of a snapshot; false at its end.
fn apply(state: &mut State, exported: &mut SnapshotRows<'_>, day: u32) -> bool {
    let mut changed = Vec::new();
    let slice = exported.next(|row| changed.push(known(&row, day))).unwrap();
    let there = slice.is_some();
    slice.into_iter().flat_map(|slice| slice.removed).for_each(|key| {
        state.remove(key);
    });
    state.extend(changed);
    there
}

fn ctr_config() -> SparseConfig {
    let ctr = CtrConfig {
        embedx_threshold: 1.0,
        delete_threshold: 0.2,
        embedx_dim: 2,
        ..CtrConfig::default()
    };
    SparseConfig::new(TableId(1), 3, Accessor::Ctr(ctr))
}

#[derive(Debug, Clone)]
enum Op {
    Pull(Vec<u64>),
    Push(Vec<u64>),
    /// A push of the keys pulled last, as a training step ends.
    PushPulled,
    Shrink(u32),
    EndDay,
    Clear,
    /// A save for serving, which clears marks of rows.
    Serve(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec(0u64..60, 0..12);
    prop_oneof![
        6 => keys().prop_map(Op::Pull),
        4 => keys().prop_map(Op::Push),
        4 => Just(Op::PushPulled),
        1 => (0u32..4).prop_map(Op::Shrink),
        1 => Just(Op::EndDay),
        1 => (0usize..3).prop_map(Op::Serve),
        1 => Just(Op::Clear),
    ]
}

/// Who pulls and pushes: keys pulled last, and the working memory that was used.
#[derive(Default)]
struct Sender {
    pulled: Vec<u64>,
    scratch: Scratch,
}

fn perform(table: &SparseTable, op: &Op, sender: &mut Sender) {
    let gradients = |keys: &[u64]| -> Vec<f32> {
        (0..keys.len() * table.push_width()).map(|i| (i % 7) as f32 * 0.25).collect()
    };
    let Sender { pulled, scratch } = sender;
    match op {
        Op::Pull(keys) => {
            *pulled = keys.clone();
            pulled.sort_unstable();
            pulled.dedup();
            let mut out = vec![0.0; pulled.len() * table.pull_width()];
            table.pull(pulled, &mut out, PullMode::Train, scratch).unwrap();
        }
        Op::Push(keys) => {
            let mut keys = keys.clone();
            keys.sort_unstable();
            keys.dedup();
            table.push(&keys, &gradients(&keys), 0.5, scratch).unwrap();
        }
        Op::PushPulled => {
            table.push(pulled, &gradients(pulled), 0.5, scratch).unwrap();
        }
        Op::Shrink(days) => {
            table.shrink(Some(*days)).unwrap();
        }
        Op::EndDay => table.end_day(),
        Op::Clear => table.clear().unwrap(),
        Op::Serve(mode) => {
            let mode = [SaveMode::Base, SaveMode::Delta, SaveMode::Patch][*mode];
            for shard in 0..table.n_shards() {
                table.saved(&table.export(shard, mode).unwrap().receipt()).unwrap();
            }
        }
    }
}

/// One save: operations before it, those between the shards of its export, and whether it worked.
type Save = (Vec<Op>, Vec<Op>, bool);

fn save() -> impl Strategy<Value = Save> {
    (prop::collection::vec(op(), 0..8), prop::collection::vec(op(), 4..=4), any::<bool>())
}

/// Runs saves against a table of four shards; each must give the moment of its snapshot, and what
/// is stored, put together, must be the table of the last stored moment.
fn check(config: SparseConfig, saves: &[Save]) {
    let table = SparseTable::new(SparseConfig { n_shards: 4, ..config }).unwrap();
    let (mut stored, mut sender) = (None::<State>, Sender::default());
    for (before, during, works) in saves {
        before.iter().for_each(|op| perform(&table, op, &mut sender));
        let whole = Scope::Rows(SaveMode::All);
        let scope = if stored.is_some() { Scope::Changes } else { whole };
        let expected = state(&table);
        let snapshot = table.snapshot(scope).unwrap();
        let mut chain = stored.clone().unwrap_or_default();
        let mut during = during.iter().cycle();
        let mut exported = table.export_snapshot(&snapshot);
        loop {
            during.next().into_iter().for_each(|op| perform(&table, op, &mut sender));
            if !apply(&mut chain, &mut exported, snapshot.day()) {
                break;
            }
        }
        assert_eq!(chain, expected);
        table.end_snapshot(snapshot, *works).unwrap();
        if *works {
            stored = Some(chain);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_chain_of_changes_is_the_table(saves in prop::collection::vec(save(), 1..6)) {
        let admission = Admission::CountFilter(2);
        check(SparseConfig { admission, ..random_config(2) }, &saves);
        check(ctr_config(), &saves);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_chain_of_changes_is_the_tiered_table(saves in prop::collection::vec(save(), 1..6)) {
        for config in [random_config(2), ctr_config()] {
            let (config, _folder) = tiered(config, 4);
            check(config, &saves);
        }
    }
}

/// Shards of several slices, whose rows change, go and come between the slices.
#[test]
fn a_moment_of_large_shards_stays_whole_while_rows_change() {
    for config in [random_config(2), ctr_config()] {
        check_large_shards(config.clone(), 60_000, 8);
        // Nine of ten rows are cold.
        let (config, _folder) = tiered(config, 7_500);
        check_large_shards(config, 150_000, 4);
    }
}

fn check_large_shards(config: SparseConfig, n_keys: u64, least_slices: u64) {
    let table = SparseTable::new(SparseConfig { n_shards: 2, ..config }).unwrap();
    let keys = |first: u64, step: usize| (first..n_keys).step_by(step).collect::<Vec<u64>>();
    let mut chain = State::new();
    let mut sender = Sender::default();
    let mut perform = |table: &SparseTable, op: &Op| perform(table, op, &mut sender);
    for scope in [Scope::Rows(SaveMode::All), Scope::Changes] {
        perform(&table, &Op::Pull(keys(0, 2)));
        perform(&table, &Op::Push(keys(0, 3)));
        perform(&table, &Op::EndDay);
        perform(&table, &Op::Push(keys(0, 5)));
        let expected = state(&table);
        let snapshot = table.snapshot(scope).unwrap();
        let (mut exported, mut n) = (table.export_snapshot(&snapshot), 0);
        while apply(&mut chain, &mut exported, snapshot.day()) {
            n += 1;
            match n {
                3 => perform(&table, &Op::Shrink(0)),
                6 => perform(&table, &Op::Clear),
                _ => perform(&table, &Op::Pull(keys(n, 7))),
            }
            perform(&table, &Op::Push(keys(n, 11)));
        }
        assert!(n >= least_slices, "{n} slices");
        assert!(chain == expected, "{} rows of {}", chain.len(), expected.len());
        table.end_snapshot(snapshot, true).unwrap();
    }
}

#[test]
fn cuts_are_refused_when_they_make_no_sense() {
    let table = SparseTable::new(random_config(2)).unwrap();
    let refusal = |result: Result<_, Error>| result.unwrap_err().to_string();
    let no_base = "table 1: there is no checkpoint from which changes could be counted";
    assert_eq!(refusal(table.snapshot(Scope::Changes)), no_base);
    let snapshot = table.snapshot(Scope::Rows(SaveMode::All)).unwrap();
    let busy = "table 1: another snapshot is open";
    assert_eq!(refusal(table.snapshot(Scope::Rows(SaveMode::All))), busy);
    table.export_snapshot(&snapshot).next(|_| ()).unwrap();
    let again = table.export_snapshot(&snapshot).next(|_| ()).unwrap_err().to_string();
    assert!(again.contains("has been exported"), "{again}");
    table.end_snapshot(snapshot, false).unwrap();
    assert_eq!(refusal(table.snapshot(Scope::Changes)), no_base, "that one was not stored");
    table.begin_changes().unwrap();
    let snapshot = table.snapshot(Scope::Changes).unwrap();
    assert!(table.export_snapshot(&snapshot).next(|row| panic!("{row:?}")).unwrap().is_some());
    table.end_snapshot(snapshot, true).unwrap();
}

#[test]
fn saves_for_serving_leave_the_changes_of_checkpoints_alone() {
    let table = SparseTable::new(random_config(2)).unwrap();
    table.begin_changes().unwrap();
    pull(&table, &[1, 2], PullMode::Train);
    let snapshot = table.snapshot(Scope::Rows(SaveMode::Base)).unwrap();
    table.end_snapshot(snapshot, true).unwrap();
    let snapshot = table.snapshot(Scope::Changes).unwrap();
    let (mut exported, mut n) = (table.export_snapshot(&snapshot), 0);
    while exported.next(|_| n += 1).unwrap().is_some() {}
    assert_eq!(n, 2);
    table.end_snapshot(snapshot, true).unwrap();
}

#[test]
fn modes_have_names_and_the_numbers_of_two_generations() {
    use regatta_table::Generation::{Second, Third};
    for mode in SaveMode::ALL {
        assert_eq!(mode.to_string().parse(), Ok(mode));
        for generation in [Second, Third] {
            if let Some(number) = mode.number(generation) {
                assert_eq!(SaveMode::from_number(generation, number), Ok(mode));
            }
        }
    }
    assert_eq!(SaveMode::from_number(Second, 1), Ok(SaveMode::Base));
    assert_eq!(SaveMode::from_number(Third, 1), Ok(SaveMode::Delta));
    let error = SaveMode::from_number(Third, 4).unwrap_err();
    assert!(error.ends_with("known: 0 (all), 1 (delta), 2 (base), 3 (day), 5 (patch)"), "{error}");
    assert!("dleta".parse::<SaveMode>().unwrap_err().contains("all, base, delta, day or patch"));
}
