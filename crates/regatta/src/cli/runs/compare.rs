//! Runs side by side: settings in which they differ, and measures by epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::Result;
use serde_json::Value;

use super::{Measures, PLACES, Run, table};

/// Prints how runs compare.
///
/// # Errors
/// If nobody takes the lines.
pub(super) fn compare(out: &mut impl Write, runs: &[Run]) -> Result<()> {
    let folders: Vec<String> = runs.iter().map(Run::folder).collect();
    let head = |first| -> Vec<&str> {
        std::iter::once(first).chain(folders.iter().map(String::as_str)).collect()
    };
    let settings: Vec<BTreeMap<String, String>> =
        runs.iter().map(|run| flat(&run.settings)).collect();
    let keys: BTreeSet<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    let differing = keys.into_iter().filter(|key| {
        let values: BTreeSet<Option<&String>> = settings.iter().map(|s| s.get(*key)).collect();
        values.len() > 1
    });
    let rows: Vec<Vec<String>> = differing
        .map(|key| {
            let value = |s: &BTreeMap<String, String>| s.get(key).map_or("-", |v| v).to_string();
            std::iter::once(key.clone()).chain(settings.iter().map(value)).collect()
        })
        .collect();
    match rows.is_empty() {
        true => writeln!(out, "the settings are the same")?,
        false => table(out, &head("setting"), &rows)?,
    }
    let measures: Vec<BTreeMap<u64, Measures>> = runs.iter().map(Run::measures).collect();
    let epochs: BTreeSet<u64> = measures.iter().flat_map(|m| m.keys().copied()).collect();
    for name in names(measures.iter().flat_map(BTreeMap::values)) {
        let number = |run: &BTreeMap<u64, Measures>, epoch: &u64| {
            let found = run.get(epoch).and_then(|found| found.get(&name));
            found.map_or("-".to_string(), |x| format!("{x:.6}"))
        };
        let row = |epoch: &u64| -> Vec<String> {
            let numbers = measures.iter().map(|run| number(run, epoch));
            std::iter::once(epoch.to_string()).chain(numbers).collect()
        };
        writeln!(out, "\n{name}")?;
        table(out, &head("epoch"), &epochs.iter().map(row).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Names of measures: the loss and the areas first.
pub(super) fn names<'a>(measures: impl Iterator<Item = &'a Measures>) -> Vec<String> {
    let all: BTreeSet<&String> = measures.flat_map(BTreeMap::keys).collect();
    let first = ["loss", "auc", "validation/loss", "validation/auc"];
    let rank = |name: &String| first.iter().position(|f| f == name).unwrap_or(first.len());
    let mut all: Vec<String> = all.into_iter().cloned().collect();
    all.sort_by_key(rank);
    all
}

/// All settings by their names with dots, without those that say where something is.
pub(super) fn flat(settings: &Value) -> BTreeMap<String, String> {
    fn walk(name: &str, value: &Value, out: &mut BTreeMap<String, String>) {
        let Some(section) = value.as_object() else {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            out.insert(name.to_string(), text);
            return;
        };
        for (key, value) in section {
            if name == "runner" && PLACES.contains(&key.as_str()) {
                continue;
            }
            let dot = if name.is_empty() { "" } else { "." };
            walk(&format!("{name}{dot}{key}"), value, out);
        }
    }
    let mut out = BTreeMap::new();
    walk("", settings, &mut out);
    out
}
