//! ARCHITECTURE.md: its table of crates and its walks are those of the code.

use regatta_archtest::WALK_STOPS;
use regatta_archtest::source::{code, functions};

use crate::dependencies::{packages, short};
use crate::{crates, none_of, read, root};

/// The rows of a table, as cells without their marks.
type Table = Vec<Vec<String>>;

/// Headings with the tables below them.
fn tables() -> Vec<(String, Table)> {
    let mut tables: Vec<(String, Table)> = Vec::new();
    for line in read(&root().join("ARCHITECTURE.md")).lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            tables.push((heading.to_string(), Vec::new()));
        } else if let (Some(row), Some((_, table))) = (row(line), tables.last_mut()) {
            table.push(row);
        }
    }
    tables
}

/// The cells of a row; none for the heads of tables and other lines.
fn row(line: &str) -> Option<Vec<String>> {
    let cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|');
    let cells: Vec<String> = cells.map(|c| c.trim().trim_matches(['`', '*']).to_string()).collect();
    let is_head = cells[0].starts_with("---") || ["crate", "stop"].contains(&cells[0].as_str());
    (!is_head).then_some(cells)
}

#[test]
fn every_crate_has_a_charter() {
    let tables = tables();
    let (_, charters) = tables.iter().find(|(h, _)| h == "Crates").expect("a heading '## Crates'");
    let rows: Vec<&str> = charters.iter().map(|cells| cells[0].as_str()).collect();
    let packages = packages();
    let names: Vec<&str> =
        packages.iter().filter_map(|p| short(p["name"].as_str().expect("a name"))).collect();
    let mut problems = Vec::new();
    for name in &names {
        match rows.iter().filter(|row| *row == name).count() {
            1 => {}
            n => problems.push(format!("crate {name} has {n} rows")),
        }
    }
    let unknown = rows.iter().filter(|row| !names.contains(row));
    problems.extend(unknown.map(|row| format!("there is no crate {row}")));
    none_of(
        &problems,
        "The table of crates in ARCHITECTURE.md has one row for each crate: its charter, and what it \
         must not know.",
    );
}

#[test]
fn walks_lead_through_the_code() {
    let mut problems = Vec::new();
    let tables = tables();
    let walks: Vec<_> = tables.iter().filter(|(h, _)| h.starts_with("Follow one ")).collect();
    assert!(walks.len() >= 5, "ARCHITECTURE.md has five walks below headings '## Follow one ...'");
    for (heading, stops) in walks {
        if stops.is_empty() || stops.len() > WALK_STOPS {
            let n = stops.len();
            problems.push(format!("{heading}: {n} stops, but a walk has 1 to {WALK_STOPS}"));
        }
        for (i, stop) in stops.iter().enumerate() {
            if stop[0] != (i + 1).to_string() {
                problems.push(format!("{heading}: stop {} has the number {}", i + 1, stop[0]));
            }
            if let Some(problem) = problem(&stop[1], &stop[2]) {
                problems.push(format!("{heading}, stop {}: {problem}", stop[0]));
            }
        }
    }
    none_of(
        &problems,
        "Correct the walks in ARCHITECTURE.md; bench/crossed_files shows what is really called.",
    );
}

/// What is wrong with a stop.
fn problem(file: &str, name: &str) -> Option<String> {
    let path = crates().join(file);
    if !path.is_file() {
        return Some(format!("there is no file crates/{file}"));
    }
    let text = read(&path);
    let has_function = functions(&text).iter().any(|f| f.name == name && !f.for_tests);
    let has_const = code(&text).contains(&format!("const {name}:"));
    (!has_function && !has_const)
        .then(|| format!("crates/{file} defines no function or constant {name}"))
}
