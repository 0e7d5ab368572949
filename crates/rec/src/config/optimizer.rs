//! The `optimizer` part of the hyper-parameters: what the file says is what runs.

use regatta_ir::Regularizer;
use regatta_ops::update_op;
use regatta_optim::{Rule, Schedule};
use regatta_passes::{Clip, Optimizer};
use serde_json::{Map, Value};

use super::keys::MANY;
use super::resolver::Resolver;
use super::value::Kind;
use crate::HyperValue;
use crate::zoo::OptimizerDefault;

/// Names of the update rules that `optimizer.class` takes, in any case.
pub const RULES: &[&str] = &[
    "sgd",
    "momentum",
    "adagrad",
    "adam",
    "adamw",
    "rmsprop",
    "adadelta",
    "ftrl",
    "lamb",
    "lars_momentum",
];

/// The field of a schedule with its kind and default.
type Field = (&'static str, Kind, Option<&'static str>);

const DECAY: &[Field] = &[
    ("decay_steps", Kind::Int(1, MANY), None),
    ("decay_rate", Kind::Float, None),
    ("staircase", Kind::Bool, Some("True")),
];

/// Schedules that `optimizer.schedule` takes, with their fields.
pub const SCHEDULES: &[(&str, &[Field])] = &[
    ("constant", &[]),
    ("exponential", DECAY),
    ("natural_exp", DECAY),
    ("inverse_time", DECAY),
    (
        "polynomial",
        &[
            ("decay_steps", Kind::Int(1, MANY), None),
            ("end_lr", Kind::Float, Some("0.0001")),
            ("power", Kind::Float, Some("1.0")),
            ("cycle", Kind::Bool, Some("False")),
        ],
    ),
    ("piecewise", &[("boundaries", Kind::Ints(0, MANY), None), ("values", Kind::Floats, None)]),
    (
        "cosine",
        &[("step_each_epoch", Kind::Int(1, MANY), None), ("epochs", Kind::Int(1, MANY), None)],
    ),
    ("noam", &[("d_model", Kind::Int(1, MANY), None), ("warmup_steps", Kind::Int(1, MANY), None)]),
    (
        "linear_warmup",
        &[
            ("warmup_steps", Kind::Int(1, MANY), None),
            ("start_lr", Kind::Float, None),
            ("end_lr", Kind::Float, None),
        ],
    ),
];

const SECTION: &str = "hyper_parameters.optimizer";

/// Names of all keys of rules and schedules, for documentation and for spelling help.
pub fn optimizer_keys() -> Vec<String> {
    let mut names: Vec<String> =
        RULES.iter().flat_map(|rule| rule_fields(rule).into_iter().map(|(name, _)| name)).collect();
    names.extend(SCHEDULES.iter().flat_map(|(_, fields)| fields.iter().map(|f| f.0.to_string())));
    names.sort();
    names.dedup();
    names.into_iter().map(|name| format!("{SECTION}.{name}")).collect()
}

/// The fields of a rule with their defaults.
fn rule_fields(rule: &str) -> Vec<(String, Value)> {
    let default = rule_from(rule, Map::new()).expect("a rule of the list, with its defaults");
    match serde_json::to_value(default) {
        Ok(Value::Object(fields)) => fields.into_iter().filter(|(k, _)| k != "rule").collect(),
        other => unreachable!("a rule is a map, not {other:?}"),
    }
}

fn rule_from(name: &str, mut fields: Map<String, Value>) -> Result<Rule, String> {
    fields.insert("rule".into(), name.into());
    serde_json::from_value(Value::Object(fields)).map_err(|e| e.to_string())
}

/// `AdamW`, `LarsMomentum` and the like as the names of the list.
fn rule_name(class: &str) -> Option<&'static str> {
    let plain = |s: &str| s.replace('_', "").to_ascii_lowercase();
    RULES.iter().copied().find(|name| plain(name) == plain(class))
}

