//! Checkpoints of jobs: written, published, chosen, damaged, rotated and read back.

mod chain;
mod damage;
mod dir;
mod disk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regatta_checkpoint::{
    Checkpoint, CheckpointDir, Kind, Manifest, Part, Progress, SavedTable, Topology,
    WorkerPosition, save_table, write_bytes, write_tensors,
};
use regatta_optim::{Adam, Rule};
use regatta_table::{
    Accessor, Admission, PlainConfig, PullMode, Row, RowBody, SaveMode, Scope, Scratch,
    SparseConfig, SparseTable, TableId,
};
use regatta_tensor::Tensor;

/// A row with the bits of its words: kind, days, changed, words.
type Known = (u8, u32, bool, Vec<u32>);

fn known(row: &Row<'_>) -> (u64, Known) {
    let bits = |words: &[f32]| words.iter().map(|w| w.to_bits()).collect();
    let (kind, words) = match row.body {
        RowBody::Candidate { appearances } => (0, vec![appearances]),
        RowBody::Base(words) => (1, bits(words)),
        RowBody::Extended(words) => (2, bits(words)),
    };
    (row.key, (kind, row.unseen_days, row.changed, words))
}

/// All that a table holds.
fn contents(table: &SparseTable) -> BTreeMap<u64, Known> {
    let shards = (0..table.n_shards()).map(|shard| table.export(shard, SaveMode::All).unwrap());
    shards.flat_map(|rows| rows.rows().map(|row| known(&row)).collect::<Vec<_>>()).collect()
}

/// All that a table in a checkpoint holds.
fn saved_contents(table: &SavedTable) -> BTreeMap<u64, Known> {
    let mut rows = BTreeMap::new();
    table
        .for_each(|row| {
            let (key, known) = known(&row);
            assert!(rows.insert(key, known).is_none(), "{key} comes twice");
            Ok(())
        })
        .unwrap();
    rows
}

fn adam_config(dim: usize) -> SparseConfig {
    let plain = PlainConfig::new(dim, Rule::Adam(Adam::default()));
    let config = SparseConfig::new(TableId(0), 7, Accessor::Plain(plain));
    SparseConfig { n_shards: 4, admission: Admission::CountFilter(2), ..config }
}

/// Trains rows a little; ids below `n` are seen once, those below `n / 2` twice.
fn train(table: &SparseTable, ids: std::ops::Range<u64>) {
    let half = ids.start..ids.start + (ids.end - ids.start) / 2;
    for ids in [ids, half] {
        let ids: Vec<u64> = ids.collect();
        let mut out = vec![0.0; ids.len() * table.pull_width()];
        let scratch = &mut Scratch::default();
        table.pull(&ids, &mut out, PullMode::Train, scratch).unwrap();
        let gradients: Vec<f32> =
            (0..ids.len() * table.push_width()).map(|i| (i as f32).sin()).collect();
        table.push(&ids, &gradients, 0.01, scratch).unwrap();
    }
}

fn manifest(parts: Vec<Part>) -> Manifest {
    let topology = Topology { mode: "sync".into(), servers: 1, workers: 1, ranks: 0 };
    let position =
        WorkerPosition { worker: 0, epoch: 1, batches: 5, examples: 640, reader: [].into() };
    let progress = Progress { epoch: 1, step: 5, global_step: 105, workers: vec![position] };
    let mut manifest = Manifest::new("0123456789abcdef", topology, progress);
    manifest.config = serde_json::json!({"runner": {"epochs": 3, "rate": 0.1}});
    manifest.rng = [("shuffle".to_string(), u64::MAX)].into();
    manifest.learning_rate.value = 0.1f32.into();
    manifest.parts = parts;
    manifest
}

/// Saves a table and some tensors as the next checkpoint of a directory.
fn checkpoint(dir: &CheckpointDir, table: &SparseTable, kind: Kind) -> PathBuf {
    let draft = dir.begin(dir.next_serial().unwrap()).unwrap();
    let scope = match kind {
        Kind::Full => Scope::Rows(SaveMode::All),
        Kind::Delta { .. } => Scope::Changes,
    };
    let snapshot = table.snapshot(scope).unwrap();
    let mut parts = dense_parts(draft.path());
    parts.push(save_table(draft.path(), "emb.0-of-1.rows", "emb", table, &snapshot).unwrap().part);
    let path = draft.publish(Manifest { kind, ..manifest(parts) }).unwrap();
    table.end_snapshot(snapshot, true).unwrap();
    path
}

