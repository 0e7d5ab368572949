//! Some sources do not mention some words.

use regatta_archtest::source::{code, rust_files, without_comments};
use regatta_archtest::{BANS, Ban, GLOBALS, UNSAFE};

use crate::{crates, from_root, none_of, read};

#[test]
fn no_source_mentions_what_it_must_not() {
    let problems: Vec<String> = BANS.iter().flat_map(problems).collect();
    none_of(
        &problems,
        "The bans are in BANS in crates/archtest/src/lib.rs, the reasons in ARCHITECTURE.md.",
    );
}

fn problems(ban: &Ban) -> Vec<String> {
    let mut problems = Vec::new();
    for within in ban.within.iter().chain(ban.except) {
        assert!(crates().join(within).exists(), "BANS names crates/{within}, which is not there");
    }
    for within in ban.within {
        let path = crates().join(within);
        let files = if path.is_dir() { rust_files(&path) } else { vec![path] };
        for file in files.iter().filter(|f| !ban.except.iter().any(|e| f.ends_with(e))) {
            let text = without_comments(&read(file));
            for (i, line) in text.lines().enumerate() {
                let words = ban.words.iter().filter(|word| line.contains(**word));
                problems.extend(words.map(|word| {
                    let at = from_root(file);
                    format!("{at}:{}: `{word}`: {}", i + 1, ban.instead)
                }));
            }
        }
    }
    problems
}

#[test]
fn unsafe_code_is_where_it_is_listed() {
    let problems = outside(UNSAFE, |line| {
        line.contains("unsafe {") || line.contains("unsafe fn ") || line.contains("unsafe impl ")
    });
    none_of(
        &problems,
        "Write it without `unsafe`; or add the file to UNSAFE in crates/archtest/src/lib.rs, and say \
         in the file why it is sound.",
    );
}

#[test]
fn nothing_is_global() {
    let problems = outside(GLOBALS, |line| {
        let is_static = line.split_whitespace().take(3).any(|word| word == "static");
        let changes = ["Atomic", "Mutex<", "RwLock<", "Cell<"].iter().any(|t| line.contains(t));
        (is_static && changes) || line.contains("thread_local!") || line.contains("static mut ")
    });
    none_of(
        &problems,
        "Several programs, servers and ranks live in one process and one test: give it to whoever \
         needs it as an argument.",
    );
}

/// Lines of code outside of the listed files, for which this is true.
fn outside(listed: &[&str], is_it: impl Fn(&str) -> bool) -> Vec<String> {
    for path in listed {
        assert!(crates().join(path).exists(), "crates/{path} is listed, but not there");
    }
    let mut problems = Vec::new();
    for file in rust_files(&crates()) {
        let within = file.strip_prefix(crates()).expect("below crates/");
        let is_source = within.iter().nth(1).is_some_and(|folder| folder == "src");
        if !is_source || listed.iter().any(|path| within.starts_with(path)) {
            continue;
        }
        let code = code(&read(&file));
        let lines = code.lines().enumerate().filter(|(_, line)| is_it(line));
        problems.extend(
            lines.map(|(i, line)| format!("{}:{}: {}", from_root(&file), i + 1, line.trim())),
        );
    }
    problems
}
