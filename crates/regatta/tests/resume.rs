//! Jobs that are killed and resume: with the same losses and parameters, to the bit, where steps
//! are taken together; with every example in the parameters once where they are not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use regatta_checkpoint::{Check, CheckpointDir, Kind, load_tensors, verify};

const EXAMPLES: u64 = 12_000;
const BATCH: u64 = 40;

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/logistic_regression/config.yaml")
}

/// `regatta train` of a small model, two epochs, with a checkpoint every three batches.
fn command(dir: &Path, overrides: &[&str], flags: &[&str]) -> Command {
    let data = format!(
        "runner.train_data_dir=synthetic://ctr?slots=26&vocab=100&dense=13&seed=1&\
         examples={EXAMPLES}"
    );
    let save = format!("runner.model_save_path={}", dir.join("model").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_regatta"));
    command.current_dir(dir);
    command.arg("train").arg("-m").arg(config());
    command.args(["-o", &data, &save, "runner.epochs=2", "runner.split_file_list=True"]);
    let batch = format!("runner.train_batch_size={BATCH}");
    command.args([&batch, "runner.print_interval=1"]);
    command.args(["hyper_parameters.optimizer.class=adam"]);
    command.args(["hyper_parameters.optimizer.learning_rate=0.01"]);
    command.args(overrides).args(flags);
    command.arg("--checkpoint-dir").arg(dir.join("checkpoints"));
    command.args(["--checkpoint-steps", "3"]).arg("--report").arg(dir.join("report.json"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running command and what it has printed.
struct Job {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    errors: Option<std::thread::JoinHandle<String>>,
}

impl Job {
    fn start(mut command: Command) -> Job {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
            text
        });
        Job { child, lines, errors: Some(errors) }
    }

    /// Reads lines until N batches were seen, noting their costs; false at the end.
    fn batches(&mut self, n: u64, costs: &mut Costs) -> bool {
        let mut seen = 0;
        while seen < n {
            let Some(Ok(line)) = self.lines.next() else { return false };
            seen += u64::from(costs.note(&line));
        }
        true
    }

    /// Reads lines until a checkpoint was made.
    fn checkpoint(&mut self, costs: &mut Costs) -> bool {
        let before = costs.checkpoints;
        while costs.checkpoints == before {
            let Some(Ok(line)) = self.lines.next() else { return false };
            costs.note(&line);
        }
        true
    }

    fn end(mut self, costs: &mut Costs) -> (bool, String) {
        while self.batches(1, costs) {}
        let ok = self.child.wait().unwrap().success();
        (ok, self.errors.take().unwrap().join().unwrap())
    }
}

/// The cost of every batch; a batch that is trained again must cost the same.
#[derive(Default)]
struct Costs {
    by_batch: BTreeMap<(u64, u64), String>,
    /// Whether costs must agree.
    exact: bool,
    notes: Vec<String>,
    checkpoints: u64,
}

impl Costs {
    fn exact() -> Costs {
        Costs { exact: true, ..Costs::default() }
    }

    /// Takes a line; true if it was about a batch.
    fn note(&mut self, line: &str) -> bool {
        if let Some((_, note)) = line.split_once("note: ") {
            self.notes.push(note.to_string());
        }
        self.checkpoints += u64::from(line.contains("checkpoint ") && line.contains(", stall "));
        let number = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            Some(rest.split([',', ' ']).next()?.to_string())
        };
        let place = number("epoch: ").zip(number("batch_id: "));
        let Some(((epoch, batch), cost)) = place.zip(number("cost: ")) else { return false };
        let place = (epoch.parse().unwrap(), batch.parse().unwrap());
        let before = self.by_batch.insert(place, cost.clone());
        assert!(!self.exact || before.is_none_or(|b| b == cost), "{place:?}: {line}");
        true
    }
}

/// All tensors of a folder, by file and name, as bits.
fn tensors(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            // What the model is, in words.
            continue;
        }
        for (tensor, value) in load_tensors(&path).unwrap().tensors {
            let bytes = match value.data() {
                regatta_tensor::Data::F32(v) => {
                    v.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect()
                }
                regatta_tensor::Data::U64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
                regatta_tensor::Data::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
                other => panic!("{other:?}"),
            };
            all.insert(format!("{name}/{tensor}"), bytes);
        }
    }
    assert!(!all.is_empty());
    all
}

fn report(dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap()
}

/// Numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 += 1;
        regatta_tensor::Rng::new(20, 0).u64(self.0) % n
    }
}

