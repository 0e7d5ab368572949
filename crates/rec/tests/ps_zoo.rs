//! Every model of the zoo trains against parameter servers.

use std::path::{Path, PathBuf};
use std::thread;

use regatta_ps::{JobToken, Mode};
use regatta_rec::run::{Place, serve, train_as};
use regatta_rec::{Config, zoo};
use regatta_train::Job;
use regatta_train::observe::Event;

fn config(model: &zoo::Model, dir: &Path, mode: &str) -> Config {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models")
        .join(model.group)
        .join(model.name)
        .join("config.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|l| l.trim_start().starts_with("train_data_dir")).unwrap();
    let url = line.split('"').nth(1).unwrap();
    let (start, rest) = url.split_once("examples=").unwrap();
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let overrides = [
        format!("runner.train_data_dir={start}examples=300{rest}"),
        format!("runner.model_save_path={}", dir.display()),
        format!("runner.sync_mode={mode}"),
        "runner.train_batch_size=50".to_string(),
        "runner.split_file_list=True".to_string(),
        "runner.geo_step=2".to_string(),
        "runner.epochs=1".to_string(),
    ];
    Config::load(&file, &overrides).unwrap()
}

/// Two servers and two workers in threads; returns the loss over all workers.
fn train(model: &zoo::Model, mode: &str) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let at = |mode: &str| config(model, dir.path(), mode);
    let parsed: Mode = at(mode).runner.distributed.mode;
    let job = Job::new(vec!["127.0.0.1:0".into(); 2], 2, parsed, JobToken::new("zoo"));
    let (tell, told) = std::sync::mpsc::sync_channel(2);
    thread::scope(|s| {
        let servers: Vec<_> = (0..2)
            .map(|i| {
                let (job, tell, at) = (&job, tell.clone(), &at);
                s.spawn(move || {
                    serve(&at(mode), job, i, |endpoint| {
                        tell.send((i, endpoint.to_string())).unwrap();
                    })
                })
            })
            .collect();
        let mut endpoints: Vec<_> = (0..2).map(|_| told.recv().unwrap()).collect();
        endpoints.sort();
        let mut job = job.clone();
        job.endpoints = endpoints.into_iter().map(|(_, e)| e).collect();
        let workers: Vec<_> = (0..2)
            .map(|w| {
                let (job, at) = (job.clone(), &at);
                s.spawn(move || {
                    train_as(&at(mode), Place::Worker(&job, w), &mut |_: &Event<'_>| {})
                })
            })
            .collect();
        let reports: Vec<_> = workers
            .into_iter()
            .map(|w| w.join().unwrap().unwrap_or_else(|e| panic!("{} {mode}: {e}", model.name)))
            .collect();
        for server in servers {
            server.join().unwrap().unwrap_or_else(|e| panic!("{} {mode}: {e}", model.name));
        }
        let epoch = &reports[0].report.epochs[0];
        assert_eq!(epoch.loss, reports[1].report.epochs[0].loss, "{}", model.name);
        epoch.loss.unwrap()
    })
}

#[test]
fn every_model_trains_against_servers_in_sync_async_and_geo_mode() {
    for model in zoo::all() {
        let losses: Vec<f64> = ["sync", "async", "geo"].map(|mode| train(model, mode)).into();
        // The same data and initial values: after a few steps the modes are still near each other,
        // though din's large learning rate makes asynchronous steps jump.
        for loss in &losses {
            assert!(loss.is_finite() && *loss > 0.0, "{}: {losses:?}", model.name);
            assert!((0.5..2.0).contains(&(loss / losses[0])), "{}: {losses:?}", model.name);
        }
    }
}
