//! Rows on a software OpenCL device (PoCL) against the same job on the CPU: dnn through servers in
//! this process. Without such a device these tests say so and pass.

use std::path::Path;
use std::thread;

use regatta_data::{Batch, Batches, DataLoader, Dataset, LoaderOptions, Source};
use regatta_device::{Choice, Device};
use regatta_exec::{Options, Scope, run_startup};
use regatta_ops::metrics::exact_auc;
use regatta_passes::{Split, split_trainer};
use regatta_ps::{Client, JobToken, Mode, Network as InProcess, Server};
use regatta_rec::Config;
use regatta_rec::network::Network;
use regatta_tensor::Tensor;
use regatta_train::job::{client_config, server_config, worker_startup};
use regatta_train::{Backend, Error, Feed, GpuBox, Job, Moved, Servers, run_feed};

const BATCH: usize = 64;
const STEPS: u64 = 100;
/// About as many rows as the batches below have distinct ids.
const ROWS: u64 = 13_000;
/// Floats of a row with Adam's moments.
const STRIDE: u64 = 27;

fn device() -> Option<Device> {
    match Choice::OpenClCpu(0).open() {
        Ok(device) => Some(device),
        Err(e) => {
            eprintln!("left out: {e}");
            None
        }
    }
}

/// What a run came to.
#[derive(Default)]
struct Ran {
    losses: Vec<f32>,
    scores: Vec<f32>,
    labels: Vec<i64>,
    rows: Vec<f32>,
    dense: Vec<f32>,
    moved: Moved,
}

/// Batches that note what was fetched.
struct Noted<'a>(Batches, &'a mut Ran);

impl Feed for Noted<'_> {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        Ok(self.0.next()?)
    }

    fn done(&mut self, batch: Batch, fetched: &[Tensor]) -> Result<(), Error> {
        self.1.losses.push(fetched[0].f32()[0]);
        self.1.scores.extend(fetched[1].f32().chunks_exact(2).map(|row| row[1]));
        self.1.labels.extend(fetched[2].i64());
        self.0.recycle(batch);
        Ok(())
    }
}

fn batches(examples: u64) -> Batches {
    let url = format!("synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&examples={examples}");
    let source = Source::synthetic(&url).unwrap();
    DataLoader::new(source, LoaderOptions::new(BATCH)).unwrap().pass(0).unwrap()
}

fn network() -> Network {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn");
    Network::build(&Config::load(file.join("config_gpubox.yaml"), &[]).unwrap()).unwrap()
}

/// Trains a data pass with servers in this process, on what `make` makes.
fn train<B: Backend>(
    servers: usize,
    examples: u64,
    make: impl FnOnce(&Split, Client) -> Result<B, Error>,
    end: impl FnOnce(&B) -> Moved,
) -> Result<Ran, Error> {
    let network = network();
    let split = split_trainer(&network.train).unwrap();
    let names = (0..servers).map(|i| format!("rows{i}")).collect();
    let mut job = Job::new(names, 1, Mode::Sync, JobToken::new("box"));
    job.network = Some(InProcess::new());
    let config = |i| server_config(&split, &job, i).unwrap();
    let running: Vec<Server> = (0..servers).map(|i| Server::start(config(i)).unwrap()).collect();
    let running: Vec<_> = running.into_iter().map(|s| thread::spawn(|| s.run())).collect();
    let client = Client::connect(client_config(&split, &job, 0)).unwrap();
    let mut scope = Scope::new();
    run_startup(&worker_startup(&network.train.startup, &split), &mut scope).unwrap();
    let mut backend = make(&split, client)?;
    backend.set_fetch(&network.fetches());
    backend.start(&mut scope, false)?;
    let mut ran = Ran::default();
    run_feed(&mut backend, &mut scope, &mut Noted(batches(examples), &mut ran))?;
    backend.pull_parameters(&mut scope)?;
    let params = split.exchange.params.iter().flat_map(|name| scope.get(name).unwrap().f32());
    ran.dense = params.copied().collect();
    ran.rows = whole_rows(backend.client().unwrap());
    ran.moved = end(&backend);
    backend.leave()?;
    drop(backend);
    running.into_iter().for_each(|server| drop(server.join().unwrap().unwrap()));
    Ok(ran)
}