fn dense_parts(draft: &Path) -> Vec<Part> {
    let w = Tensor::from_f32(&[2, 3], vec![0.5, -0.0, f32::NAN, 1e-40, 3.0, f32::MAX]).unwrap();
    let b = Tensor::from_f32(&[2000], (0..2000).map(|i| i as f32).collect()).unwrap();
    let tensors = [("fc.w", &w), ("fc.b", &b)];
    vec![
        write_tensors(draft, "dense.safetensors", tensors, &[].into()).unwrap(),
        write_bytes(draft, "worker-0.bin", b"position").unwrap(),
    ]
}

fn load(path: &Path, config: SparseConfig, threads: usize) -> SparseTable {
    let table = SparseTable::new(config).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    checkpoint.table("emb").unwrap().load_into(&table, |_| true, threads).unwrap();
    table.begin_changes().unwrap();
    table
}

#[test]
fn everything_comes_back_to_the_bit() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path().join("deep/checkpoints"));
    let table = SparseTable::new(adam_config(9)).unwrap();
    train(&table, 0..5000);
    table.end_day();
    train(&table, 4000..6000);
    let path = checkpoint(&dir, &table, Kind::Full);
    assert_eq!(path, dir.path_of(0));
    let found = Checkpoint::open(&path).unwrap();
    let written = manifest(found.manifest().parts.clone());
    assert_eq!(*found.manifest(), written, "all numbers, to the bit");
    assert_eq!(found.tables(), ["emb"]);
    for threads in [1, 3] {
        // Another number of shards, and more threads than blocks.
        let again = load(&path, SparseConfig { n_shards: 16, ..adam_config(9) }, threads);
        assert_eq!(contents(&again), contents(&table));
        assert_eq!(again.day(), table.day());
    }
    let tensors = found.tensors("dense.safetensors").unwrap().tensors;
    let bits: Vec<u32> = tensors["fc.w"].f32().iter().map(|x| x.to_bits()).collect();
    let expected = [0.5, -0.0, f32::NAN, 1e-40, 3.0, f32::MAX].map(f32::to_bits);
    assert_eq!((bits.as_slice(), tensors["fc.w"].shape()), (&expected[..], &[2, 3][..]));
    assert_eq!(found.bytes("worker-0.bin").unwrap(), b"position");
}

#[test]
fn parts_of_several_servers_are_one_table_for_any_number_of_servers() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    let servers: Vec<SparseTable> = (0..3)
        .map(|server| {
            let table = SparseTable::new(adam_config(4)).unwrap();
            train(&table, server * 10_000..server * 10_000 + 1000);
            table
        })
        .collect();
    let draft = dir.begin(0).unwrap();
    let mut parts = Vec::new();
    for (i, table) in servers.iter().enumerate() {
        let snapshot = table.snapshot(Scope::Rows(SaveMode::All)).unwrap();
        let name = format!("emb.{i}-of-3.rows");
        parts.push(save_table(draft.path(), &name, "emb", table, &snapshot).unwrap().part);
        table.end_snapshot(snapshot, true).unwrap();
    }
    let path = draft.publish(manifest(parts)).unwrap();
    let all: BTreeMap<u64, Known> = servers.iter().flat_map(contents).collect();
    let saved = Checkpoint::open(&path).unwrap().table("emb").unwrap();
    assert_eq!(saved_contents(&saved), all);
    let mut together = BTreeMap::new();
    for server in 0..5 {
        let table = SparseTable::new(adam_config(4)).unwrap();
        let n = saved.load_into(&table, |id| id % 5 == server, 2).unwrap();
        assert_eq!(n, contents(&table).len());
        together.extend(contents(&table));
    }
    assert_eq!(together, all);
}

#[test]
fn rows_of_another_layout_and_unknown_tables_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::open(root.path());
    let table = SparseTable::new(adam_config(4)).unwrap();
    train(&table, 0..10);
    let found = Checkpoint::open(checkpoint(&dir, &table, Kind::Full)).unwrap();
    let wider = SparseTable::new(adam_config(5)).unwrap();
    let error = found.table("emb").unwrap().load_into(&wider, |_| true, 1).unwrap_err().to_string();
    assert!(error.contains("another width or another optimizer"), "{error}");
    let error = found.table("emd").unwrap_err().to_string();
    assert!(error.ends_with("it holds no table 'emd' (tables: emb)"), "{error}");
    let error = found.manifest().check_program(found.path(), "ffff").unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
}
