//! Which tables have rows on disk: `table_parameters.<table>.memory_mb`, `ssd_dir`, `lookahead`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use regatta_train::tier::{LOOKAHEAD, Tier, Tiers};

use super::keys;
use super::resolver::Resolver;
use crate::HyperValue;

const SECTION: &str = "table_parameters";
const NAMES: [&str; 3] = ["memory_mb", "ssd_dir", "lookahead"];

pub(super) fn resolve_tiers(r: &mut Resolver) -> Tiers {
    let is_tier = |key: &str| {
        let (table, name) = key.strip_prefix(SECTION)?.strip_prefix('.')?.rsplit_once('.')?;
        NAMES.contains(&name).then(|| table.to_string())
    };
    let tables: BTreeSet<String> = r.written_keys().filter_map(is_tier).collect();
    tables.into_iter().filter_map(|table| Some((table.clone(), resolve_tier(r, &table)?))).collect()
}

fn resolve_tier(r: &mut Resolver, table: &str) -> Option<Tier> {
    let [memory_key, dir_key, ahead_key] = NAMES.map(|name| format!("{SECTION}.{table}.{name}"));
    // `-o table_parameters.<table>.memory_mb=` takes the tier back.
    let is_taken_back = r.has(&memory_key);
    let problems = r.problems.len();
    let memory = field(r, &memory_key, "memory_mb");
    let dir = field(r, &dir_key, "ssd_dir");
    let ahead = field(r, &ahead_key, "lookahead");
    if r.problems.len() > problems {
        return None;
    }
    let Some(HyperValue::Int(memory_mb)) = memory else {
        for key in [&dir_key, &ahead_key] {
            match is_taken_back {
                true => r.unused(key, "memory_mb is not set"),
                false if r.is_set(key) => r.problem(key, format!("needs {memory_key}")),
                false => r.unused(key, ""),
            }
        }
        return None;
    };
    let tier = Tier {
        memory_mb: memory_mb as u64,
        ssd_dir: dir.map(|dir| PathBuf::from(text(dir))).unwrap_or_default(),
        lookahead: match ahead {
            Some(HyperValue::Int(n)) => n as u64,
            _ => LOOKAHEAD,
        },
    };
    if let Some((name, reason)) = tier.problem() {
        r.problem(&format!("{SECTION}.{table}.{name}"), reason);
    }
    Some(tier)
}

/// The value of a key as the list of keys describes it.
fn field(r: &mut Resolver, key: &str, name: &str) -> Option<HyperValue> {
    let known = keys::find(&format!("{SECTION}.<table>.{name}"))?;
    r.field(key, known.kind, known.default)
}

fn text(value: HyperValue) -> String {
    match value {
        HyperValue::Str(text) => text,
        other => other.to_string(),
    }
}
