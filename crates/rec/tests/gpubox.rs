//! Rows on a software OpenCL device (PoCL) against the same job on the CPU: dnn through servers in
//! this process, with one worker and with two. Without such a device these tests say so and pass.

use std::path::Path;
use std::thread;

use regatta_collective::Group;
use regatta_data::{Batch, Batches, DataLoader, Dataset, LoaderOptions, Source};
use regatta_device::{Choice, Device};
use regatta_exec::{Options, Scope, run_startup};
use regatta_ops::metrics::exact_auc;
use regatta_passes::{Split, split_trainer};
use regatta_ps::{Client, JobToken, Mode, Network as InProcess, Server};
use regatta_rec::Config;
use regatta_rec::network::Network;
use regatta_table::Admission;
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

/// A job: the batches of the data go to the workers by turns.
#[derive(Clone, Copy)]
struct Size {
    servers: usize,
    workers: usize,
    batch: usize,
    examples: u64,
    /// A key becomes a row when it has appeared this often.
    entry: Option<u32>,
}

/// One worker with one server.
fn one(examples: u64) -> Size {
    Size { servers: 1, workers: 1, batch: BATCH, examples, entry: None }
}

/// The batches of a worker, which note what was fetched.
struct Noted<'a> {
    batches: Batches,
    read: usize,
    /// This worker, of how many.
    turn: (usize, usize),
    ran: &'a mut Ran,
}

impl Feed for Noted<'_> {
    fn next(&mut self) -> Result<Option<Batch>, Error> {
        let (worker, workers) = self.turn;
        while let Some(batch) = self.batches.next()? {
            self.read += 1;
            if (self.read - 1) % workers == worker {
                return Ok(Some(batch));
            }
            self.batches.recycle(batch);
        }
        Ok(None)
    }

    fn done(&mut self, batch: Batch, fetched: &[Tensor]) -> Result<(), Error> {
        self.ran.losses.push(fetched[0].f32()[0]);
        self.ran.scores.extend(fetched[1].f32().chunks_exact(2).map(|row| row[1]));
        self.ran.labels.extend(fetched[2].i64());
        self.batches.recycle(batch);
        Ok(())
    }
}

fn batches(size: Size) -> Batches {
    let Size { batch, examples, .. } = size;
    let url = format!("synthetic://ctr?slots=26&vocab=500&dense=13&seed=1&examples={examples}");
    let source = Source::synthetic(&url).unwrap();
    DataLoader::new(source, LoaderOptions::new(batch)).unwrap().pass(0).unwrap()
}

fn network() -> Network {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rank/dnn");
    Network::build(&Config::load(file.join("config_gpubox.yaml"), &[]).unwrap()).unwrap()
}

/// Makes the backend of a worker, which may have others beside it.
trait Make<B>: Fn(&Split, Client, Option<Group>) -> Result<B, Error> + Sync {}
impl<B, F: Fn(&Split, Client, Option<Group>) -> Result<B, Error> + Sync> Make<B> for F {}

/// Trains a data pass with servers in this process, on what `make` makes for each worker.
fn train_all<B: Backend>(
    size: Size,
    make: impl Make<B>,
    end: fn(&B) -> Moved,
) -> Result<Vec<Ran>, Error> {
    let Size { servers, workers, .. } = size;
    let network = network();
    let split = split_trainer(&network.train).unwrap();
    let names = (0..servers).map(|i| format!("rows{i}")).collect();
    let mut job = Job::new(names, workers, Mode::Sync, JobToken::new("box"));
    job.network = Some(InProcess::new());
    job.admission = size.entry.map_or(Admission::None, Admission::CountFilter);
    let config = |i| server_config(&split, &job, i).unwrap();
    let running: Vec<Server> = (0..servers).map(|i| Server::start(config(i)).unwrap()).collect();
    let running: Vec<_> = running.into_iter().map(|s| thread::spawn(|| s.run())).collect();
    let groups = Group::in_memory(workers).unwrap().into_iter().map(|g| (workers > 1).then_some(g));
    let ran = thread::scope(|threads| {
        let worker = |(worker, group)| {
            let (network, split, make, job) = (&network, &split, &make, &job);
            threads.spawn(move || {
                let client = Client::connect(client_config(split, job, worker)).unwrap();
                work(size, (network, split), make(split, client, group)?, end)
            })
        };
        let all: Vec<_> = groups.enumerate().map(worker).collect();
        all.into_iter().map(|worker| worker.join().unwrap()).collect::<Result<Vec<_>, Error>>()
    })?;
    running.into_iter().for_each(|server| drop(server.join().unwrap().unwrap()));
    Ok(ran)
}

