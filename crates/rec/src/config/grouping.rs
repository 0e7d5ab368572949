//! The keys `runner.gauc_by`, `runner.slice_by` and `runner.ranking_k`: how an evaluation divides
//! its examples.

use regatta_data::{Schema, SlotKind};
use regatta_train::metrics::{Grouping, KeyColumn, KeyKind};

use super::resolver::Resolver;
use crate::zoo::{Evaluation, Model};
use crate::{Hyper, HyperValue};

const GROUPS: &str = "runner.gauc_by";
const SLICES: &str = "runner.slice_by";
const RANKING: &str = "runner.ranking_k";

/// Groups, slices and lengths of lists.
pub(super) fn resolve_grouping(r: &mut Resolver, model: &Model, hyper: &Hyper) -> Grouping {
    let (groups, slices) = (r.text(GROUPS), r.texts(SLICES).unwrap_or_default());
    let ranking = r.ints(RANKING).unwrap_or_default();
    let mut ranking: Vec<usize> = ranking.into_iter().map(|k| k as usize).collect();
    if let (Evaluation::Ranking { k }, true) = (model.evaluation, ranking.is_empty()) {
        ranking.push(k);
        r.derive_value(RANKING, HyperValue::Ints(vec![k as i64]));
    }
    // What is wrong with hyper-parameters has been said.
    let Ok(schema) = (model.schema)(hyper) else { return Grouping::default() };
    let mut column = |key: &str, name: &String| {
        let found = column(&schema, name);
        found.map_err(|reason| r.problem(key, format!("model {}: {reason}", model.name))).ok()
    };
    let groups = groups.as_ref().and_then(|name| column(GROUPS, name));
    let slices = slices.iter().filter_map(|name| column(SLICES, name)).collect();
    check_used(r, model, groups.is_some());
    Grouping { groups, slices, ranking }
}

/// Refuses what nothing would come of.
fn check_used(r: &mut Resolver, model: &Model, has_groups: bool) {
    let written: Vec<&str> =
        [GROUPS, SLICES, RANKING].into_iter().filter(|k| r.is_set(k)).collect();
    for key in written {
        if model.evaluation == Evaluation::Analogy {
            let reason = format!("model {} is judged by questions, not by examples", model.name);
            r.problem(key, reason);
        } else if key == RANKING && model.group == "rank" && !has_groups {
            let reason = format!("needs {GROUPS}, which says which examples are a list");
            r.problem(key, reason);
        }
    }
}

/// The column of a slot by its name, or `slot[i]` for one of several values.
fn column(schema: &Schema, name: &str) -> Result<KeyColumn, String> {
    let part = |text: &str| text.strip_suffix(']').and_then(|number| number.parse().ok());
    let (slot, part) = match name.split_once('[') {
        Some((slot, rest)) => {
            let part: Option<usize> = part(rest);
            (slot, Some(part.ok_or_else(|| format!("'{name}' is neither slot nor slot[i]"))?))
        }
        None => (name, None),
    };
    let Some(index) = schema.index_of(slot) else {
        let known: Vec<&str> = schema.slots().iter().map(|s| s.name.as_str()).collect();
        let hint = match regatta_ir::nearest(slot, known.iter().copied()) {
            Some(near) => format!("; did you mean '{near}'?"),
            None => format!(" (known: {})", known.join(", ")),
        };
        return Err(format!("there is no slot '{slot}'{hint}"));
    };
    let (kind, values) = match schema.slots()[index].kind {
        SlotKind::Ids => (KeyKind::Id, usize::MAX),
        SlotKind::FixedIds { count } => (KeyKind::Id, count),
        SlotKind::Label => (KeyKind::Int, 1),
        SlotKind::Ints { count } => (KeyKind::Int, count),
        SlotKind::Dense { dim } => (KeyKind::Float, dim),
    };
    match part {
        Some(part) if part >= values => {
            Err(format!("slot '{slot}' has {values} values: there is no {name}"))
        }
        None if values > 1 && kind != KeyKind::Id => {
            Err(format!("slot '{slot}' has {values} values: name one of them, as {slot}[0]"))
        }
        part => Ok(KeyColumn { slot: slot.to_string(), part: part.unwrap_or(0), kind }),
    }
}