/// The processes of a job by what they are; those that have ended meanwhile are left out.
fn processes(job: u32) -> Vec<(String, u32)> {
    let list = std::fs::read_to_string(format!("/proc/{job}/task/{job}/children"));
    let role = |pid: u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let pairs = variables.split(|b| *b == 0).map(String::from_utf8_lossy);
        let env = pairs.filter_map(|p| p.split_once('=').map(|(k, v)| (k.into(), v.into())));
        let env: regatta_cluster::Env =
            env.collect::<Vec<(String, String)>>().into_iter().collect();
        Some(regatta_cluster::Place::from_env(&env).ok()?.to_string())
    };
    let all = list.unwrap_or_default();
    let all = all.split_whitespace().filter_map(|p| p.parse().ok());
    all.filter_map(|pid| Some((role(pid)?, pid))).collect()
}

fn kill(pid: u32) {
    // It may have ended by itself just now.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).output().unwrap();
}

/// Runs a job to its end, killing one of its processes (or the one that started them) again and
/// again, at seeded moments. The job restarts itself; if its first process is killed, the same
/// command is given again.
fn run_with_kills(start: impl Fn() -> Command, kills: usize, draw: &mut Draw, costs: &mut Costs) {
    let mut job = Job::start(start());
    let mut done = 0;
    while done < kills {
        // Half of the time the job gets on, whatever the speed of the disk.
        let goes_on = draw.below(2) == 0 || job.checkpoint(costs);
        let goes_on = goes_on && job.batches(1 + draw.below(6), costs);
        assert!(goes_on, "the job ended after {done} kills");
        let mut all = processes(job.child.id());
        all.retain(|(role, _)| role != "local");
        let at = draw.below(all.len() as u64 + 1) as usize;
        done += 1;
        match all.get(at) {
            Some((_, pid)) => kill(*pid),
            None => {
                job.child.kill().unwrap();
                job.end(costs);
                job = Job::start(start());
            }
        }
    }
    let (ok, errors) = job.end(costs);
    assert!(ok, "{errors}");
}

/// Gives a command again and again, each time killed after N batches and a checkpoint, and at
/// last lets it come to its end.
fn run_and_kill(start: impl Fn() -> Command, kill_after: &[u64], costs: &mut Costs) {
    for n in kill_after {
        let mut job = Job::start(start());
        assert!(job.batches(*n, costs) && job.checkpoint(costs), "the job ended");
        job.child.kill().unwrap();
        job.end(costs);
    }
    let (ok, errors) = Job::start(start()).end(costs);
    assert!(ok, "{errors}");
}

#[test]
fn twenty_kills_change_no_bit_of_a_synchronous_job() {
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |dir: &Path| {
        let flags = ["--servers", "2", "--workers", "2", "--max-restart", "100"];
        command(dir, &["runner.sync_mode=sync"], &flags)
    };
    let mut expected = Costs::exact();
    let (ok, errors) = Job::start(start(calm.path())).end(&mut expected);
    assert!(ok, "{errors}");
    let steps = 2 * EXAMPLES / (2 * BATCH);
    assert_eq!(expected.by_batch.len() as u64, steps);
    // Every cost that is ever printed is compared with that of the undisturbed run.
    let mut costs = Costs { by_batch: expected.by_batch.clone(), ..Costs::exact() };
    run_with_kills(|| start(stormy.path()), 20, &mut Draw(0), &mut costs);
    let going_on = costs.notes.iter().filter(|n| n.contains("resuming from")).count();
    assert!(going_on >= 5, "{:?}", costs.notes);
    for epoch in ["0", "1"] {
        let of = |dir: &Path| tensors(&dir.join("model").join(epoch));
        assert!(of(calm.path()) == of(stormy.path()), "epoch {epoch} differs");
    }
    let (calm, stormy) = (report(calm.path()), report(stormy.path()));
    for epoch in 0..2 {
        for what in ["loss", "auc", "examples"] {
            assert_eq!(calm["epochs"][epoch][what], stormy["epochs"][epoch][what], "{what}");
        }
    }
    assert_eq!(stormy["servers"][1]["steps"], steps);
}

