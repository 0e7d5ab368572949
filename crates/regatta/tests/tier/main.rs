//! Tables with rows on disk, through real processes: nothing about a tier changes what is trained,
//! whatever is killed, and nothing is left on the disk.

mod crash;
mod job;

use std::path::Path;

use job::{Job, TABLE, entries, model, tier};

/// Rows of the run, and rows of it on disk.
fn rows(job: &Job) -> (u64, u64) {
    let report = job.report();
    let sum = |of: fn(&serde_json::Value) -> &serde_json::Value| {
        let servers = report["servers"].as_array().unwrap().iter();
        servers.map(|s| of(&s["tables"][TABLE]).as_u64().unwrap()).sum::<u64>()
    };
    (sum(|t| &t["rows"]), sum(|t| &t["tier"]["cold"]))
}

#[test]
fn a_tiny_budget_trains_the_same_model_to_the_bit() {
    let (whole, tiered) = (Job::new(2, 2, "sync"), Job::new(2, 2, "sync"));
    whole.train(&[]);
    tiered.train(&tier(&tiered.cold(), 1));
    assert!(model(&whole.dir()) == model(&tiered.dir()), "values depend on the tier");
    let (rows, cold) = rows(&tiered);
    assert!(cold > 0 && cold < rows, "{cold} of {rows} rows are on disk");
    assert!(entries(&tiered.cold()).is_empty(), "{:?}", entries(&tiered.cold()));
}

#[test]
fn modes_that_do_not_wait_train_with_rows_on_disk() {
    for mode in ["async", "geo"] {
        let job = Job::new(1, 2, mode);
        let output = job.train(&tier(&job.cold(), 1));
        let report = job.report();
        let tier = &report["servers"][0]["tables"][TABLE]["tier"];
        assert!(tier["cold"].as_u64() > Some(0) && tier["demoted"].as_u64() > Some(0), "{tier}");
        assert_eq!(tier["memory_bytes"], 1 << 20);
        let measures = report["epochs"][0]["metrics"].as_object().unwrap();
        let hit_rate = measures[&format!("tier.{TABLE}.hit_rate")].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&hit_rate), "{measures:?}");
        assert!(output.contains("hit rate"), "{output}");
        assert!(report["epochs"][0]["loss"].as_f64().unwrap() < 0.7, "{report}");
        let settings = &report["config"]["table_parameters"][TABLE];
        assert_eq!((&settings["memory_mb"], &settings["lookahead"]), (&1.into(), &8.into()));
        assert!(entries(&job.cold()).is_empty());
    }
}

#[test]
fn what_cannot_be_honoured_is_said_before_training() {
    let job = Job::new(1, 1, "sync");
    let refused = |overrides: &[String], want: &str| {
        let errors = job.fail(overrides);
        assert!(errors.contains(want), "{errors}\nexpected {want}");
    };
    let key = format!("table_parameters.{TABLE}");
    let file = job.dir().join("file");
    std::fs::write(&file, "").unwrap();
    refused(&tier(&file.join("cold"), 1), &format!("{key}.ssd_dir: cannot write to"));
    refused(&[format!("{key}.ssd_dir=/tmp")], &format!("{key}.ssd_dir: needs {key}.memory_mb"));
    let other = tier(Path::new("/tmp"), 1).map(|text| text.replace(TABLE, "embeding"));
    refused(&other, &format!("there is no table 'embeding'; the model has {TABLE}"));
    let alone = Job { servers: 0, ..Job::new(0, 0, "sync") };
    let errors = alone.fail(&tier(&alone.cold(), 1));
    assert!(errors.contains("rows on disk need a sparse table"), "{errors}");
}
