//! What rows on disk meant for a data pass: hit rate, reads and waits, as measures of its report.

use std::collections::BTreeMap;

use regatta_ps::message::{ServerStats, TierStats};

use crate::metrics::Measure;

/// Counts of one table over all servers, since they started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    pulled: f64,
    cold_hits: f64,
    cold_reads: f64,
    waits: f64,
    wait_seconds: f64,
    cold: f64,
    disk_bytes: f64,
}

/// Remembers the counts at the end of the last data pass.
#[derive(Debug, Default)]
pub(crate) struct TierMeter {
    before: BTreeMap<String, Counts>,
}

impl TierMeter {
    /// The measures of a data pass of so many seconds, by table; none without rows on disk.
    pub(crate) fn measures(&mut self, servers: &[ServerStats], seconds: f64) -> Vec<Measure> {
        let mut now = BTreeMap::<String, Counts>::new();
        for (name, table) in servers.iter().flat_map(|server| &server.tables) {
            let Some(tier) = &table.tier else { continue };
            let counts = now.entry(name.clone()).or_default();
            counts.add(table.pulled.saturating_sub(table.missed), tier);
        }
        let mut measures = Vec::new();
        for (name, counts) in &now {
            let before = self.before.get(name).copied().unwrap_or_default();
            let of = |measure: &str| format!("tier.{name}.{measure}");
            let pulled = counts.pulled - before.pulled;
            let cold_hits = counts.cold_hits - before.cold_hits;
            let reads = counts.cold_reads - before.cold_reads;
            measures.extend([
                (of("hit_rate"), if pulled > 0.0 { 1.0 - cold_hits / pulled } else { 1.0 }),
                (of("cold_reads_per_sec"), reads / seconds.max(1e-9)),
                (of("waits"), counts.waits - before.waits),
                (of("wait_seconds"), counts.wait_seconds - before.wait_seconds),
                (of("cold_rows"), counts.cold),
                (of("disk_bytes"), counts.disk_bytes),
            ]);
        }
        self.before = now;
        measures
    }
}

impl Counts {
    fn add(&mut self, pulled: u64, tier: &TierStats) {
        let pulled = pulled as f64;
        self.pulled += pulled;
        self.cold_hits += (1.0 - tier.hit_rate) * pulled;
        self.cold_reads += tier.cold_reads as f64;
        self.waits += tier.waits as f64;
        self.wait_seconds += tier.wait_seconds;
        self.cold += tier.cold as f64;
        self.disk_bytes += tier.disk_bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use regatta_ps::message::TableStats;

    use super::*;

    fn server(pulled: u64, hit_rate: f64, cold_reads: u64) -> ServerStats {
        let tier = TierStats { hit_rate, cold_reads, cold: 7, waits: 1, ..TierStats::default() };
        let table = TableStats { pulled, tier: Some(tier), ..TableStats::default() };
        let plain = TableStats { pulled, ..TableStats::default() };
        let tables = BTreeMap::from([("e".into(), table), ("w".into(), plain)]);
        ServerStats { tables, ..ServerStats::default() }
    }

    fn get(measures: &[Measure], name: &str) -> f64 {
        measures.iter().find(|(n, _)| n == name).unwrap().1
    }

    #[test]
    fn a_data_pass_counts_what_came_since_the_last() {
        let mut meter = TierMeter::default();
        let first = meter.measures(&[server(100, 0.9, 10), server(100, 0.7, 30)], 2.0);
        assert!((get(&first, "tier.e.hit_rate") - 0.8).abs() < 1e-12);
        assert_eq!(get(&first, "tier.e.cold_reads_per_sec"), 20.0);
        assert_eq!((get(&first, "tier.e.cold_rows"), get(&first, "tier.e.waits")), (14.0, 2.0));
        assert!(first.iter().all(|(name, _)| !name.contains(".w.")));
        // Nothing missed in the second pass.
        let second = meter.measures(&[server(200, 0.95, 10), server(200, 0.85, 30)], 2.0);
        assert!((get(&second, "tier.e.hit_rate") - 1.0).abs() < 1e-12);
        assert_eq!(get(&second, "tier.e.cold_reads_per_sec"), 0.0);
    }
}
