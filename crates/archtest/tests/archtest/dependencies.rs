//! Crates depend on what they may, and on nothing that they do not use.

use std::process::Command;

use regatta_archtest::MAY_DEPEND_ON;
use regatta_archtest::source::{rust_files, without_comments};
use serde_json::Value;

use crate::{crates, none_of, read, root};

const LIST: &str = "MAY_DEPEND_ON in crates/archtest/src/lib.rs";

/// What cargo knows of the packages of this workspace.
pub(crate) fn packages() -> Vec<Value> {
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// `regatta-ir` is `ir`; the facade `regatta` is itself; other crates are not ours.
pub(crate) fn short(name: &str) -> Option<&str> {
    if name == "regatta" { Some(name) } else { name.strip_prefix("regatta-") }
}

/// Our crates that a package depends on, for tests or not.
fn dependencies(package: &Value, for_tests: bool) -> Vec<&str> {
    let all = package["dependencies"].as_array().expect("dependencies").iter();
    let wanted = all.filter(|d| (d["kind"] == "dev") == for_tests);
    wanted.filter_map(|d| short(d["name"].as_str().expect("a name"))).collect()
}

fn name(package: &Value) -> &str {
    let name = package["name"].as_str().expect("a name");
    short(name).unwrap_or_else(|| panic!("package {name}: call it regatta-{name}"))
}

fn allowed(name: &str) -> Option<&'static [&'static str]> {
    MAY_DEPEND_ON.iter().find(|(listed, _)| *listed == name).map(|(_, list)| *list)
}

#[test]
fn crates_depend_only_on_what_they_may() {
    let mut problems = Vec::new();
    for package in packages() {
        let name = name(&package);
        let Some(allowed) = allowed(name) else {
            problems.push(format!("crate {name} is not listed"));
            continue;
        };
        let used = dependencies(&package, false);
        let forbidden = used.iter().filter(|to| !allowed.contains(to));
        problems.extend(forbidden.map(|to| format!("crate {name} must not know {to}")));
        let unused = allowed.iter().filter(|to| !used.contains(to));
        problems.extend(unused.map(|to| format!("crate {name} may depend on {to} but does not")));
    }
    let advice = format!(
        "Move what a crate needs to one that it may know; or change {LIST}, and the charter in \
         ARCHITECTURE.md. Take out of the list what is not used any more."
    );
    none_of(&problems, &advice);
}

#[test]
fn dependencies_point_up() {
    for (i, (name, list)) in MAY_DEPEND_ON.iter().enumerate() {
        for to in *list {
            let above = MAY_DEPEND_ON[..i].iter().any(|(earlier, _)| earlier == to);
            assert!(above, "{LIST}: {name} may depend on {to}, which does not stand above it");
        }
    }
}

#[test]
fn dependencies_are_used() {
    let mut problems = Vec::new();
    for package in packages() {
        let name = name(&package);
        let text = |folder: &str| -> String {
            let files = rust_files(&crates().join(name).join(folder));
            files.iter().map(|file| without_comments(&read(file))).collect()
        };
        let (sources, others) = (text("src"), ["tests", "benches", "examples"].map(text).concat());
        for to in dependencies(&package, false) {
            // The facade is called regatta alone.
            let word = if to == "regatta" { "regatta::".into() } else { format!("regatta_{to}") };
            if !sources.contains(&word) {
                problems.push(format!("crate {name}: no source mentions {word}"));
            }
        }
        for to in dependencies(&package, true) {
            let word = format!("regatta_{to}");
            if !sources.contains(&word) && !others.contains(&word) {
                problems.push(format!("crate {name}: no test mentions {word}"));
            }
        }
    }
    none_of(
        &problems,
        "Take the dependency out of the crate's Cargo.toml; what only tests need belongs to \
         [dev-dependencies].",
    );
}