#[test]
fn no_example_is_lost_by_kills_of_an_asynchronous_job() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let flags = ["--servers", "2", "--workers", "2", "--max-restart", "100"];
        // Three epochs, because it does not always train everything again after a kill.
        command(dir.path(), &["runner.sync_mode=async", "runner.epochs=3"], &flags)
    };
    run_with_kills(start, 20, &mut Draw(1000), &mut Costs::default());
    // What is in the parameters: every batch of every worker once, by the counts of the servers and
    // by how far the data were read.
    let report = report(dir.path());
    for epoch in 0..3 {
        assert_eq!(report["epochs"][epoch]["examples"], EXAMPLES);
    }
    for server in report["servers"].as_array().unwrap() {
        assert_eq!(server["steps"], 3 * EXAMPLES / BATCH, "{server}");
    }
}

/// Checkpoints of changes between whole ones: a killed job resumes from a chain of them, and no bit
/// differs.
#[test]
fn a_job_goes_on_from_checkpoints_of_changes() {
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |dir: &Path| {
        let flags = ["--servers", "2", "--workers", "2"];
        let changes = ["--checkpoint-full-every", "4", "--checkpoint-keep", "2"];
        command(
            dir,
            &["runner.sync_mode=sync", "runner.epochs=1"],
            &[&flags[..], &changes].concat(),
        )
    };
    let mut expected = Costs::exact();
    let (ok, errors) = Job::start(start(calm.path())).end(&mut expected);
    assert!(ok, "{errors}");
    let mut costs = Costs { by_batch: expected.by_batch.clone(), ..Costs::exact() };
    run_and_kill(|| start(stormy.path()), &[10, 40], &mut costs);
    let of = |dir: &Path| tensors(&dir.join("model").join("0"));
    assert!(of(calm.path()) == of(stormy.path()));
    // Of two checkpoints that are kept, one at least is of changes; what it builds on is there.
    let dir = CheckpointDir::open(stormy.path().join("checkpoints"));
    let entries = dir.list().unwrap();
    let kinds: Vec<Kind> = entries.iter().filter_map(|e| Some(e.manifest()?.kind)).collect();
    assert!(kinds.iter().any(|kind| matches!(kind, Kind::Delta { .. })), "{kinds:?}");
    assert!(kinds.contains(&Kind::Full), "{kinds:?}");
    for entry in entries.iter().filter(|entry| entry.manifest().is_some()) {
        assert_eq!(verify(&entry.path, Check::Checksums), []);
    }
    // Without servers there are no such checkpoints, and the user hears so.
    let alone = tempfile::tempdir().unwrap();
    let flags = ["--checkpoint-full-every", "4"];
    let (ok, errors) = Job::start(command(alone.path(), &[], &flags)).end(&mut Costs::default());
    assert!(!ok && errors.contains("full_every of the checkpoints is 4"), "{errors}");
}

/// Workers of a geo job train copies of their own. A job that is killed resumes with them: a single
/// worker learns as if nothing had happened, and no example of two is lost or trained twice.
#[test]
fn a_killed_geo_job_goes_on_with_the_copies_of_its_workers() {
    let geo = ["runner.sync_mode=geo", "runner.geo_step=4", "runner.epochs=1"];
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let flags = ["--servers", "1", "--workers", "1"];
    let mut expected = Costs::default();
    let (ok, errors) = Job::start(command(calm.path(), &geo, &flags)).end(&mut expected);
    assert!(ok, "{errors}");
    let mut costs = Costs::default();
    run_and_kill(|| command(stormy.path(), &geo, &flags), &[20, 60], &mut costs);
    assert_eq!(costs.notes.iter().filter(|note| note.contains("resuming from")).count(), 2);
    assert_eq!(costs.by_batch.len(), expected.by_batch.len());
    for (batch, cost) in &costs.by_batch {
        // When an exchange is brought into the copy depends on the network: the last bits may
        // differ.
        let [cost, expected] = [cost, &expected.by_batch[batch]].map(|c| c.parse::<f64>().unwrap());
        assert!((cost - expected).abs() < 1e-3, "{batch:?}: {cost} instead of {expected}");
    }

    let two = tempfile::tempdir().unwrap();
    let flags = ["--servers", "2", "--workers", "2"];
    let start = || command(two.path(), &geo, &flags);
    run_and_kill(start, &[10, 40], &mut Costs::default());
    assert_eq!(report(two.path())["epochs"][0]["examples"], EXAMPLES);
    let checkpoints = CheckpointDir::open(two.path().join("checkpoints")).list().unwrap();
    let manifest = checkpoints.last().unwrap().manifest().unwrap();
    let names: Vec<&str> = manifest.parts.iter().map(|part| part.name.as_str()).collect();
    for worker in ["worker-0-of-2", "worker-1-of-2"] {
        assert!(names.iter().any(|name| name.starts_with(worker)), "{names:?}");
    }
}

