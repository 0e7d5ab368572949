//! The rules of ARCHITECTURE.md that a test can check.

mod bans;
mod dependencies;
mod document;
mod tidy;

use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/archtest is two folders below the root").to_path_buf()
}

fn crates() -> PathBuf {
    root().join("crates")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A path as a reader knows it.
fn from_root(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Fails with all problems and what to do about them.
#[track_caller]
fn none_of(problems: &[String], advice: &str) {
    let n = problems.len();
    assert!(problems.is_empty(), "{n} found:\n{}\n\n{advice}", problems.join("\n"));
}
