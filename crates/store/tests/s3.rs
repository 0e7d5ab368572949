//! Remote stores against a server that speaks S3.

use std::fs;
use std::io::Read;

use regatta_store::s3_server::S3Server;
use regatta_store::{Error, Stores};

struct Place {
    _dir: tempfile::TempDir,
    files: std::path::PathBuf,
    server: S3Server,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("buckets");
    fs::create_dir_all(root.join("bucket")).unwrap();
    let files = dir.path().join("files");
    fs::create_dir_all(&files).unwrap();
    Place { server: S3Server::start(&root), files, _dir: dir }
}

impl Place {
    fn stores(&self) -> Stores {
        Stores::with_settings(self.server.settings())
    }
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn small_and_large_files_arrive_whole() {
    let place = place();
    let stores = place.stores();
    // Nothing, a little, several parts and a rest.
    for n in [0, 5, (8 << 20) * 2 + 12345] {
        let file = place.files.join("x");
        fs::write(&file, bytes(n)).unwrap();
        let to = format!("s3://bucket/deep/{n}");
        stores.put(&file, &to).unwrap();
        assert_eq!(stores.size(&to).unwrap(), Some(n as u64));
        let mut back = Vec::new();
        stores.open(&to).unwrap().read_to_end(&mut back).unwrap();
        assert!(back == bytes(n), "{n} bytes differ");
    }
    let names: Vec<String> =
        stores.list("s3://bucket/deep").unwrap().into_iter().map(|e| e.path).collect();
    assert_eq!(names, ["s3://bucket/deep/0", "s3://bucket/deep/16789561", "s3://bucket/deep/5"]);
}

#[test]
fn folders_there_and_back() {
    let place = place();
    let stores = place.stores();
    fs::create_dir_all(place.files.join("tables")).unwrap();
    fs::write(place.files.join("tables/a"), "rows").unwrap();
    fs::write(place.files.join("manifest.json"), "{}").unwrap();
    let to = "s3://bucket/checkpoints/checkpoint_3";
    assert_eq!(stores.upload_folder(&place.files, to, "manifest.json").unwrap(), 6);
    let back = place.files.join("back");
    stores.download_folder(to, &back).unwrap();
    assert_eq!(fs::read_to_string(back.join("tables/a")).unwrap(), "rows");
    stores.remove_folder(to, "manifest.json").unwrap();
    assert!(stores.list(to).unwrap().is_empty());
}

#[test]
fn a_missing_file_is_named() {
    let place = place();
    let error = place.stores().open("s3://bucket/none").err().unwrap();
    assert_eq!(error.to_string(), "s3://bucket/none: no such file");
    assert_eq!(place.stores().size("s3://bucket/none").unwrap(), None);
}

#[test]
fn wrong_credentials_are_refused_and_not_shown() {
    let place = place();
    let mut settings = place.server.settings();
    settings.retain(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY");
    settings.push(("AWS_SECRET_ACCESS_KEY", "do-not-print-me".to_string()));
    let error = Stores::with_settings(settings).size("s3://bucket/x").unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert!(error.to_string().starts_with("s3://bucket/x: access denied"), "{error}");
    assert!(!error.to_string().contains("do-not-print-me"), "{error}");
}

#[test]
fn an_unreachable_store_is_named() {
    let place = place();
    // A port on which nobody listens: the one of a server that has ended.
    let settings = place.server.settings();
    drop(place);
    let error = Stores::with_settings(settings).size("s3://bucket/x").unwrap_err().to_string();
    assert!(error.starts_with("s3://bucket/x: "), "{error}");
}