/// Takes all keys of the section and makes the optimizer of them.
pub(super) fn resolve_optimizer(r: &mut Resolver, default: OptimizerDefault) -> Optimizer {
    let class = r.text(&format!("{SECTION}.class"));
    let class = class.unwrap_or_else(|| r.derive(&format!("{SECTION}.class"), default.class));
    let learning_rate = r.float(&format!("{SECTION}.learning_rate")).unwrap_or_else(|| {
        let value = HyperValue::Float(default.learning_rate);
        r.derive_value(&format!("{SECTION}.learning_rate"), value);
        default.learning_rate
    });
    let rule = match rule_name(&class) {
        Some(name) => resolve_rule(r, name),
        None => {
            let known = RULES.join(", ");
            r.problem(&format!("{SECTION}.class"), format!("'{class}' is not one of {known}"));
            Rule::Sgd(regatta_optim::Sgd {})
        }
    };
    if let Err(e) = update_op(&rule) {
        r.problem(&format!("{SECTION}.class"), e.to_string());
    }
    let lazy = r.bool(&format!("{SECTION}.adam_lazy_mode")) != Some(false);
    let schedule = resolve_schedule(r);
    if let Err(e) = schedule.validate(learning_rate) {
        r.problem(SECTION, e.to_string());
    }
    let reg = r.float("hyper_parameters.reg").filter(|c| *c != 0.0);
    let clip = resolve_clip(r);
    let regularizer = reg.map(Regularizer::L2);
    let plain = Optimizer::new(rule, learning_rate);
    Optimizer { schedule, regularizer, clip, lazy, ..plain }
}

fn resolve_rule(r: &mut Resolver, name: &'static str) -> Rule {
    let mut fields = Map::new();
    for (field, default) in rule_fields(name) {
        let (kind, text) = match &default {
            Value::Bool(b) => (Kind::Bool, b.to_string()),
            // The shortest text that gives the same float again, not its digits as f64.
            other => (Kind::Float, (other.as_f64().unwrap_or(0.0) as f32).to_string()),
        };
        if let Some(value) = r.field(&format!("{SECTION}.{field}"), kind, Some(&text)) {
            fields.insert(field, (&value).into());
        }
    }
    let rule = rule_from(name, fields).map_err(|e| r.problem(SECTION, e));
    let rule = rule.or_else(|()| rule_from(name, Map::new())).expect("defaults make a rule");
    if let Err(e) = rule.validate() {
        r.problem(SECTION, e.to_string());
    }
    rule
}

fn resolve_schedule(r: &mut Resolver) -> Schedule {
    let key = format!("{SECTION}.schedule");
    let written = r.text(&key);
    // PaddleRec's word2vec file names the steps and the rate only.
    let implied = if r.has(&format!("{SECTION}.decay_steps")) { "exponential" } else { "constant" };
    let name = written.unwrap_or_else(|| r.derive(&key, implied));
    let Some((name, fields)) =
        SCHEDULES.iter().find(|(n, _)| n.eq_ignore_ascii_case(&name)).copied()
    else {
        let known: Vec<&str> = SCHEDULES.iter().map(|s| s.0).collect();
        r.problem(&key, format!("'{name}' is not one of {}", known.join(", ")));
        return Schedule::Constant;
    };
    let mut map = Map::new();
    map.insert("schedule".into(), name.into());
    for (field, kind, default) in fields {
        let key = format!("{SECTION}.{field}");
        match r.field(&key, *kind, *default) {
            Some(value) => {
                map.insert(field.to_string(), (&value).into());
            }
            None => r.problem(&key, format!("must be set for schedule {name}")),
        }
    }
    serde_json::from_value(Value::Object(map)).unwrap_or_else(|e| {
        r.problem(&key, e.to_string());
        Schedule::Constant
    })
}

fn resolve_clip(r: &mut Resolver) -> Option<Clip> {
    let key = |name: &str| format!("{SECTION}.{name}");
    let mut clips: Vec<Clip> = Vec::new();
    if let Some(norm) = r.float(&key("clip_by_norm")) {
        clips.push(Clip::Norm(norm));
    }
    if let Some(norm) = r.float(&key("clip_by_global_norm")) {
        clips.push(Clip::GlobalNorm(norm));
    }
    if let Some(max) = r.float(&key("clip_by_value")) {
        clips.push(Clip::Value { min: -max, max });
    }
    if clips.len() > 1 {
        r.problem(SECTION, "only one of the clip_by keys can be set".to_string());
    }
    clips.pop()
}
