//! Lines and functions that a reader can take in.

use std::path::{Path, PathBuf};

use regatta_archtest::source::{code, files, functions, rust_files, without_comments};
use regatta_archtest::{DOCUMENT_COLUMNS, FUNCTION_LINES, NOT_YET_WRAPPED, RUST_COLUMNS};

use crate::{crates, from_root, none_of, read, root};

/// Sources of all crates, tests aside.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates()).expect("crates/") {
        found.extend(rust_files(&entry.expect("a crate").path().join("src")));
    }
    found.retain(|file| !file.ends_with("tests.rs") && !file.iter().any(|part| part == "tests"));
    found.sort();
    assert!(found.len() > 100, "only {} sources in {}", found.len(), crates().display());
    found
}

fn is_of(file: &Path, names: &[&str]) -> bool {
    names.iter().any(|name| file.starts_with(crates().join(name)))
}

/// Where a line of a source is too long.
fn long_lines(file: &Path) -> Vec<String> {
    let text = read(file);
    let (code, uncommented) = (code(&text), without_comments(&text));
    let lines = text.lines().zip(code.lines().zip(uncommented.lines())).enumerate();
    // A string may be long, such as an address or what a user reads.
    let without_strings = lines.filter(|(_, (_, (code, uncommented)))| code == uncommented);
    let columns = without_strings.map(|(i, (line, _))| (i + 1, line.chars().count()));
    let long = columns.filter(|(_, n)| *n > RUST_COLUMNS);
    long.map(|(i, n)| format!("{}:{i}: {n} columns", from_root(file))).collect()
}

#[test]
fn lines_of_rust_are_short() {
    let all: Vec<_> = sources().iter().map(|file| (file.clone(), long_lines(file))).collect();
    let strict = all.iter().filter(|(file, _)| !is_of(file, NOT_YET_WRAPPED));
    let mut problems: Vec<String> = strict.flat_map(|(_, problems)| problems.clone()).collect();
    for name in NOT_YET_WRAPPED {
        let is_clean =
            |(file, problems): &(PathBuf, Vec<_>)| !is_of(file, &[name]) || problems.is_empty();
        if all.iter().all(is_clean) {
            problems.push(format!("crate {name} is clean: take it out of NOT_YET_WRAPPED"));
        }
    }
    let advice = format!(
        "Break comments at {RUST_COLUMNS} columns, and what stands in macros; rustfmt does the rest."
    );
    none_of(&problems, &advice);
}

#[test]
fn functions_are_short() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for file in sources() {
        let all = functions(&read(&file));
        seen += all.len();
        for f in all.into_iter().filter(|f| !f.for_tests && f.lines > FUNCTION_LINES) {
            let at = from_root(&file);
            problems.push(format!("{at}:{}: {} has {} lines", f.line, f.name, f.lines));
        }
    }
    assert!(seen > 1000, "only {seen} functions are found");
    let advice = format!(
        "A function has at most {FUNCTION_LINES} lines, from `fn` to its last brace: take a step out \
         of it that has a name."
    );
    none_of(&problems, &advice);
}

#[test]
fn lines_of_documents_are_short() {
    let mut problems = Vec::new();
    // Tables of results are written by scripts.
    let results = root().join("bench/results");
    for file in files(&root(), "md").iter().filter(|file| !file.starts_with(&results)) {
        let mut is_code = false;
        for (i, line) in read(file).lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let n = line.chars().count();
            // An address cannot be broken.
            let is_free = is_code || line.starts_with('|') || !line.trim().contains(' ');
            if n > DOCUMENT_COLUMNS && !is_free {
                problems.push(format!("{}:{}: {n} columns", from_root(file), i + 1));
            }
        }
    }
    let advice = format!("Break lines of documents at {DOCUMENT_COLUMNS} columns.");
    none_of(&problems, &advice);
}