#[test]
fn a_killed_local_run_goes_on_with_the_same_bits() {
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut expected = Costs::exact();
    assert!(Job::start(command(calm.path(), &[], &[])).end(&mut expected).0);
    let mut costs = Costs { by_batch: expected.by_batch.clone(), ..Costs::exact() };
    for n in [1, 40, 150, 330] {
        let mut job = Job::start(command(stormy.path(), &[], &[]));
        assert!(job.batches(n, &mut costs));
        job.child.kill().unwrap();
        job.end(&mut costs);
    }
    let (ok, errors) = Job::start(command(stormy.path(), &[], &[])).end(&mut costs);
    assert!(ok, "{errors}");
    for epoch in ["0", "1"] {
        let of = |dir: &Path| tensors(&dir.join("model").join(epoch));
        assert!(of(calm.path()) == of(stormy.path()), "epoch {epoch} differs");
    }
    // Finished jobs keep their checkpoints, and say that they are finished.
    let mut costs = Costs::exact();
    let (ok, errors) = Job::start(command(stormy.path(), &[], &[])).end(&mut costs);
    assert!(ok && costs.by_batch.is_empty(), "{errors}");
    assert!(costs.notes.iter().any(|n| n.contains("nothing more to train")), "{:?}", costs.notes);
    let checkpoints = CheckpointDir::open(stormy.path().join("checkpoints"));
    let left = checkpoints.list().unwrap().iter().filter(|e| e.manifest().is_some()).count();
    assert_eq!(left, 3);
}

#[test]
fn another_number_of_servers_and_workers_goes_on() {
    for (mode, exact) in [("runner.sync_mode=sync", true), ("runner.sync_mode=async", false)] {
        let dir = tempfile::tempdir().unwrap();
        let flags = |s: &'static str, w: &'static str| ["--servers", s, "--workers", w];
        let mut costs = Costs { exact, ..Costs::default() };
        let mut job = Job::start(command(dir.path(), &[mode], &flags("2", "2")));
        assert!(job.batches(30, &mut costs) && job.checkpoint(&mut costs));
        job.child.kill().unwrap();
        job.end(&mut costs);
        // More servers change nothing; in sync mode no bit.
        let mut job = Job::start(command(dir.path(), &[mode], &flags("3", "2")));
        assert!(job.batches(20, &mut costs) && job.checkpoint(&mut costs));
        job.child.kill().unwrap();
        job.end(&mut costs);
        // Another number of workers begins the epoch of divided synthetic data again.
        let mut costs = Costs::default();
        let job = Job::start(command(dir.path(), &[mode], &flags("1", "3")));
        let (ok, errors) = job.end(&mut costs);
        assert!(ok, "{errors}");
        let notes = costs.notes.join("\n");
        assert!(notes.contains("the checkpoint is of 2 workers, this job has 3"), "{notes}");
        let report = report(dir.path());
        assert_eq!(report["epochs"][1]["examples"], EXAMPLES, "{mode}");
    }
}

#[test]
fn what_cannot_be_gone_on_from_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let failure = |flags: &[&str], overrides: &[&str]| {
        let mut costs = Costs::default();
        let (ok, errors) = Job::start(command(dir.path(), overrides, flags)).end(&mut costs);
        assert!(!ok);
        costs.notes.join("\n") + &errors
    };
    let errors = failure(&["--resume", "latest"], &[]);
    assert!(errors.contains("there is no checkpoint to resume from"), "{errors}");
    assert!(
        Job::start(command(dir.path(), &["runner.epochs=1"], &[])).end(&mut Costs::default()).0
    );
    let errors = failure(&["--servers", "1", "--workers", "1"], &["runner.sync_mode=sync"]);
    assert!(errors.contains("without parameter servers"), "{errors}");
    let errors = failure(&[], &["hyper_parameters.optimizer.class=sgd"]);
    assert!(errors.contains("it belongs to another program"), "{errors}");
    let errors = failure(&["--resume", "/nowhere/at/all"], &[]);
    assert!(errors.contains("/nowhere/at/all"), "{errors}");
    // More epochs than before: the finished job continues with the second.
    let mut costs = Costs::default();
    assert!(Job::start(command(dir.path(), &[], &[])).end(&mut costs).0);
    assert_eq!(costs.by_batch.keys().next(), Some(&(1, 0)));
    let mut costs = Costs::default();
    assert!(Job::start(command(dir.path(), &[], &["--resume", "none"])).end(&mut costs).0);
    assert_eq!(costs.by_batch.keys().next(), Some(&(0, 0)));
}

