//! Pull, push, admission and padding.

use regatta_table::{
    Admission, Contribution, Error, Inspection, PullMode, SaveMode, Scope, Scratch, SparseConfig,
    SparseTable,
};

use crate::{pull, random_config, sgd_config};

#[test]
fn first_values_do_not_depend_on_order_shards_or_company() {
    let keys: Vec<u64> = (0..500).map(|i| i * i * 1_000_003).collect();
    let whole = SparseTable::new(random_config(5)).unwrap();
    let wanted = pull(&whole, &keys, PullMode::Train);
    for n_shards in [1, 8, 128] {
        let config = SparseConfig { n_shards, ..random_config(5) };
        // Two "servers" share the keys, and see them in another order.
        for server in 0..2 {
            let table = SparseTable::new(config.clone()).unwrap();
            for (i, key) in keys.iter().enumerate().rev().filter(|(i, _)| i % 2 == server) {
                assert_eq!(pull(&table, &[*key], PullMode::Train), wanted[i * 5..i * 5 + 5]);
            }
        }
    }
}

#[test]
fn test_pulls_create_and_count_nothing() {
    let admission = Admission::CountFilter(2);
    let table = SparseTable::new(SparseConfig { admission, ..random_config(2) }).unwrap();
    for _ in 0..5 {
        assert_eq!(pull(&table, &[1, 2], PullMode::Test), [0.0; 4]);
    }
    assert_eq!(table.inspect(1).unwrap(), Inspection::Absent);
    let stats = table.stats().unwrap();
    assert_eq!((stats.rows, stats.candidates, stats.pulls, stats.hits), (0, 0, 10, 0));
}

#[test]
fn ids_are_admitted_at_their_nth_appearance() {
    let admission = Admission::CountFilter(3);
    let table = SparseTable::new(SparseConfig { admission, ..random_config(2) }).unwrap();
    let mut scratch = Scratch::default();
    assert_eq!(pull(&table, &[5], PullMode::Train), [0.0; 2]);
    let counts = table.push(&[5], &[1.0; 2], 0.1, &mut scratch).unwrap();
    assert_eq!((counts.updated, counts.ignored), (0, 1), "not admitted: not updated");
    let candidate = Inspection::Candidate { appearances: 1, unseen_days: 0 };
    assert_eq!(table.inspect(5).unwrap(), candidate);
    // Both appearances of this request count before it is answered.
    let got = pull(&table, &[5, 5], PullMode::Train);
    assert_eq!(got[..2], got[2..]);
    assert_ne!(got[..2], [0.0; 2]);
    // A client that sends each key once says how often it appeared.
    assert_ne!(pull(&table, &[6], PullMode::TrainCounted(&[3])), [0.0; 2]);
    let stats = table.stats().unwrap();
    assert_eq!((stats.created, stats.admitted), (2, 1));
}

#[test]
fn ids_are_admitted_with_the_given_probability() {
    let admission = Admission::Probability(0.25);
    let table = SparseTable::new(SparseConfig { admission, ..random_config(1) }).unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    pull(&table, &keys, PullMode::Train);
    let first = table.stats().unwrap().rows as f64 / 20_000.0;
    assert!((first - 0.25).abs() < 0.01, "{first}");
    pull(&table, &keys, PullMode::Train);
    let second = table.stats().unwrap().rows as f64 / 20_000.0;
    assert!((second - (1.0 - 0.75 * 0.75)).abs() < 0.01, "{second}");
}

#[test]
fn the_padding_id_is_zeros_for_ever() {
    let table =
        SparseTable::new(SparseConfig { padding_idx: Some(0), ..random_config(2) }).unwrap();
    let got = pull(&table, &[0, 1, 0], PullMode::Train);
    assert_eq!((&got[..2], &got[4..]), (&[0.0; 2][..], &[0.0; 2][..]));
    assert_ne!(got[2..4], [0.0; 2]);
    let mut scratch = Scratch::default();
    let counts = table.push(&[0, 1], &[9.0, 9.0, 0.5, 0.5], 1.0, &mut scratch).unwrap();
    assert_eq!((counts.updated, counts.ignored), (1, 1));
    let after = pull(&table, &[0, 1], PullMode::Test);
    assert_eq!(after[..2], [0.0; 2]);
    assert_eq!(after[2..], [got[2] - 0.5, got[3] - 0.5]);
    assert_eq!(table.inspect(0).unwrap(), Inspection::Padding);
    assert_eq!(table.n_rows().unwrap(), 1);
}

