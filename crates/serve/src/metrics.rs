//! Counters of each thread, added up for every scrape, in the text form of Prometheus.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::About;

/// What can go wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    Timeout,
    TooLarge,
    Internal,
    Busy,
}

const KINDS: [&str; 8] = [
    "bad_request",
    "unauthorized",
    "not_found",
    "method_not_allowed",
    "timeout",
    "too_large",
    "internal",
    "busy",
];

/// The paths that are counted apart.
pub(crate) const PATHS: [&str; 5] = ["/predict", "/healthz", "/metrics", "/model", "other"];

/// Upper ends of the buckets of latencies, in microseconds.
const BUCKETS_US: [u64; 15] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 5_000_000, 10_000_000,
];

/// The counters of one thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [AtomicU64; PATHS.len()],
    errors: [AtomicU64; KINDS.len()],
    rows: AtomicU64,
    batches: AtomicU64,
    missing_ids: AtomicU64,
    latency: [AtomicU64; BUCKETS_US.len() + 1],
    latency_sum_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn request(&self, path_idx: usize) {
        self.requests[path_idx].fetch_add(1, Relaxed);
    }

    pub(crate) fn error(&self, kind: Kind) {
        self.errors[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn scored(&self, n_rows: usize, missing_ids: u64) {
        self.batches.fetch_add(1, Relaxed);
        self.rows.fetch_add(n_rows as u64, Relaxed);
        self.missing_ids.fetch_add(missing_ids, Relaxed);
    }

    pub(crate) fn latency(&self, took: Duration) {
        let us = took.as_micros() as u64;
        let bucket = BUCKETS_US.partition_point(|end| *end < us);
        self.latency[bucket].fetch_add(1, Relaxed);
        self.latency_sum_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }
}

/// What the whole server counts.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) reloads: AtomicU64,
    pub(crate) failed_reloads: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) refused_connections: AtomicU64,
}

/// Everything as text.
pub(crate) fn text(threads: &[Arc<Counters>], totals: &Totals, about: &About) -> String {
    let sum = |of: Pick<'_>| threads.iter().map(|counters| of(counters).load(Relaxed)).sum::<u64>();
    let mut out = String::new();
    head(&mut out, "requests_total", "counter", "Requests by path.");
    for (i, path) in PATHS.iter().enumerate() {
        line(&mut out, &format!("requests_total{{path=\"{path}\"}}"), sum(&|c| &c.requests[i]));
    }
    head(&mut out, "errors_total", "counter", "Requests that were not answered as asked, by kind.");
    for (i, kind) in KINDS.iter().enumerate() {
        line(&mut out, &format!("errors_total{{kind=\"{kind}\"}}"), sum(&|c| &c.errors[i]));
    }
    let one = |out: &mut String, name, kind, help, value| {
        head(out, name, kind, help);
        line(out, name, value);
    };
    one(&mut out, "rows_total", "counter", "Rows that were scored.", sum(&|c| &c.rows));
    one(&mut out, "batches_total", "counter", "Batches of rows.", sum(&|c| &c.batches));
    let missing = sum(&|c| &c.missing_ids);
    one(&mut out, "missing_ids_total", "counter", "Ids that the model has no row for.", missing);
    latencies(&mut out, &sum);
    let total = |counter: &AtomicU64| counter.load(Relaxed);
    one(&mut out, "connections", "gauge", "Open connections.", total(&totals.connections));
    let refused = total(&totals.refused_connections);
    one(&mut out, "refused_connections_total", "counter", "Connections beyond the limit.", refused);
    one(&mut out, "reloads_total", "counter", "New models that took over.", total(&totals.reloads));
    let failed = total(&totals.failed_reloads);
    one(&mut out, "failed_reloads_total", "counter", "New models that were refused.", failed);
    if let Some(serial) = about.serial {
        one(&mut out, "model_serial", "gauge", "Number of the model's checkpoint.", serial);
    }
    if let Some(step) = about.step {
        one(&mut out, "model_step", "gauge", "Steps of training of the model.", step);
    }
    out
}

/// Picks one counter.
type Pick<'p> = &'p dyn Fn(&Counters) -> &AtomicU64;

fn latencies(out: &mut String, sum: &dyn Fn(Pick<'_>) -> u64) {
    let name = "request_seconds";
    head(out, name, "histogram", "Time from the head of a /predict request to its answer.");
    let mut so_far = 0;
    for i in 0..=BUCKETS_US.len() {
        so_far += sum(&|c| &c.latency[i]);
        let end = match BUCKETS_US.get(i) {
            Some(us) => format!("{}", *us as f64 / 1e6),
            None => "+Inf".into(),
        };
        line(out, &format!("{name}_bucket{{le=\"{end}\"}}"), so_far);
    }
    let seconds = sum(&|c| &c.latency_sum_ns) as f64 / 1e9;
    writeln!(out, "regatta_{name}_sum {seconds}").expect("memory takes all text");
    line(out, &format!("{name}_count"), so_far);
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    write!(out, "# HELP regatta_{name} {help}\n# TYPE regatta_{name} {kind}\n")
        .expect("memory takes all text");
}

fn line(out: &mut String, name: &str, value: u64) {
    writeln!(out, "regatta_{name} {value}").expect("memory takes all text");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up() {
        let threads = [Arc::new(Counters::default()), Arc::new(Counters::default())];
        for (i, counters) in threads.iter().enumerate() {
            counters.request(0);
            counters.error(Kind::Busy);
            counters.scored(3, 1);
            counters.latency(Duration::from_micros(100 + 400 * i as u64));
        }
        let mut about = crate::worker::tests::about(vec![]);
        about.serial = Some(7);
        let text = text(&threads, &Totals::default(), &about);
        for expected in [
            "regatta_requests_total{path=\"/predict\"} 2\n",
            "regatta_errors_total{kind=\"busy\"} 2\n",
            "regatta_rows_total 6\n",
            "regatta_missing_ids_total 2\n",
            "regatta_request_seconds_bucket{le=\"0.0001\"} 1\n",
            "regatta_request_seconds_bucket{le=\"0.0005\"} 2\n",
            "regatta_request_seconds_bucket{le=\"+Inf\"} 2\n",
            "regatta_request_seconds_sum 0.0006\n",
            "regatta_request_seconds_count 2\n",
            "regatta_model_serial 7\n",
        ] {
            assert!(text.contains(expected), "{expected}{text}");
        }
    }
}
