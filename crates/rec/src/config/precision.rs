//! Mixed precision and recompute: the keys `runner.amp` and `runner.recompute` with their
//! `..._configs` become what the passes take.

use std::path::PathBuf;

use regatta_optim::LossScaling;
use regatta_passes::{AmpConfig, RecomputeConfig};

use super::resolver::Resolver;

/// Words that `runner.amp` takes.
pub(super) const PRECISIONS: &[&str] = &["off", "bf16", "fp16"];

/// Keys that matter with `runner.amp` only, and those of them that are about loss scaling.
const AMP: &str = "runner.amp_configs";
const LISTS: &[&str] =
    &["use_pure", "custom_white_list", "custom_black_list", "custom_black_varnames"];
const SCALING: &[&str] = &[
    "use_loss_scaling",
    "init_loss_scaling",
    "incr_every_n_steps",
    "decr_every_n_nan_or_inf",
    "incr_ratio",
    "decr_ratio",
    "use_dynamic_loss_scaling",
];

/// Mixed precision, if it is switched on.
pub(super) fn resolve_amp(r: &mut Resolver) -> Option<AmpConfig> {
    let key = |name: &str| format!("{AMP}.{name}");
    let precision = r.text("runner.amp").unwrap_or_default();
    let (pure, scaled) = (r.bool(&key("use_pure")), r.bool(&key("use_loss_scaling")));
    let lists = LISTS[1..].iter().map(|name| r.texts(&key(name)).unwrap_or_default());
    let [white, black, names] = lists.collect::<Vec<_>>().try_into().expect("three lists");
    let scaling = resolve_scaling(r);
    let plain = match precision.as_str() {
        "bf16" => AmpConfig::bf16(),
        "fp16" => AmpConfig::fp16(),
        _ => {
            for name in LISTS.iter().chain(SCALING) {
                r.unused(&key(name), "runner.amp is off");
            }
            return None;
        }
    };
    let scaled = scaled.unwrap_or(plain.loss_scaling.is_some());
    if scaled {
        if let Err(e) = scaling.validate() {
            r.problem(AMP, e.to_string());
        }
    } else {
        for name in &SCALING[1..] {
            r.unused(&key(name), "the loss is not scaled");
        }
    }
    Some(AmpConfig {
        pure: pure.unwrap_or(false),
        loss_scaling: scaled.then_some(scaling),
        custom_white_list: white,
        custom_black_list: black,
        custom_black_varnames: names,
        ..plain
    })
}

fn resolve_scaling(r: &mut Resolver) -> LossScaling {
    let key = |name: &str| format!("{AMP}.{name}");
    let default = LossScaling::default();
    let mut float = |name: &str, default: f32| r.float(&key(name)).map_or(default, |x| x as f32);
    let initial = float("init_loss_scaling", default.initial);
    let incr_ratio = float("incr_ratio", default.incr_ratio);
    let decr_ratio = float("decr_ratio", default.decr_ratio);
    let mut count = |name: &str, default: u32| {
        r.int(&key(name)).map_or(default, |n| u32::try_from(n).unwrap_or(u32::MAX))
    };
    let incr_every_n_steps = count("incr_every_n_steps", default.incr_every_n_steps);
    let decr_every_n_nan_or_inf = count("decr_every_n_nan_or_inf", default.decr_every_n_nan_or_inf);
    let dynamic = r.bool(&key("use_dynamic_loss_scaling")).unwrap_or(default.dynamic);
    LossScaling {
        initial,
        dynamic,
        incr_every_n_steps,
        decr_every_n_nan_or_inf,
        incr_ratio,
        decr_ratio,
    }
}

/// Recompute, if it is switched on, and the folder for checkpoints that are offloaded.
pub(super) fn resolve_recompute(r: &mut Resolver) -> (Option<RecomputeConfig>, Option<PathBuf>) {
    let key = |name: &str| format!("runner.recompute_configs.{name}");
    let on = r.bool("runner.recompute").unwrap_or(false);
    let checkpoints = r.texts(&key("checkpoints")).unwrap_or_default();
    let enable_offload = r.bool(&key("enable_offload")).unwrap_or(false);
    let checkpoint_shape = r.ints(&key("checkpoint_shape")).unwrap_or_default();
    let folder = r.path(&key("offload_dir"));
    if !on {
        for name in ["checkpoints", "enable_offload", "checkpoint_shape", "offload_dir"] {
            r.unused(&key(name), "runner.recompute is not set");
        }
        return (None, None);
    }
    if !enable_offload {
        r.unused(&key("offload_dir"), "runner.recompute_configs.enable_offload is not set");
    }
    (Some(RecomputeConfig { checkpoints, enable_offload, checkpoint_shape }), folder)
}