/// What one worker does.
fn work<B: Backend>(
    size: Size,
    (network, split): (&Network, &Split),
    mut backend: B,
    end: fn(&B) -> Moved,
) -> Result<Ran, Error> {
    let mut scope = Scope::new();
    run_startup(&worker_startup(&network.train.startup, split), &mut scope).unwrap();
    backend.set_fetch(&network.fetches());
    backend.start(&mut scope, false)?;
    let mut ran = Ran::default();
    let turn = (backend.worker(), backend.workers());
    let mut feed = Noted { batches: batches(size), read: 0, turn, ran: &mut ran };
    run_feed(&mut backend, &mut scope, &mut feed)?;
    backend.barrier("trained")?;
    backend.pull_parameters(&mut scope)?;
    let params = split.exchange.params.iter().flat_map(|name| scope.get(name).unwrap().f32());
    ran.dense = params.copied().collect();
    for worker in 0..backend.workers() {
        if worker == backend.worker() {
            ran.rows = whole_rows(backend.client().unwrap());
        }
        backend.barrier("seen")?;
    }
    ran.moved = end(&backend);
    backend.leave()?;
    Ok(ran)
}

/// The only worker.
fn train<B: Backend>(size: Size, make: impl Make<B>, end: fn(&B) -> Moved) -> Result<Ran, Error> {
    Ok(train_all(size, make, end)?.remove(0))
}

/// All rows with their optimizer states, as servers have them.
fn whole_rows(client: &Client) -> Vec<f32> {
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut rows = vec![0.0; keys.len() * STRIDE as usize];
    // Keys that are not admitted give zeros; looking at them counts them once more.
    client.lease_rows(0, (&keys, &[]), &mut rows).unwrap();
    rows
}

fn servers(split: &Split, client: Client, _: Option<Group>) -> Result<Servers, Error> {
    Servers::new(split, Mode::Sync, client, Options::default())
}

fn on_cpu(size: Size) -> Vec<Ran> {
    train_all(size, servers, |_| Moved::default()).unwrap()
}

fn on_device(device: &Device, size: Size, rows: u64) -> Result<Ran, Error> {
    let bytes = [rows * STRIDE * 4];
    let devices = std::slice::from_ref(device);
    let make = |split: &Split, client, others| GpuBox::new(split, client, devices, &bytes, others);
    train(size, make, GpuBox::moved)
}

/// Workers with so many devices each, and room for so many rows on each of them.
fn on_devices(size: Size, devices: usize, rows: u64) -> Result<Vec<Ran>, Error> {
    let bytes = [rows * STRIDE * 4];
    let make = |split: &Split, client: Client, others| {
        let devices: Vec<Device> = (0..devices).map(|_| device().unwrap()).collect();
        GpuBox::new(split, client, &devices, &bytes, others)
    };
    train_all(size, make, GpuBox::moved)
}

