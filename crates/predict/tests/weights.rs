//! Weights from Paddle's two text layouts: what Paddle writes is read, and what is damaged, foreign
//! or incomplete is reported with file and line.

use std::fs;
use std::path::Path;

use regatta_predict::files::{ParameterSpec, read_weights};

fn table(dim: usize) -> ParameterSpec {
    ParameterSpec { name: "emb".into(), shape: vec![100, dim], is_table: true }
}

fn dense() -> ParameterSpec {
    ParameterSpec { name: "w".into(), shape: vec![2, 1], is_table: false }
}

fn write(dir: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// What reading these files says; `columns` as the user would name them.
fn said(files: &[(&str, &str)], wanted: &[ParameterSpec], columns: Option<&[usize]>) -> String {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), files);
    read_weights(dir.path(), wanted, columns).unwrap_err().to_string()
}

/// Names and contents of files.
type Files<'a> = &'a [(&'a str, &'a str)];

const NAMES: (&str, &str) = ("names.txt", "000 emb 2\n001 w 2x1\n");

#[test]
fn parts_of_several_servers_are_one_parameter() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        NAMES,
        // Shards of two servers, with six numbers before the weights, as Paddle's accessors have.
        ("000/part-000-00000", "18446744073709551615 -1 0 0.5 1 0 0.25 -1.5 3e-5\n"),
        ("000/part-001-00001", "7 -1 0 0.5 1 0 0.5 2 4\n"),
        ("001/part-000", "0.125 0 0\n"),
        ("001/part-001", "-3 0 0\n"),
    ];
    write(dir.path(), &files);
    let read = read_weights(dir.path(), &[table(2), dense()], Some(&[6, 7])).unwrap();
    let rows = &read.tables["emb"];
    assert_eq!(
        (&rows.ids[..], &rows.values[..]),
        (&[u64::MAX, 7][..], &[-1.5, 3e-5, 2.0, 4.0][..])
    );
    assert_eq!(read.dense["w"], [0.125, -3.0]);
    // A weight apart from the others.
    let read = read_weights(dir.path(), &[table(3)], Some(&[5, 6, 7])).unwrap();
    assert_eq!(read.tables["emb"].values, [0.25, -1.5, 3e-5, 0.5, 2.0, 4.0]);
}

#[test]
fn blocks_of_several_servers_are_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let meta = |n: usize| {
        format!("param=emb\nshard_id=0\nrow_names=Moment,Param\nrow_dims=1,2\ncount={n}\n")
    };
    let (one, two) = (meta(1), meta(2));
    let files = [
        ("emb.shard/emb.block0.txt", "4\t3\t0\t1\t9,1,2\n"),
        ("emb.shard/emb.block0.meta", one.as_str()),
        ("emb.shard/emb.block1.txt", "5\t3\t0\t1\t9,3,4\n11\t1\t2\t1\t9,5,6\n"),
        ("emb.shard/emb.block1.meta", two.as_str()),
    ];
    write(dir.path(), &files);
    let read = read_weights(dir.path(), &[table(2)], None).unwrap();
    let rows = &read.tables["emb"];
    assert_eq!((&rows.ids[..], &rows.values[..]), (&[4, 5, 11][..], &[1., 2., 3., 4., 5., 6.][..]));
}

#[test]
fn damaged_foreign_and_incomplete_parts_are_told_by_place() {
    let cut = ("000/part-000-00000", "7 1 2\n8 1");
    let good = ("000/part-000-00000", "7 1 2\n");
    let cases: &[(Files<'_>, &[ParameterSpec], &str)] = &[
        (&[("readme.md", "hello")], &[table(2)], "there is no names.txt"),
        (&[NAMES, cut], &[table(2)], "part-000-00000:2: 1 of 2 numbers after the id"),
        (&[NAMES, ("000/part-000-00000", "7 1 2 3\n")], &[table(2)], "say which with --columns"),
        (&[NAMES, ("000/part-000-00000", "7 1 x\n")], &[table(2)], ":1: 'x' is no number"),
        (&[NAMES, ("000/part-000-00000", "-7 1 2\n")], &[table(2)], ":1: '-7' is no id"),
        (
            &[NAMES, ("000/part-000-00000", "7 1 2\n7 1 2\n")],
            &[table(2)],
            ":2: id 7 is there twice",
        ),
        (&[NAMES, ("000/part-000-00000.gz", "")], &[table(2)], "unpack it first"),
        (&[NAMES, ("000/other", "")], &[table(2)], "holds no part- files"),
        (&[NAMES], &[table(2)], "cannot read"),
        (&[("names.txt", "000\n")], &[table(2)], "names.txt:1: expected"),
        (&[("names.txt", "000 a\n001 a\n")], &[table(2)], "names.txt:2: 'a' is there twice"),
        (&[("names.txt", "000 emb 2\n"), good], &[table(2), dense()], "it lacks w"),
        (&[NAMES, good, ("001/part-000", "1\n")], &[table(2), dense()], "1 of 2 numbers of 'w'"),
    ];
    for (files, wanted, expected) in cases {
        let said = said(files, wanted, None);
        assert!(said.contains(expected), "{said}\n{expected}");
    }
    let said = said(&[NAMES, good], &[table(2)], Some(&[1, 2]));
    assert!(said.contains(":1: 2 numbers after the id: there is no column 2"), "{said}");
}

#[test]
fn damaged_blocks_are_told_by_place() {
    const META: (&str, &str) =
        ("emb.shard/emb.block0.meta", "param=emb\nrow_names=Param\nrow_dims=2\ncount=1\n");
    let block = |text: &'static str| ("emb.shard/emb.block0.txt", text);
    let cases: &[(Files<'_>, &str)] = &[
        (&[META, block("4\t3\t0\t1\t1,2\n5\t3")], "block0.txt:2: 2 of 5 fields"),
        (&[META, block("4\t3\t0\t1\t1\n")], ":1: 1 of 2 numbers"),
        (&[META, block("")], "0 rows, but its .meta says 1"),
        (&[block("4\t3\t0\t1\t1,2\n")], "cannot read"),
        (&[META], "holds no blocks"),
        (
            &[("emb.shard/emb.block0.meta", "row_names=Param\nrow_dims=3\ncount=1\n"), block("")],
            "but Param has 2 floats here",
        ),
        (&[("emb.shard/emb.block0.meta", "row_names=Param\n"), block("")], "does not say count="),
        (&[("emb.shard/emb.block0.meta", "what\n"), block("")], "meta:1: expected key=value"),
    ];
    for (files, expected) in cases {
        let said = said(files, &[table(2)], None);
        assert!(said.contains(expected), "{said}\n{expected}");
    }
    let said = said(&[META], &[table(2)], Some(&[0, 1]));
    assert!(said.contains("name no columns"), "{said}");
}
