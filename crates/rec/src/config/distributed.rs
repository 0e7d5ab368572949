//! What several processes need: the consistency mode with its keys, the wire, who reads which data.

use regatta_fleet::strategy::ASyncConfigs;
use regatta_ps::{AsyncConfig, Mode, Wire};
use regatta_table::Admission;

use super::gpubox::{DEVICE, resolve_gpubox};
use super::resolver::Resolver;
use super::tiers::resolve_tiers;
use super::{Distributed, GpuBox, keys};
use crate::HyperValue;

const GEO_STEP: &str = "runner.geo_step";
const STALENESS: &str = "runner.staleness";

/// Keys that mode `async` uses.
const ASYNC: &[&str] = &[
    "runner.max_merge_var_num",
    "runner.send_queue_size",
    "runner.pull_ahead",
    "runner.dense_ahead",
    "runner.min_send_grad_num_before_recv",
    "runner.send_wait_times",
];
/// Keys of Paddle's asynchronous training that are checked and have no effect.
const WITHOUT_EFFECT: &[&str] = &["runner.independent_recv_thread", "runner.thread_pool_size"];

pub(super) fn resolve_distributed(r: &mut Resolver) -> Distributed {
    let (mode, gpubox) = resolve_mode(r);
    let wire = resolve_wire(r, &mode);
    let split = match r.value("runner.split_file_list") {
        Some(HyperValue::Bool(split)) => Some(split),
        _ => None,
    };
    Distributed {
        mode,
        gpubox,
        wire,
        split_file_list: split,
        use_fleet: r.bool("runner.use_fleet").unwrap_or_default(),
        strategy: r.path("runner.strategy"),
        warmup_model_path: r.path("runner.warmup_model_path"),
        entry: resolve_entry(r),
        tiers: resolve_tiers(r),
    }
}

/// The mode with its keys. Those of other modes are left out of the settings.
fn resolve_mode(r: &mut Resolver) -> (Mode, Option<GpuBox>) {
    let name = r.text("runner.sync_mode").unwrap_or_default();
    let gpubox = (name == keys::GPUBOX).then(|| resolve_gpubox(r));
    if gpubox.is_none() {
        leave_out(r, &[DEVICE], "only sync_mode gpubox uses it");
    }
    let mode = match name.as_str() {
        // A step sees the update of the step before, as on one device.
        "sync" | keys::GPUBOX => Mode::Sync,
        "half_async" => Mode::HalfAsync,
        "bounded" => Mode::Bounded { staleness: must_be_set(r, STALENESS, &name) },
        "geo" => Mode::Geo { every: must_be_set(r, GEO_STEP, &name) },
        _ => Mode::Async(resolve_async(r)),
    };
    if !matches!(mode, Mode::Geo { .. }) {
        leave_out(r, &[GEO_STEP], "only sync_mode geo uses it");
    }
    if !matches!(mode, Mode::Bounded { .. }) {
        leave_out(r, &[STALENESS], "only sync_mode bounded uses it");
    }
    // Keys of asynchronous training have been checked where Paddle's options become settings.
    if !matches!(mode, Mode::Async(_)) {
        for problem in mode.problems() {
            r.problem(&format!("runner.{}", problem.name), problem.reason);
        }
        leave_out(r, ASYNC, "only sync_mode async uses it");
        leave_out(r, WITHOUT_EFFECT, "only sync_mode async uses it");
    }
    (mode, gpubox)
}

fn must_be_set(r: &mut Resolver, key: &str, mode: &str) -> u64 {
    let problems = r.problems.len();
    let value = r.int(key);
    // A value that is no number has been reported.
    if value.is_none() && r.problems.len() == problems {
        r.problem(key, format!("must be set for sync_mode {mode}"));
    }
    // Not 0, which would be a second mistake.
    value.unwrap_or(1)
}

/// Checks what was written for keys, and leaves them out.
fn leave_out(r: &mut Resolver, keys: &[&str], reason: &str) {
    for key in keys {
        r.value(key);
        r.unused(key, reason);
    }
}

/// The keys of asynchronous training are Paddle's options, and mean the same as in a strategy.
fn resolve_async(r: &mut Resolver) -> AsyncConfig {
    let options = ASyncConfigs {
        max_merge_var_num: r.int("runner.max_merge_var_num").unwrap_or_default(),
        send_queue_size: r.int("runner.send_queue_size").unwrap_or_default(),
        pull_ahead: r.int("runner.pull_ahead").unwrap_or_default(),
        dense_ahead: r.bool("runner.dense_ahead").unwrap_or_default(),
        min_send_grad_num_before_recv: r
            .int("runner.min_send_grad_num_before_recv")
            .unwrap_or_default(),
        send_wait_times: r.int("runner.send_wait_times"),
        independent_recv_thread: r.bool("runner.independent_recv_thread").unwrap_or(false),
        thread_pool_size: r.int("runner.thread_pool_size").unwrap_or(1),
        ..ASyncConfigs::default()
    };
    let config = options.asynchronous().unwrap_or_else(|problems| {
        for problem in problems {
            r.problem(&format!("runner.{}", problem.name), problem.reason);
        }
        AsyncConfig::default()
    });
    for key in WITHOUT_EFFECT {
        r.unused(key, keys::find(key).map_or("", |key| key.doc));
    }
    config
}

fn resolve_wire(r: &mut Resolver, mode: &Mode) -> Wire {
    let wire = r.text("runner.wire").and_then(|text| text.parse().ok()).unwrap_or_default();
    if matches!(mode, Mode::Geo { .. }) && wire != Wire::F32 {
        let reason =
            format!("{wire} cannot be honoured: the differences of sync_mode geo travel as f32");
        r.problem("runner.wire", reason);
    }
    wire
}

fn resolve_entry(r: &mut Resolver) -> Admission {
    let key = "table_parameters.entry";
    let Some(text) = r.text(key) else { return Admission::None };
    let reason = match text.parse::<Admission>() {
        Ok(Admission::ShowClick { .. }) => {
            "show_click_entry cannot be honoured: rows of these models have no shows and clicks"
                .to_string()
        }
        Ok(Admission::Probability(p)) if !(p > 0.0 && p <= 1.0) => {
            format!("the probability is {p}, expected more than 0 and at most 1")
        }
        Ok(entry) => return entry,
        Err(reason) => reason,
    };
    r.problem(key, reason);
    Admission::None
}
