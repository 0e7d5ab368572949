//! The arithmetic of cluster plans: properties that hold for any cluster, and tables that are
//! really made.

use std::path::Path;

use proptest::prelude::*;
use regatta_plan::tier::COLD_ROW;
use regatta_plan::workload::ROW_OVERHEAD;
use regatta_plan::{Cluster, Workload, predict, survey};
use regatta_rec::Config;
use regatta_table::{Accessor, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId};
use regatta_train::tier::Tier;

fn config(mode: &str, batch: u64) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn/config.yaml");
    let overrides = [
        format!("runner.sync_mode={mode}"),
        format!("runner.train_batch_size={batch}"),
        "runner.geo_step=10".into(),
        "hyper_parameters.fc_sizes=[400,400,400]".into(),
    ];
    Config::load(path, &overrides).unwrap()
}

fn workload(mode: &str, batch: u64) -> Workload {
    let data = cluster("").data;
    Workload::new(&config(mode, batch), &data).unwrap()
}

/// A cluster with known data; `more` is added to the file.
fn cluster(more: &str) -> Cluster {
    let text = format!(
        "servers: {{cores: 16, memory_gib: 64, network_gbit: 25, disk_gib: 1000, disk_gb_per_sec: 1}}\n\
         workers: {{cores: 4, memory_gib: 16, network_gbit: 25}}\n\
         data: {{rows: 1e9, ids_per_example: 26, distinct_share: 0.4, bytes_per_example: 366}}\n{more}"
    );
    Cluster::parse(&text, "cluster.yaml").unwrap()
}

#[test]
fn a_click_model_is_counted() {
    let w = workload("async", 512);
    // 247 x 400 + 2 of 400 x 400 + 400 x 2, six operations each.
    assert_eq!(w.flops_per_example, 6.0 * (247.0 * 400.0 + 2.0 * 160_000.0 + 800.0));
    assert_eq!(w.dense, 247.0 * 400.0 + 400.0 + 2.0 * (160_000.0 + 400.0) + 802.0);
    assert_eq!(w.tables.len(), 1);
    let t = &w.tables[0];
    assert_eq!((t.dim, t.rows), (9.0, 1e9));
    assert!((t.keys_per_batch - 26.0 * 512.0 * 0.4).abs() < 1e-6);
    let down = t.keys_per_batch * 36.0 + 4.0 * w.dense;
    assert!((w.bytes_down() - down).abs() < 1e-6);
}

#[test]
fn sixteen_bits_halve_the_traffic() {
    let mut config = config("async", 512);
    let whole = Workload::new(&config, &cluster("").data).unwrap();
    config.runner.distributed.wire = regatta_ps::Wire::Bf16;
    let w = Workload::new(&config, &cluster("").data).unwrap();
    assert_eq!(w.bytes_down(), whole.bytes_down() / 2.0);
    // Ids of 13,001 rows have two bytes.
    assert_eq!(w.bytes_up(), w.bytes_down() + 4.0 * w.keys_per_batch());
}

#[test]
fn data_that_the_file_does_not_describe_are_looked_at() {
    let bare = Cluster::parse(
        "servers: {cores: 1, memory_gib: 1, network_gbit: 1}\n\
         workers: {cores: 1, memory_gib: 1, network_gbit: 1}",
        "x",
    );
    let w = Workload::new(&config("async", 256), &bare.unwrap().data).unwrap();
    assert_eq!(w.ids_per_example, 26.0);
    assert_eq!(w.tables[0].rows, 13_001.0);
    let share = w.keys_per_batch() / (26.0 * 256.0);
    assert!((0.02..0.9).contains(&share), "{share}");
    assert!((200.0..800.0).contains(&w.bytes_per_example), "{}", w.bytes_per_example);
}

#[test]
fn rows_take_what_a_real_table_takes() {
    let rows = 300_000u64;
    let rule = regatta_optim::Rule::Adam(regatta_optim::Adam::default());
    let config = SparseConfig::new(TableId(0), 1, Accessor::Plain(PlainConfig::new(9, rule)));
    let table = SparseTable::new(config).unwrap();
    let keys: Vec<u64> = (0..rows).map(|i| i * 7919).collect();
    let (mut out, mut scratch) = (vec![0.0; 9 * keys.len()], Scratch::default());
    table.pull(&keys, &mut out, PullMode::Train, &mut scratch).unwrap();
    let real = table.stats().unwrap().bytes as f64 / rows as f64;
    let told = workload("async", 512).tables[0].row_bytes;
    assert!(told >= real && told <= real * 1.5, "{told} {real}, {ROW_OVERHEAD} beyond the floats");
}

