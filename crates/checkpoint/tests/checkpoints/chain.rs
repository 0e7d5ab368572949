//! Deltas: a base with any chain of them is the table of the last moment.

use proptest::prelude::*;
use regatta_checkpoint::{BlockBuffer, Checkpoint, CheckpointConfig, CheckpointDir, Kind};
use regatta_table::SparseTable;

use crate::{adam_config, checkpoint, contents, known, load, saved_contents, train};

#[derive(Debug, Clone)]
enum Op {
    Train(u64, u64),
    EndDay,
    Shrink(u32),
    Clear,
    /// Goes on with a table that was loaded from the last checkpoint.
    Restart(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u64..40, 1u64..20).prop_map(|(first, n)| Op::Train(first, n)),
        2 => Just(Op::EndDay),
        2 => (0u32..3).prop_map(Op::Shrink),
        1 => Just(Op::Clear),
        1 => (1usize..4).prop_map(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn base_and_deltas_are_the_same_as_a_full_save(
        steps in prop::collection::vec(prop::collection::vec(op(), 0..5), 1..6),
    ) {
        let root = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::open(root.path().join("deltas"));
        let full = CheckpointDir::open(root.path().join("full"));
        let mut table = SparseTable::new(adam_config(3)).unwrap();
        let mut last: Option<u64> = None;
        for ops in steps {
            for op in ops {
                match op {
                    Op::Train(first, n) => train(&table, first..first + n),
                    Op::EndDay => table.end_day(),
                    Op::Shrink(days) => _ = table.shrink(Some(days)).unwrap(),
                    Op::Clear => table.clear().unwrap(),
                    Op::Restart(threads) => if let Some(serial) = last {
                        table = load(&dir.path_of(serial), adam_config(3), threads);
                    },
                }
            }
            let kind = last.map_or(Kind::Full, |base| Kind::Delta { base });
            let path = checkpoint(&dir, &table, kind);
            last = Some(dir.next_serial().unwrap() - 1);
            let saved = Checkpoint::open(&path).unwrap().table("emb").unwrap();
            let expected = contents(&table);
            prop_assert_eq!(&saved_contents(&saved), &expected);
            for threads in [1, 3] {
                let loaded = load(&path, adam_config(3), threads);
                prop_assert_eq!(&contents(&loaded), &expected);
                // A full save of what was loaded holds the same.
                let again = checkpoint(&full, &loaded, Kind::Full);
                let again = Checkpoint::open(&again).unwrap().table("emb").unwrap();
                prop_assert_eq!(&saved_contents(&again), &expected);
            }
            let mut buffer = BlockBuffer::default();
            for id in 0..60 {
                let found = saved.find(id, &mut buffer).unwrap().map(|row| known(&row).1);
                prop_assert_eq!(found.as_ref(), expected.get(&id));
            }
        }
    }
}

#[test]
fn full_checkpoints_come_as_often_as_wanted() {
    let root = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { full_every: 3, ..CheckpointConfig::new(root.path()) };
    let table = SparseTable::new(adam_config(3)).unwrap();
    let mut kinds = Vec::new();
    let mut last = None;
    for i in 0..7 {
        train(&table, i..i + 5);
        let kind = config.next_kind(last).unwrap();
        checkpoint(&config.open(), &table, kind);
        kinds.push(kind);
        last = Some(i);
    }
    let delta = |base| Kind::Delta { base };
    let expected = [Kind::Full, delta(0), delta(1), Kind::Full, delta(3), delta(4), Kind::Full];
    assert_eq!(kinds, expected);
    std::fs::remove_dir_all(config.open().path_of(6)).unwrap();
    assert_eq!(config.next_kind(last).unwrap(), Kind::Full, "what it would build on is gone");
}