#[test]
fn the_sum_of_equal_keys_is_taken_in_order() {
    let table = SparseTable::new(sgd_config(1)).unwrap();
    pull(&table, &[3, 4], PullMode::Train);
    // In this order the one is lost in 1e8; in another it would not be.
    let parts: [(&[u64], &[f32]); 3] = [(&[4, 3], &[1e8, 2.0]), (&[4], &[1.0]), (&[4], &[-1e8])];
    let parts = parts.map(|(keys, values)| Contribution { weight: 1.0, keys, values });
    let step = table.begin_step();
    table.push_partition(&step, &parts, 1.0, (0, 1), &mut Scratch::default()).unwrap();
    assert_eq!(pull(&table, &[3, 4], PullMode::Test), [-2.0, 0.0]);
}

#[test]
fn slices_of_the_wrong_length_are_refused() {
    let table = SparseTable::new(sgd_config(2)).unwrap();
    let mut scratch = Scratch::default();
    let error = table.pull(&[1, 2], &mut [0.0; 3], PullMode::Train, &mut scratch).unwrap_err();
    assert_eq!(error.to_string(), "table 1: output of a pull has 3 values, expected 4");
    let error = table.push(&[1], &[0.0], 0.1, &mut scratch).unwrap_err();
    assert!(matches!(error, Error::Length { what: "values of a push", .. }));
    let mode = PullMode::TrainCounted(&[1]);
    assert!(table.pull(&[1, 2], &mut [0.0; 4], mode, &mut scratch).is_err());
    assert_eq!(table.stats().unwrap().rows, 0, "nothing happened");
    assert!(table.pull(&[], &mut [], PullMode::Train, &mut scratch).is_ok());
}

#[test]
fn inspection_names_all_parts() {
    let rule = regatta_optim::Rule::Adam(regatta_optim::Adam::default());
    let plain = regatta_table::PlainConfig::new(3, rule);
    let accessor = regatta_table::Accessor::Plain(plain);
    let table = SparseTable::new(SparseConfig { accessor, ..sgd_config(3) }).unwrap();
    pull(&table, &[8], PullMode::Train);
    table.push(&[8], &[1.0, 2.0, 3.0], 0.5, &mut Scratch::default()).unwrap();
    table.end_day();
    let Inspection::Row(row) = table.inspect(8).unwrap() else { panic!("a row") };
    assert_eq!((row.unseen_days, row.changed, row.score), (1, true, None));
    let names: Vec<&str> = row.parts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["weight", "moment1", "moment2"]);
    let moment1 = row.part("moment1").unwrap();
    assert!(moment1.iter().zip([0.1, 0.2, 0.3]).all(|(a, b)| (a - b).abs() < 1e-6));
    assert_eq!(row.part("nonsense"), None);
}

#[test]
fn any_row_width_works() {
    for dim in [1, 2, 7, 8, 9, 15, 16, 17, 64, 1000] {
        let table = SparseTable::new(random_config(dim)).unwrap();
        let keys: Vec<u64> = (0..300).collect();
        let before = pull(&table, &keys, PullMode::Train);
        let gradients: Vec<f32> = (0..300 * dim).map(|i| (i % 17) as f32).collect();
        table.push(&keys, &gradients, 1.0, &mut Scratch::default()).unwrap();
        let after = pull(&table, &keys, PullMode::Test);
        let moved = before.iter().zip(&gradients).map(|(w, g)| w - g);
        assert!(moved.eq(after.iter().copied()), "dim {dim}");
    }
}