/// All rows with their optimizer states, as servers have them.
fn whole_rows(client: &Client) -> Vec<f32> {
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut rows = vec![0.0; keys.len() * STRIDE as usize];
    client.lease_rows(0, &keys, &mut rows).unwrap();
    rows
}

fn on_cpu(examples: u64) -> Ran {
    let make = |split: &Split, client| Servers::new(split, Mode::Sync, client, Options::default());
    train(1, examples, make, |_| Moved::default()).unwrap()
}

fn on_device(device: &Device, servers: usize, examples: u64, rows: u64) -> Result<Ran, Error> {
    let bytes = [rows * STRIDE * 4];
    let devices = std::slice::from_ref(device);
    let make = |split: &Split, client| GpuBox::new(split, client, devices, &bytes);
    train(servers, examples, make, GpuBox::moved)
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_device_trains_like_the_cpu() {
    let Some(device) = device() else { return };
    let cpu = on_cpu(STEPS * BATCH as u64);
    assert_eq!(cpu.losses.len() as u64, STEPS);
    let ran = on_device(&device, 1, STEPS * BATCH as u64, 2 * ROWS).unwrap();
    assert!(apart(&ran.losses, &cpu.losses) < 1e-5, "{:?}\n{:?}", ran.losses, cpu.losses);
    let auc = |ran: &Ran| exact_auc(&ran.scores, &ran.labels);
    assert!((auc(&ran) - auc(&cpu)).abs() < 0.001, "{} {}", auc(&ran), auc(&cpu));
    assert!(apart(&ran.rows, &cpu.rows) < 1e-2 && apart(&ran.dense, &cpu.dense) < 1e-2);
    assert_eq!(ran.moved.rows_out, 0);
}

#[test]
fn a_small_arena_equals_a_large_one_exactly() {
    let Some(device) = device() else { return };
    let examples = 40 * BATCH as u64;
    let large = on_device(&device, 1, examples, ROWS).unwrap();
    for servers in [1, 2] {
        let before = device.counters().now();
        let small = on_device(&device, servers, examples, ROWS / 10).unwrap();
        assert_eq!(small.losses, large.losses);
        assert_eq!((&small.rows, &small.dense), (&large.rows, &large.dense));
        // Rows went and came again, and nothing else travels: batches, rows in with their slots,
        // slots of rows out; at the ends the parameters and what had changed.
        let Moved { rows_in, rows_out, batch_bytes } = small.moved;
        assert!(rows_in > large.moved.rows_in && rows_out > 0, "{:?}", small.moved);
        let counts = device.counters().now().since(&before);
        let up = batch_bytes + rows_in * (STRIDE * 4 + 4) + rows_out * 4;
        // Plans have a few sizes of their own.
        let ends = 4 * (3 * small.dense.len() as u64 + ROWS / 10) + 4096;
        assert!((up..=up + ends).contains(&counts.bytes_up), "{up} {ends} {counts:?}");
    }
}

#[test]
fn two_devices_share_a_batch() {
    // One device, opened twice: two contexts, each with its own rows.
    let (Some(first), Some(second)) = (device(), device()) else { return };
    let examples = 40 * BATCH as u64 + 7;
    let one = on_device(&first, 1, examples, ROWS).unwrap();
    let devices = [first, second];
    for rows in [ROWS, ROWS / 10] {
        let bytes = [rows * STRIDE * 4];
        let make = |split: &Split, client| GpuBox::new(split, client, &devices, &bytes);
        let two = train(1, examples, make, GpuBox::moved).unwrap();
        assert!(apart(&two.losses, &one.losses) < 1e-5, "{:?}\n{:?}", two.losses, one.losses);
        assert_eq!(two.labels, one.labels);
        assert!(apart(&two.rows, &one.rows) < 1e-2 && apart(&two.dense, &one.dense) < 1e-2);
    }
}

#[test]
fn what_does_not_fit_is_said_with_its_sizes() {
    let Some(device) = device() else { return };
    let error = on_device(&device, 1, 640, 100).err().unwrap().to_string();
    let words =
        ["table 'SparseFeatFactors'", "distinct rows", "room for 100", "108 bytes", "device_mb"];
    words.iter().for_each(|word| assert!(error.contains(word), "{error}"));
}