/// A click log in six files.
fn files(dir: &Path) -> String {
    let all = dir.join("data");
    let url = format!("synthetic://ctr?slots=26&vocab=100&dense=13&seed=1&examples={EXAMPLES}");
    let source = regatta_data::Synthetic::parse(&url).unwrap();
    let format = regatta_data::TextFormat::MultiSlot;
    regatta_data::write_synthetic(&source, &all, 6, &format).unwrap();
    format!("runner.train_data_dir={}", all.display())
}

/// Files are divided again when there are more workers: each is resumed where its last reader was,
/// so that every example is trained once.
#[test]
fn files_are_divided_anew_between_another_number_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    let data = files(dir.path());
    let settings = [data.as_str(), "runner.sync_mode=half_async", "runner.data_format=multislot"];
    let settings: Vec<&str> = settings
        .into_iter()
        .chain(["runner.reader_type=QueueDataset", "runner.epochs=1"])
        .collect();
    let run =
        |workers: &str| command(dir.path(), &settings, &["--servers", "2", "--workers", workers]);
    let mut costs = Costs::default();
    for workers in ["2", "3"] {
        let mut job = Job::start(run(workers));
        assert!(job.batches(12, &mut costs) && job.checkpoint(&mut costs));
        job.child.kill().unwrap();
        job.end(&mut costs);
    }
    let (ok, errors) = Job::start(run("4")).end(&mut costs);
    assert!(ok, "{errors}");
    let notes = costs.notes.join("\n");
    assert!(notes.contains("each file is resumed where its last reader was"), "{notes}");
    assert_eq!(report(dir.path())["epochs"][0]["examples"], EXAMPLES, "{notes}");
}