#[test]
fn partitions_of_a_step_make_the_step() {
    use regatta_optim::{Adam, Rule};
    use regatta_table::{Accessor, PlainConfig, TableId};
    let keys: Vec<u64> = (0..300).collect();
    // Both contribute to the keys from 100 to 199.
    let parts = [(0.25, &keys[..200]), (0.75, &keys[100..])];
    let value = |part: usize, key: u64| (key as f32 - 150.0) / (10.0 * (part + 1) as f32);
    let values: Vec<Vec<f32>> =
        (0..2).map(|i| parts[i].1.iter().flat_map(|key| [value(i, *key), 1.0]).collect()).collect();
    let contributions: Vec<Contribution<'_>> = (parts.iter().zip(&values))
        .map(|(&(weight, keys), values)| Contribution { weight, keys, values })
        .collect();
    let sums = keys.iter().flat_map(|&key| {
        let of = |i: usize, column: usize| {
            let at = parts[i].1.iter().position(|k| *k == key)?;
            Some(parts[i].0 * values[i][at * 2 + column])
        };
        [0, 1].map(|column| match (of(0, column), of(1, column)) {
            (Some(a), Some(b)) => a + b,
            (a, b) => a.or(b).unwrap_or_default(),
        })
    });
    let sums: Vec<f32> = sums.collect();
    let (mut scratch, lr) = (Scratch::default(), 0.1);
    let plain = PlainConfig::new(2, Rule::Adam(Adam::default()));
    let config = SparseConfig::new(TableId(1), 3, Accessor::Plain(plain));
    let whole = SparseTable::new(config.clone()).unwrap();
    let before = pull(&whole, &keys, PullMode::Train);
    for _ in 0..3 {
        whole.push(&keys, &sums, lr, &mut scratch).unwrap();
    }
    let wanted = pull(&whole, &keys, PullMode::Test);
    assert_ne!(before, wanted);
    for n in [1, 2, 3, 16, 40] {
        for given in
            [&contributions[..], &[Contribution { weight: 1.0, keys: &keys, values: &sums }]]
        {
            let table = SparseTable::new(config.clone()).unwrap();
            pull(&table, &keys, PullMode::Train);
            for _ in 0..3 {
                let step = table.begin_step();
                for partition in 0..n {
                    table.push_partition(&step, given, lr, (partition, n), &mut scratch).unwrap();
                }
            }
            assert_eq!(table.steps(), 3);
            assert_eq!(pull(&table, &keys, PullMode::Test), wanted, "{n} partitions");
        }
    }
    let wrong = [Contribution { weight: 1.0, keys: &keys, values: &sums[1..] }];
    let refused = whole.push_partition(&whole.begin_step(), &wrong, lr, (0, 1), &mut scratch);
    assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}");
}

/// A push uses what the pull of its keys found, unless that is not true any more.
#[test]
fn what_happens_between_pull_and_push_is_noticed() {
    let keys: Vec<u64> = (0..3000).map(|i| i * 7).collect();
    let gradients = vec![0.25; keys.len() * 2];
    type Event = (&'static str, fn(&SparseTable));
    let between: [Event; 8] = [
        ("nothing", |_| ()),
        ("a new day", SparseTable::end_day),
        ("rows go, and their slots are used again", |table| {
            table.end_day();
            table.push(&[0, 7], &[0.0; 4], 1.0, &mut Scratch::default()).unwrap();
            table.shrink(Some(0)).unwrap();
            pull(table, &(0..100).map(|i| i * 7 + 1).collect::<Vec<_>>(), PullMode::Train);
        }),
        ("everything goes", |table| table.clear().unwrap()),
        ("rows come from elsewhere", |table| {
            let rows = table.export(0, SaveMode::All).unwrap();
            let other = SparseTable::new(random_config(2)).unwrap();
            pull(&other, &rows.rows().map(|row| row.key).collect::<Vec<_>>(), PullMode::Train);
            let rows = other.export(0, SaveMode::All).unwrap();
            table.import(rows.rows()).unwrap();
        }),
        ("a save", |table| {
            for shard in 0..table.n_shards() {
                let rows = table.export(shard, SaveMode::Base).unwrap();
                table.saved(&rows.receipt()).unwrap();
            }
        }),
        ("changes are counted anew", |table| table.begin_changes().unwrap()),
        ("many more rows", |table| {
            pull(table, &(100_000..150_000).collect::<Vec<_>>(), PullMode::Train);
        }),
    ];
    for (what, happens) in between {
        let [knows, looks] = [true, false].map(|knows| {
            let table = SparseTable::new(random_config(2)).unwrap();
            table.begin_changes().unwrap();
            let mut scratch = Scratch::default();
            let mut out = vec![0.0; keys.len() * 2];
            table.pull(&keys, &mut out, PullMode::Train, &mut scratch).unwrap();
            assert!(table.reuses_slots(&keys, &scratch));
            happens(&table);
            let scratch = if knows { &mut scratch } else { &mut Scratch::default() };
            let counts = table.push(&keys, &gradients, 0.5, scratch).unwrap();
            let whole = (0..table.n_shards()).flat_map(|shard| {
                let rows = table.export(shard, SaveMode::All).unwrap();
                rows.rows().map(|row| format!("{row:?}")).collect::<Vec<_>>()
            });
            let whole: Vec<String> = whole.collect();
            let (snapshot, mut changes) = (table.snapshot(Scope::Changes).unwrap(), Vec::new());
            let mut exported = table.export_snapshot(&snapshot);
            while exported.next(|row| changes.push(row.key)).unwrap().is_some() {}
            table.end_snapshot(snapshot, true).unwrap();
            (counts, whole, changes)
        });
        assert!(knows == looks, "{what}: {:?} and {:?}", knows.0, looks.0);
    }
}
