//! All sizes of a cluster file beside each other.

use std::fmt;

use serde::Serialize;

use crate::advice::{Advice, advise, bytes, plural, short};
use crate::cluster::Cluster;
use crate::predict::{Prediction, predict};
use crate::tier::COLD_ROW;
use crate::workload::Workload;

/// A model on every size of a cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    /// What a step takes.
    pub workload: Workload,
    /// Bytes on the network per example, both ways.
    pub wire_bytes_per_example: f64,
    /// Bytes of all tables.
    pub table_bytes: f64,
    /// Examples of a data pass, if the file says so.
    pub examples: Option<f64>,
    /// One entry for each number of servers and workers.
    pub sizes: Vec<Size>,
}

/// One number of servers and workers.
#[derive(Debug, Clone, Serialize)]
pub struct Size {
    /// The figures.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// What is wrong; nothing if it fits and is fast enough.
    pub advice: Vec<Advice>,
}

/// Predicts every size that the cluster file names.
pub fn survey(workload: &Workload, cluster: &Cluster) -> Survey {
    let mut sizes = Vec::new();
    for &servers in &cluster.servers.counts {
        for &workers in &cluster.workers.counts {
            let prediction = predict(workload, cluster, servers, workers);
            let advice = advise(workload, cluster, &prediction);
            sizes.push(Size { prediction, advice });
        }
    }
    Survey {
        workload: workload.clone(),
        wire_bytes_per_example: workload.wire_bytes_per_example(),
        table_bytes: workload.table_bytes(),
        examples: cluster.data.examples,
        sizes,
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let w = &self.workload;
        writeln!(
            f,
            "{}, mode {}, batches of {}: {} ids an example, {} distinct keys a batch, {} \
             floating-point operations an example",
            w.model,
            w.mode,
            w.batch,
            short(w.ids_per_example),
            short(w.keys_per_batch()),
            short(w.flops_per_example)
        )?;
        for t in &w.tables {
            let (rows, each, all) = (short(t.rows), t.row_bytes, bytes(t.rows * t.row_bytes));
            writeln!(f, "table {}: {rows} rows of {each} bytes, {all}", t.name)?;
            if let Some(tier) = &t.tier {
                let hot = short(tier.hot(t.rows));
                let (memory, record) = (bytes(tier.memory), tier.record_bytes);
                writeln!(
                    f,
                    "  of these {memory} of rows ({hot}) in the memory of each server, without \
                     their index; another row takes {COLD_ROW} bytes of memory and {record:.0} of \
                     disk, up to twice that before compaction"
                )?;
            }
        }
        writeln!(
            f,
            "dense: {} parameters; network: {} an example",
            short(w.dense),
            bytes(self.wire_bytes_per_example)
        )?;
        writeln!(f)?;
        self.table(f)?;
        for size in self.sizes.iter().filter(|s| !s.advice.is_empty()) {
            writeln!(f)?;
            let p = &size.prediction;
            let (servers, workers) = (plural(p.servers, "server"), plural(p.workers, "worker"));
            writeln!(f, "{servers} x {workers}:")?;
            for advice in &size.advice {
                writeln!(f, "  {}", advice.problem)?;
                for (i, remedy) in advice.remedies.iter().enumerate() {
                    writeln!(f, "    {} {remedy}", if i == 0 { "->" } else { "or" })?;
                }
            }
        }
        Ok(())
    }
}

impl Survey {
    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>7} {:>7} {:>11} {:>10} {:>10} {:>10} {:>8} {:>8}  bottleneck",
            "servers", "workers", "examples/s", "server", "worker", "network", "save", "pass"
        )?;
        for size in &self.sizes {
            let p = &size.prediction;
            let save = p.save_seconds.map_or("-".into(), duration);
            let pass = self.examples.map_or("-".into(), |n| duration(n / p.examples_per_sec));
            writeln!(
                f,
                "{:>7} {:>7} {:>11} {:>10} {:>10} {:>8}/s {:>8} {:>8}  {} ({:.0} %){}",
                p.servers,
                p.workers,
                short(p.examples_per_sec),
                bytes(p.server_memory),
                bytes(p.worker_memory),
                bytes(p.server_network),
                save,
                pass,
                p.bottleneck,
                100.0 * p.bottleneck_share,
                if size.advice.is_empty() { "" } else { "  (!)" }
            )?;
        }
        Ok(())
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}
