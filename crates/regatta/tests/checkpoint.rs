//! `regatta checkpoint` on checkpoints that are whole, damaged and different.

use std::fs;
use std::path::Path;
use std::process::Command;

use regatta_checkpoint::{
    CheckpointDir, Kind, Manifest, Progress, Row, RowBody, SaveMode, TableHeader, TableWriter,
    Topology, WorkerPosition, write_tensors,
};
use regatta_tensor::Tensor;

const ROWS: &str = "emb.0-of-1.rows";

/// Exit code, standard output and standard error of a subcommand.
fn tool(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    let done = command.arg("checkpoint").args(args).current_dir(dir).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// A checkpoint with the given rows (id and first weight), candidates and ids that are gone.
fn save(dir: &Path, kind: Kind, rows: &[(u64, f32)], candidates: &[u64], removed: &[u64], w: f32) {
    let dir = CheckpointDir::open(dir.join("cps"));
    let draft = dir.begin(dir.next_serial().unwrap()).unwrap();
    let header = TableHeader {
        table: "emb".into(),
        parts: vec![("weight".into(), 2), ("moment".into(), 1)],
        base_len: 3,
        mode: SaveMode::All,
        delta: kind != Kind::Full,
        day: 1,
    };
    let mut writer = TableWriter::create(draft.path(), ROWS, header).unwrap();
    let words: Vec<(u64, [f32; 3])> = rows.iter().map(|(id, w)| (*id, [*w, 0.5, 0.25])).collect();
    let mut all: Vec<Row<'_>> = words
        .iter()
        .map(|(key, words)| Row {
            key: *key,
            unseen_days: 2,
            changed: true,
            body: RowBody::Base(words),
        })
        .collect();
    let candidate = RowBody::Candidate { appearances: 3 };
    all.extend(candidates.iter().map(|key| Row {
        key: *key,
        unseen_days: 0,
        changed: false,
        body: candidate,
    }));
    all.sort_by_key(|row| regatta_table::row_order(row.key));
    all.iter().for_each(|row| writer.write(row).unwrap());
    removed.iter().for_each(|key| writer.remove(*key).unwrap());
    let tensor = Tensor::from_f32(&[2], vec![w, 1.0]).unwrap();
    let parts = vec![
        write_tensors(draft.path(), "dense.safetensors", [("fc.w", &tensor)], &[].into()).unwrap(),
        writer.finish().unwrap(),
    ];
    let topology = Topology { mode: "sync".into(), servers: 1, workers: 2, ranks: 0 };
    let workers = vec![WorkerPosition { batches: 20, examples: 2560, ..WorkerPosition::default() }];
    let progress = Progress { epoch: 1, step: 20, global_step: 120, workers };
    let manifest = Manifest { kind, parts, ..Manifest::new("00ff", topology, progress) };
    draft.publish(manifest).unwrap();
}

/// A full checkpoint, one with changes, and one more full one.
fn three(dir: &Path) {
    save(dir, Kind::Full, &[(1, 0.125), (2, 2.0)], &[9], &[], 0.5);
    save(dir, Kind::Delta { base: 0 }, &[(2, 4.0), (3, 3.0)], &[], &[9], 0.5);
    save(dir, Kind::Full, &[(1, 0.125), (2, 4.0), (3, 3.0)], &[], &[], 0.75);
}

#[test]
fn lists_and_inspects() {
    let dir = tempfile::tempdir().unwrap();
    three(dir.path());
    fs::create_dir(dir.path().join("cps/.checkpoint_3.1-0")).unwrap();
    fs::create_dir(dir.path().join("cps/checkpoint_7")).unwrap();
    fs::write(dir.path().join("cps/notes.txt"), "mine").unwrap();
    let (code, out, err) = tool(dir.path(), &["list", "cps"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 5, "{out}");
    assert!(
        lines[0]
            .starts_with("checkpoint_0  complete  full, mode all, epoch 1, step 20 (120 in all)")
    );
    assert!(lines[1].starts_with("checkpoint_1  complete  delta on 0, "), "{out}");
    assert!(lines[3].starts_with(".checkpoint_3.1-0  incomplete: never published"), "{out}");
    assert!(lines[4].starts_with("checkpoint_7  incomplete: there is no manifest.json"), "{out}");

    let (code, out, _) = tool(dir.path(), &["inspect", "cps/checkpoint_1"]);
    assert_eq!(code, 0);
    for part in [
        "program 00ff, training mode sync",
        "worker 0: epoch 0, 20 batches, 2560 examples",
        "table emb: 2 rows, 0 waiting for admission, 1 removed",
        "dense.safetensors: fc.w f32[2]",
        "rows of emb: weight 2, moment 1, day 1",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
}

#[test]
fn explains_one_id() {
    let dir = tempfile::tempdir().unwrap();
    three(dir.path());
    let (code, out, _) = tool(dir.path(), &["inspect", "cps", "--id", "2"]);
    let expected = "\
table emb: id 2 is a row, unseen for 2 days, pushed since it was last saved for serving
  weight: 4 0.5
  moment: 0.25
  checkpoint_0: there for the first time among the kept checkpoints
  checkpoint_1: changed
  checkpoint_2: the same as before
";
    assert_eq!((code, out.as_str()), (0, expected));
    let args = ["inspect", "cps/checkpoint_0", "--id", "9", "--table", "emb"];
    let (_, out, _) = tool(dir.path(), &args);
    let expected = "\
table emb: id 9 waits for admission, seen 3 times, unseen for 0 days
  checkpoint_0: there for the first time among the kept checkpoints
  checkpoint_1: gone
  checkpoint_2: not there
";
    assert_eq!(out, expected);
    let (_, out, _) = tool(dir.path(), &["inspect", "cps/checkpoint_1", "--id", "9"]);
    assert!(out.starts_with("table emb: id 9 is not there\n"), "{out}");
    let args = ["inspect", "cps", "--id", "9", "--table", "wide"];
    let (code, _, err) = tool(dir.path(), &args);
    assert_eq!(code, 2);
    assert!(err.contains("it holds no table 'wide' (tables: emb)"), "{err}");
}

#[test]
fn verifies() {
    let dir = tempfile::tempdir().unwrap();
    three(dir.path());
    assert_eq!(
        tool(dir.path(), &["verify", "cps"]),
        (0, "3 checkpoints are whole\n".into(), String::new())
    );
    assert_eq!(tool(dir.path(), &["verify", "cps/checkpoint_1"]).0, 0);
    let path = dir.path().join("cps/checkpoint_0").join(ROWS);
    let mut bytes = fs::read(&path).unwrap();
    // In the first block, which follows a head of 128 bytes.
    bytes[140] ^= 1;
    fs::write(&path, &bytes).unwrap();
    fs::remove_file(dir.path().join("cps/checkpoint_2/dense.safetensors")).unwrap();
    let (code, out, err) = tool(dir.path(), &["verify", "cps"]);
    assert_eq!((code, err.as_str()), (1, "2 problems in 3 checkpoints\n"), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("cps/checkpoint_0/emb.0-of-1.rows: a block of "), "{out}");
    assert!(lines[0].contains(" (at byte "), "{out}");
    assert_eq!(lines[1], "cps/checkpoint_2/dense.safetensors: missing", "{out}");
    assert_eq!(
        tool(dir.path(), &["verify", "cps/checkpoint_1"]).0,
        1,
        "it builds on a damaged one"
    );
    let (code, _, err) = tool(dir.path(), &["verify", "."]);
    assert_eq!(
        (code, err.as_str()),
        (2, "error: .: there is no checkpoint, no saved epoch and no model\n")
    );
    assert_eq!(tool(dir.path(), &["verify", "nowhere"]).0, 2);
}

#[test]
fn compares() {
    let dir = tempfile::tempdir().unwrap();
    three(dir.path());
    let (code, out, _) = tool(dir.path(), &["diff", "cps/checkpoint_0", "cps/checkpoint_1"]);
    let expected = "\
dense.safetensors: fc.w: equal
emb: 1 rows added, 1 removed, 1 changed, 1 equal; differences up to weight 2.000000e0
";
    assert_eq!((code, out.as_str()), (1, expected));
    let (code, out, _) = tool(dir.path(), &["diff", "cps/checkpoint_1", "cps/checkpoint_2"]);
    let expected = "\
dense.safetensors: fc.w: 1 of 2 elements differ, by up to 2.500000e-1
emb: equal
";
    assert_eq!((code, out.as_str()), (1, expected));
    assert_eq!(tool(dir.path(), &["diff", "cps", "cps/checkpoint_2"]).0, 0, "the newest is meant");
}