#[test]
fn a_job_begins_with_named_variables_of_a_saved_one() {
    let dir = tempfile::tempdir().unwrap();
    let servers = ["--servers", "2", "--workers", "1"];
    let sync = "runner.sync_mode=sync";
    let train = |name: &str, overrides: &[&str], flags: &[&str]| {
        let mut all = vec!["runner.epochs=1"];
        all.extend(overrides);
        let mut costs = Costs::default();
        let (ok, errors) = Job::start(command(&dir.path().join(name), &all, flags)).end(&mut costs);
        (ok, costs.notes.join("\n") + &errors)
    };
    std::fs::create_dir_all(dir.path().join("first")).unwrap();
    std::fs::create_dir_all(dir.path().join("second")).unwrap();
    let (ok, errors) = train("first", &[sync], &servers);
    assert!(ok, "{errors}");
    let saved = tensors(&dir.path().join("first/model/0"));
    let table = saved.keys().find_map(|name| {
        let (_, rest) = name.split_once("/table/")?;
        rest.strip_suffix("/keys").map(str::to_string)
    });
    let (table, init) = (table.unwrap(), dir.path().join("first/model/0"));
    let init = format!("runner.warmup_model_path={}", init.display());
    let (ok, errors) = train("second", &[sync, &init, "runner.init_var_names=nonsense"], &servers);
    assert!(!ok && errors.contains("'nonsense'") && errors.contains(&table), "{errors}");
    let named = format!("runner.init_var_names={table}");
    let (ok, errors) = train("second", &[sync, &init, &named], &servers);
    assert!(ok, "{errors}");
    // The rows were there before the first step, so they have moved further than in one epoch.
    let again = tensors(&dir.path().join("second/model/0"));
    let rows = |t: &BTreeMap<String, Vec<u8>>| {
        let of = |(name, rows): (&String, &Vec<u8>)| {
            name.ends_with(&format!("/table/{table}/rows")).then(|| rows.clone())
        };
        t.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_ne!(rows(&saved), rows(&again));
}

/// A collective job that is killed again and again ends with the bits of one that is not.
fn kills_change_nothing(overrides: &[&str], kills: usize, seed: u64) {
    let (calm, stormy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |dir: &Path| command(dir, overrides, &["--ranks", "2", "--max-restart", "100"]);
    let mut expected = Costs::exact();
    let (ok, errors) = Job::start(start(calm.path())).end(&mut expected);
    assert!(ok, "{errors}");
    let mut costs = Costs { by_batch: expected.by_batch.clone(), ..Costs::exact() };
    run_with_kills(|| start(stormy.path()), kills, &mut Draw(seed), &mut costs);
    assert!(costs.notes.iter().any(|n| n.contains("resuming from")), "{:?}", costs.notes);
    for epoch in ["0", "1"] {
        let of = |dir: &Path| tensors(&dir.join("model").join(epoch));
        assert!(of(calm.path()) == of(stormy.path()), "epoch {epoch} differs");
    }
    let (calm, stormy) = (report(calm.path()), report(stormy.path()));
    for what in ["loss", "auc", "examples"] {
        assert_eq!(calm["epochs"][1][what], stormy["epochs"][1][what], "{what}");
    }
}

#[test]
fn kills_change_no_bit_of_a_collective_job() {
    kills_change_nothing(&[], 20, 2000);
}

#[test]
fn kills_change_no_bit_of_ranks_that_come_together_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("strategy.yaml");
    let strategy = format!("runner.strategy={}", file.display());
    // Checkpoints are due every three steps: they wait until ranks are together.
    std::fs::write(&file, "gradient_merge: true\ngradient_merge_configs: {k_steps: 4}\n").unwrap();
    kills_change_nothing(&[&strategy], 4, 3000);
    std::fs::write(&file, "localsgd: true\nlocalsgd_configs: {k_steps: 2, begin_step: 5}\n")
        .unwrap();
    let sgd = "hyper_parameters.optimizer.class=sgd";
    kills_change_nothing(&[&strategy, sgd], 4, 4000);
    let own = "hyper_parameters.optimizer.class=momentum";
    let (ok, errors) = Job::start(command(dir.path(), &[&strategy, own], &["--ranks", "2"]))
        .end(&mut Costs::default());
    assert!(!ok && errors.contains("momentum"), "{errors}");
}

/// How a command ends: its exit code, and what it has printed.
fn run(dir: &Path, overrides: &[&str], flags: &[&str]) -> (Option<i32>, String) {
    let output = command(dir, overrides, flags).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
    (output.status.code(), texts.concat())
}

/// Two jobs in one folder would remove each other's checkpoints.
#[test]
fn a_folder_belongs_to_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Job::start(command(dir.path(), &["runner.epochs=1000"], &[]));
    assert!(first.checkpoint(&mut Costs::default()));
    let (code, text) = run(dir.path(), &[], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another job works in this folder"), "{text}");
    assert!(text.contains(&format!("process {}", first.child.id())), "{text}");
    // The kernel lets go of the folder when the job is killed.
    first.child.kill().unwrap();
    first.end(&mut Costs::default());
    let (code, text) = run(dir.path(), &[], &[]);
    assert_eq!(code, Some(0), "{text}");
}

/// A run with other settings or data is not the one of the checkpoint, and says so instead of doing
/// nothing.
#[test]
fn another_run_does_not_resume() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let synthetic = "synthetic://ctr?slots=26&vocab=100&dense=13&seed=1&examples=400";
    let written = Command::new(env!("CARGO_BIN_EXE_regatta"))
        .args(["data", "synth", synthetic, "--out"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let data_dir = format!("runner.train_data_dir={}", data.display());
    let (code, text) = run(dir.path(), &[&data_dir], &[]);
    assert_eq!(code, Some(0), "{text}");
    let refused = |overrides: &[&str], change: &str| {
        let overrides: Vec<&str> = [data_dir.as_str()].iter().chain(overrides).copied().collect();
        let (code, text) = run(dir.path(), &overrides, &[]);
        assert_eq!(code, Some(1), "{change}: {text}");
        assert!(text.contains("is of another run") && text.contains(change), "{text}");
        assert!(text.contains("--resume none"), "{text}");
    };
    refused(&["runner.seed=5"], "runner.seed was 12345 and is 5");
    refused(&["runner.train_batch_size=20"], "runner.train_batch_size was 40 and is 20");
    let rate = "hyper_parameters.optimizer.learning_rate";
    refused(&[&format!("{rate}=0.5")], &format!("{rate} was 0.01 and is 0.5"));
    // The same run has nothing to do but to save a model that is missing.
    std::fs::remove_dir_all(dir.path().join("model")).unwrap();
    let (code, text) = run(dir.path(), &[&data_dir], &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("nothing more to train"), "{text}");
    assert!(dir.path().join("model/1").is_dir(), "{text}");
    let file = std::fs::read_dir(&data).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(&file, data.join("one_more.txt")).unwrap();
    refused(&[], "the data were 1 file of");
    for flags in [&["--resume", "latest"], &["--resume", "none"]] {
        let (code, text) = run(dir.path(), &[&data_dir, "runner.seed=5"], flags);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(text.contains("is of another run"), flags[1] == "latest", "{text}");
    }
}