#[test]
fn rows_on_disk_leave_their_index_in_memory() {
    let mut config = config("async", 512);
    let whole = Workload::new(&config, &cluster("").data).unwrap();
    let tier = Tier { memory_mb: 4096, ssd_dir: "/cold".into(), lookahead: 8 };
    let name = whole.tables[0].name.clone();
    config.runner.distributed.tiers.insert(name.clone(), tier);
    let w = Workload::new(&config, &cluster("").data).unwrap();
    let c = cluster("");
    let (all, some) = (predict(&whole, &c, 1, 1), predict(&w, &c, 1, 1));
    // A row of dim 9 with Adam has 108 bytes of floats.
    let hot = (4096.0 * 1048576.0 / 108.0f64).floor();
    let table = &w.tables[0];
    assert_eq!(table.tier.unwrap().hot(1e9), hot);
    let spared = (1e9 - hot) * (table.row_bytes - COLD_ROW);
    assert!((all.server_memory - some.server_memory - spared).abs() < 1.0);
    // 33 records of 124 bytes in a page, twice.
    assert_eq!((all.cold_bytes, some.cold_bytes), (0.0, 2.0 * (1e9 - hot) * 4096.0 / 33.0));
    let told = survey(&w, &c).to_string();
    assert!(told.contains("4.0 GiB of rows (39.8 M) in the memory of each server"), "{told}");
    // A server of 64 GiB is advised to use the disk, with a budget that fits.
    let advice = survey(&whole, &c).sizes[0].advice[0].remedies.join(" ");
    let memory_mb = advice.split("memory_mb: ").nth(1).unwrap().split(' ').next().unwrap();
    let tier = config.runner.distributed.tiers.get_mut(&name).unwrap();
    tier.memory_mb = memory_mb.parse().unwrap();
    let w = Workload::new(&config, &cluster("").data).unwrap();
    let need = predict(&w, &c, 1, 1).server_memory;
    assert!(need <= c.servers.memory && need > 0.9 * c.servers.memory, "{need} {advice}");
}

#[test]
fn what_does_not_fit_is_told_with_the_smallest_change() {
    let c = cluster("wanted_examples_per_sec: 2e6\n");
    let s = survey(&workload("async", 512), &c);
    let told = s.to_string();
    assert!(told.contains("a server needs"), "{told}");
    // As many servers as the remedy says are enough, and one fewer is not.
    let remedy = &s.sizes[0].advice[0].remedies[0];
    let n: u64 = remedy.split(' ').next().unwrap().parse().unwrap();
    let need = |n| predict(&workload("async", 512), &c, n, 1).server_memory;
    assert!(need(n) <= c.servers.memory && need(n - 1) > c.servers.memory, "{remedy}");
    assert!(told.contains("2.0 M examples/s are wanted"), "{told}");
    let speed = s.sizes[0].advice.iter().find(|a| a.problem.contains("wanted")).unwrap();
    let words: Vec<u64> = speed.remedies[0].split(' ').filter_map(|w| w.parse().ok()).collect();
    let (servers, workers) = (words[0], words[1]);
    let rate = |n, m| predict(&workload("async", 512), &c, n, m).examples_per_sec;
    assert!(rate(servers, workers) >= 2e6, "{:?}", speed.remedies);
    assert!(rate(servers, workers - 1) < 2e6, "{:?}", speed.remedies);
}

#[test]
fn thousands_of_processes_are_planned_at_once() {
    let mut c = cluster("");
    (c.servers.counts, c.workers.counts) = (vec![1, 10, 100, 1000], vec![1, 100, 1000, 5000]);
    let s = survey(&workload("async", 2048), &c);
    assert_eq!(s.sizes.len(), 16);
    let last = &s.sizes[15].prediction;
    assert!(last.examples_per_sec > 1e6, "{last:?}");
    assert!(s.sizes[15].advice.is_empty(), "{s}");
}

#[test]
fn on_one_machine_all_share_its_cores() {
    let mut c = cluster("one_machine: true\n");
    c.workers.cores = 2.0;
    let w = workload("async", 512);
    let (few, many) = (predict(&w, &c, 1, 2), predict(&w, &c, 1, 64));
    assert!(many.examples_per_sec <= few.examples_per_sec * 1.3, "{few:?} {many:?}");
    let own = predict(&w, &cluster(""), 1, 64).examples_per_sec;
    assert!(own > 4.0 * many.examples_per_sec);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn more_workers_are_never_slower_and_never_more_than_in_proportion(
        servers in 1u64..64, workers in 1u64..200, batch in 32u64..4096, geo in any::<bool>()
    ) {
        let (w, c) = (workload(if geo { "geo" } else { "async" }, batch), cluster(""));
        let one = predict(&w, &c, servers, 1).examples_per_sec;
        let some = predict(&w, &c, servers, workers).examples_per_sec;
        let more = predict(&w, &c, servers, workers + 1).examples_per_sec;
        prop_assert!(more >= some * (1.0 - 1e-9));
        prop_assert!(some <= one * workers as f64 * (1.0 + 1e-9));
    }

    #[test]
    fn no_part_is_used_beyond_its_limits(
        servers in 1u64..200, workers in 1u64..2000, mode in 0usize..4, batch in 32u64..4096
    ) {
        let mode = ["async", "sync", "geo", "half_async"][mode];
        let (w, c) = (workload(mode, batch), cluster(""));
        let p = predict(&w, &c, servers, workers);
        prop_assert!(p.examples_per_sec.is_finite() && p.examples_per_sec > 0.0);
        prop_assert!(p.server_network <= c.servers.network * (1.0 + 1e-9));
        prop_assert!(p.bottleneck_share <= 1.0 + 1e-9);
        // Nobody computes faster than its cores.
        let flops = p.examples_per_sec * w.flops_per_example;
        let cores = workers as f64 * c.workers.cores;
        prop_assert!(flops <= cores * c.figures.gflops * 1e9 * (1.0 + 1e-9));
    }

    #[test]
    fn memory_of_servers_falls_with_their_number_and_adds_up(servers in 1u64..500) {
        let (w, c) = (workload("async", 512), cluster(""));
        let (one, more) = (predict(&w, &c, servers, 1), predict(&w, &c, servers + 1, 1));
        prop_assert!(more.server_memory < one.server_memory);
        prop_assert!(one.server_memory * servers as f64 >= w.table_bytes());
    }
}