/// The losses of steps of all workers: means over their examples.
fn step_losses(workers: &[Ran], size: Size) -> Vec<f32> {
    let examples = |worker: usize, step: usize| {
        let before = (step * size.workers + worker) * size.batch;
        (size.examples as usize).saturating_sub(before).min(size.batch) as f32
    };
    let step = |step: usize| {
        let own = |worker: usize| match workers[worker].losses.get(step) {
            Some(loss) => (loss * examples(worker, step), examples(worker, step)),
            None => (0.0, 0.0),
        };
        let all: Vec<(f32, f32)> = (0..size.workers).map(own).collect();
        all.iter().map(|(loss, _)| loss).sum::<f32>() / all.iter().map(|(_, n)| n).sum::<f32>()
    };
    (0..workers[0].losses.len()).map(step).collect()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_device_trains_like_the_cpu() {
    let Some(device) = device() else { return };
    let cpu = on_cpu(one(STEPS * BATCH as u64)).remove(0);
    assert_eq!(cpu.losses.len() as u64, STEPS);
    let ran = on_device(&device, one(STEPS * BATCH as u64), 2 * ROWS).unwrap();
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
    let large = on_device(&device, one(examples), ROWS).unwrap();
    for servers in [1, 2] {
        let before = device.counters().now();
        let size = Size { servers, ..one(examples) };
        let small = on_device(&device, size, ROWS / 10).unwrap();
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
    let size = one(examples);
    let one = on_device(&first, size, ROWS).unwrap();
    let devices = [first, second];
    for rows in [ROWS, ROWS / 10] {
        let bytes = [rows * STRIDE * 4];
        let make = |split: &Split, client, all| GpuBox::new(split, client, &devices, &bytes, all);
        let two = train(size, make, GpuBox::moved).unwrap();
        assert!(apart(&two.losses, &one.losses) < 1e-5, "{:?}\n{:?}", two.losses, one.losses);
        assert_eq!(two.labels, one.labels);
        assert!(apart(&two.rows, &one.rows) < 1e-2 && apart(&two.dense, &one.dense) < 1e-2);
    }
}

#[test]
fn workers_with_devices_train_as_one_worker_does() {
    if device().is_none() {
        return;
    }
    // The last step has examples of the first worker only.
    let examples = 40 * 2 * BATCH as u64 + 7;
    let merged = Size { batch: 2 * BATCH, ..one(examples) };
    let one = on_devices(merged, 2, ROWS).unwrap().remove(0);
    let size = Size { servers: 2, workers: 2, ..self::one(examples) };
    let cpu = on_cpu(size);
    for (devices, rows) in [(1, ROWS), (2, ROWS / 8)] {
        let two = on_devices(size, devices, rows).unwrap();
        assert_eq!((two[0].losses.len(), two[1].losses.len()), (41, 40));
        // Every worker has all parameters, the same to the bit.
        assert_eq!(two[0].dense, two[1].dense);
        assert_eq!(two[0].rows, two[1].rows);
        let losses = step_losses(&two, size);
        assert!(apart(&losses, &one.losses) < 1e-5, "{losses:?}\n{:?}", one.losses);
        let of_rows = apart(&two[0].rows, &one.rows);
        let of_dense = apart(&two[0].dense, &one.dense);
        assert!(of_rows < 1e-5 && of_dense < 1e-5, "{of_rows} {of_dense}");
        // Each of them trains as it does with servers that update.
        for (device, cpu) in two.iter().zip(&cpu) {
            assert!(apart(&device.losses, &cpu.losses) < 1e-5);
            assert_eq!(device.labels, cpu.labels);
        }
        // Rows are on the devices of one worker: both together bring what one brings alone.
        let brought: u64 = two.iter().map(|ran| ran.moved.rows_in).sum();
        assert!(brought >= one.moved.rows_in);
        assert_eq!(brought > one.moved.rows_in, rows < ROWS, "{brought} {:?}", one.moved);
    }
}

#[test]
fn keys_are_admitted_as_on_the_cpu() {
    if device().is_none() {
        return;
    }
    let entry = Some(5);
    let merged = Size { batch: 2 * BATCH, entry, ..one(30 * 2 * BATCH as u64 + 7) };
    let cpu = on_cpu(merged).remove(0);
    let admitted = |ran: &Ran| -> Vec<bool> {
        ran.rows.chunks(STRIDE as usize).map(|row| row.iter().any(|x| *x != 0.0)).collect()
    };
    let rows_of_cpu = admitted(&cpu);
    let n = rows_of_cpu.iter().filter(|is_row| **is_row).count();
    assert!(n > 100 && n < rows_of_cpu.len() / 2, "{n}");
    // An arena with room for little more than a batch, and keys that come and go.
    for (workers, devices, rows) in [(1, 1, ROWS), (1, 2, ROWS / 8), (2, 1, ROWS / 8)] {
        let size = Size { workers, batch: 2 * BATCH / workers, ..merged };
        let ran = on_devices(size, devices, rows).unwrap();
        let losses = step_losses(&ran, size);
        assert!(apart(&losses, &cpu.losses) < 1e-5, "{losses:?}\n{:?}", cpu.losses);
        assert_eq!(admitted(&ran[0]), rows_of_cpu, "{workers} {devices}");
        assert!(apart(&ran[0].rows, &cpu.rows) < 1e-2);
    }
}

#[test]
fn a_worker_without_room_ends_all_of_them() {
    if device().is_none() {
        return;
    }
    let size = Size { servers: 1, workers: 2, ..one(1280) };
    let error = on_devices(size, 1, 50).err().unwrap().to_string();
    let words = ["worker 0: table 'SparseFeatFactors'", "room for 50", "device_mb"];
    words.iter().for_each(|word| assert!(error.contains(word), "{error}"));
}

#[test]
fn what_does_not_fit_is_said_with_its_sizes() {
    let Some(device) = device() else { return };
    let error = on_device(&device, one(640), 100).err().unwrap().to_string();
    let words =
        ["table 'SparseFeatFactors'", "distinct rows", "room for 100", "108 bytes", "device_mb"];
    words.iter().for_each(|word| assert!(error.contains(word), "{error}"));
}
