//! Data files of a remote store give the same records as local ones.

use std::fs;
use std::io::Write;

use regatta_data::*;
use regatta_store::s3_server::S3Server;

fn schema() -> Schema {
    Schema::new(vec![Slot::fixed_ids("id", 1), Slot::fixed_ids("label", 1)]).unwrap()
}

/// All ids of a source, in order.
fn ids(source: Source) -> Vec<u64> {
    let options = QueueOptions::new(3);
    let mut batches = QueueDataset::new(source, options).unwrap().pass(0).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        all.extend_from_slice(batch.get("id").unwrap().as_dense().unwrap().u64());
    }
    all
}

fn lines(ids: std::ops::Range<u64>) -> String {
    ids.map(|i| format!("1 {i} 1 0\n")).collect()
}

#[test]
fn remote_files_are_read_like_local_ones() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("bucket/day");
    fs::create_dir_all(folder.join("sub")).unwrap();
    fs::write(folder.join("a"), lines(0..6)).unwrap();
    let gz = fs::File::create(folder.join("b.gz")).unwrap();
    let mut gz = flate2::write::GzEncoder::new(gz, flate2::Compression::fast());
    gz.write_all(lines(6..12).as_bytes()).unwrap();
    gz.finish().unwrap();
    fs::write(folder.join(".hidden"), "no").unwrap();
    fs::write(folder.join("sub/c"), "no").unwrap();
    let server = S3Server::start(dir.path());
    let stores = Stores::with_settings(server.settings());

    let files = list_files("s3://bucket/day", &stores).unwrap();
    let names: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
    assert_eq!(names, ["s3://bucket/day/a", "s3://bucket/day/b.gz"]);
    let source =
        || Source::files(schema(), Format::MultiSlot, files.clone()).unwrap().with_stores(&stores);
    assert_eq!(ids(source()), (0..12).collect::<Vec<_>>());
    // What a command gets on its input is the unpacked file.
    let piped = source().with_pipe_command("sed 's/^1 /1 1/'").unwrap();
    assert_eq!(ids(piped)[..2], [10, 11]);

    let error = list_files("s3://bucket/none", &stores).unwrap_err().to_string();
    assert_eq!(error, "s3://bucket/none: no data files");
    let mut gone = files.clone();
    gone[0] = "s3://bucket/day/gone".into();
    let source = Source::files(schema(), Format::MultiSlot, gone).unwrap().with_stores(&stores);
    let mut batches = QueueDataset::new(source, QueueOptions::new(3)).unwrap().pass(0).unwrap();
    assert_eq!(batches.next().unwrap_err().to_string(), "s3://bucket/day/gone: no such file");
}

#[test]
fn without_the_feature_or_with_a_wrong_scheme_it_says_so() {
    let error = list_files("ftp://x/y", &Stores::new()).unwrap_err().to_string();
    assert_eq!(error, "ftp://x/y: ftp:// is not one of s3://, gs://, az://, hdfs://");
}
