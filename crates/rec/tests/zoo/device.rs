//! Click models on a software OpenCL device (PoCL) against the CPU: the same data, the same initial
//! values, rows of tables on the device. Without such a device these tests say so and pass.

use regatta_data::Batch;
use regatta_device::{Arena, Choice, Counts, Device, Queue, Step};
use regatta_exec::device::{DeviceBatch, DeviceInputs, DeviceProgram, Preparer};
use regatta_exec::{Error, Lookup, Scope};
use regatta_ops::metrics::exact_auc;
use regatta_optim::{RowRule, SharedState};
use regatta_passes::{Split, split_trainer};
use regatta_rec::zoo;
use regatta_tensor::{Data, RowIndex, Tensor, Value};

use crate::cases::{Case, case};
use crate::train::{Trainer, for_each_batch};

/// A model on a device, with whole tables there: the slot of a row is its id.
struct OnDevice {
    split: Split,
    program: DeviceProgram,
    preparer: Preparer,
    tables: Vec<(Lookup, Arena, SharedState)>,
    index: RowIndex,
    batch: DeviceBatch,
    inputs: DeviceInputs,
    step: u64,
}

fn device() -> Option<Device> {
    match Choice::OpenClCpu(0).open() {
        Ok(device) => Some(device),
        Err(e) => {
            eprintln!("left out: {e}");
            None
        }
    }
}

impl OnDevice {
    fn new(device: &Device, trainer: &Trainer, fetch: &[&str]) -> OnDevice {
        let split = split_trainer(&trainer.programs).unwrap();
        let mut program = DeviceProgram::compile(&split, device, fetch).unwrap();
        program.write_values(&trainer.scope).unwrap();
        let tables = split.tables.iter().map(|table| {
            let initial = trainer.scope.get(&table.name).unwrap();
            let mut rows = Vec::new();
            for row in initial.f32().chunks_exact(table.dim) {
                rows.extend_from_slice(row);
                let mut state = vec![0.0; table.rule.row_state_len(table.dim)];
                table.rule.init_row_state(table.dim, &mut state);
                rows.extend(state);
            }
            let stride = (rows.len() / initial.shape()[0]) as u32;
            let buffer = device.buffer_of(&rows).unwrap();
            let arena = Arena { buffer, stride, dim: table.dim as u32 };
            (Lookup::default(), arena, table.rule.shared_state())
        });
        let tables = tables.collect();
        let preparer = program.preparer();
        let (index, batch, inputs) = Default::default();
        OnDevice { split, program, preparer, tables, index, batch, inputs, step: 0 }
    }

    /// One step with the kernels of all rules; what was fetched.
    fn step(&mut self, batch: &Batch) -> Vec<Tensor> {
        let own: Vec<(&str, &Value)> = batch.iter().collect();
        let value = |name: &str| own.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        let mut slots: Vec<Vec<u32>> = Vec::new();
        for ((lookup, ..), table) in self.tables.iter_mut().zip(&self.split.exchange.tables) {
            lookup.prepare(table, false, &mut self.index, value).unwrap();
            slots.push(lookup.keys().iter().map(|&key| key as u32).collect());
        }
        let slots: Vec<&[u32]> = slots.iter().map(Vec::as_slice).collect();
        let of_tables = self.tables.iter().zip(&self.split.exchange.tables);
        let feeds: Vec<(&str, &Value)> = own
            .iter()
            .copied()
            .chain(of_tables.flat_map(|((lookup, ..), table)| lookup.feeds(table)))
            .collect();
        self.preparer.prepare(&feeds, &slots, &mut self.batch).unwrap();
        self.program.upload(&self.batch, Queue::Compute, &mut self.inputs).unwrap();
        let arenas: Vec<&Arena> = self.tables.iter().map(|(_, arena, _)| arena).collect();
        self.program.compute(&mut self.inputs, &arenas).unwrap();
        let lr = self.split.schedule.lr(self.split.learning_rate, self.step);
        self.program.apply(lr).unwrap();
        for (at, spec) in self.split.tables.iter().enumerate() {
            let (_, arena, shared) = &mut self.tables[at];
            let step = Step::new(&spec.rule, lr * spec.lr_scale as f32, shared).unwrap();
            let grads = self.program.row_grads(at).unwrap();
            let (slots, grads) = (grads.slots, (grads.grads, grads.rows as u32));
            let device = self.program.device();
            device.update_rows(Queue::Compute, &step, arena, slots, grads).unwrap();
            spec.rule.advance(shared);
        }
        self.step += 1;
        self.program.fetch().unwrap()
    }
}

/// Losses and predictions of some steps on both.
struct Compared {
    cpu: Vec<f32>,
    device: Vec<f32>,
    cpu_scores: Vec<f32>,
    device_scores: Vec<f32>,
    labels: Vec<i64>,
    /// What the last step took.
    counts: Counts,
    bytes: usize,
    scope: Scope,
    on_device: OnDevice,
}

/// The probability of the last class.
fn scores(predicted: &Tensor) -> Vec<f32> {
    let classes = predicted.shape().last().copied().unwrap_or(1);
    predicted.f32().chunks_exact(classes).map(|row| row[classes - 1]).collect()
}

fn compare(device: &Device, case: &Case, steps: usize) -> Compared {
    let mut cpu = Trainer::with_hyper(case, &case.plain_hyper(), 1);
    let head = cpu.net.heads.first();
    let label = head.map(|head| head.label.name().to_string());
    let loss = cpu.net.loss.name().to_string();
    let predict = head.map_or(loss.clone(), |head| head.predict.name().to_string());
    let fetch = [loss.as_str(), predict.as_str()];
    let mut on_device = OnDevice::new(device, &cpu, &fetch);
    let (mut a, mut b, mut x, mut y) = (vec![], vec![], vec![], vec![]);
    let (mut labels, mut counts) = (Vec::new(), Counts::default());
    for pass in 0.. {
        for_each_batch(&case.train_url(), case.batch, pass, |batch| {
            if a.len() == steps {
                return;
            }
            let fetched = cpu.step_fetching(batch, &fetch);
            a.push(fetched[0].f32()[0]);
            x.extend(scores(&fetched[1]));
            let before = device.counters().now();
            let fetched = on_device.step(batch);
            counts = device.counters().now().since(&before);
            b.push(fetched[0].f32()[0]);
            y.extend(scores(&fetched[1]));
            let given = batch.iter().find(|(name, _)| Some(*name) == label.as_deref());
            if let Some(Data::I64(given)) = given.map(|(_, value)| value.data()) {
                labels.extend_from_slice(given);
            }
        });
        if a.len() == steps {
            break;
        }
    }
    let (bytes, scope) = (on_device.batch.bytes(), cpu.scope);
    Compared {
        cpu: a,
        device: b,
        cpu_scores: x,
        device_scores: y,
        labels,
        counts,
        bytes,
        scope,
        on_device,
    }
}

impl Compared {
    /// The largest difference of losses.
    fn apart(&self) -> f32 {
        let pairs = self.cpu.iter().zip(&self.device);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }
}

#[test]
fn dnn_trains_like_the_cpu_for_100_steps() {
    let Some(device) = device() else { return };
    let done = compare(&device, case("dnn"), 100);
    assert!(done.apart() <= 1e-5, "{:?} {:?}", done.cpu, done.device);
    assert!(done.cpu[99] < done.cpu[0], "it learns: {:?}", done.cpu);
    let (a, b) =
        (exact_auc(&done.cpu_scores, &done.labels), exact_auc(&done.device_scores, &done.labels));
    assert!((a - b).abs() <= 0.001, "AUC {b}, the CPU has {a}");
    let mut scope = Scope::new();
    done.on_device.program.read_values(&mut scope).unwrap();
    for name in scope.names() {
        let (got, want) = (scope.get(name).unwrap(), done.scope.get(name).unwrap());
        let apart = got.f32().iter().zip(want.f32()).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-2, "{name}");
    }
}

#[test]
fn a_step_uploads_a_batch_and_brings_what_is_fetched() {
    let Some(device) = device() else { return };
    let done = compare(&device, case("dnn"), 3);
    let counts = done.counts;
    println!("{counts:?}");
    assert!(counts.launches <= 40, "{counts:?}");
    // Updates of rows are one launch more.
    assert_eq!(counts.launches as usize, done.on_device.program.launches() + 1);
    assert_eq!((counts.uploads, counts.bytes_up as usize), (1, done.bytes));
    let fetched = 4 + case("dnn").batch * 2 * 4;
    assert_eq!((counts.downloads, counts.bytes_down as usize), (2, fetched));
    assert_eq!(counts.copies, 0, "nothing is copied on the device");
}

#[test]
fn models_train_like_the_cpu() {
    let Some(device) = device() else { return };
    for model in zoo::all().iter().filter(|model| !WITHOUT_KERNELS.contains(&model.name)) {
        let case = case(model.name);
        let done = compare(&device, case, if model.group == "rank" { 12 } else { 4 });
        println!("{}: {} apart, {:?}", model.name, done.apart(), done.counts);
        let largest = done.cpu.iter().fold(1.0, |a: f32, b| a.max(b.abs()));
        let what = model.name;
        // Rows that begin within 0.0001 have gradients near Adam's epsilon: it magnifies rounding.
        let tolerance = if model.name == "slot_dnn" { 1e-4 } else { 1e-5 };
        assert!(done.apart() <= tolerance * largest, "{what}: {:?} {:?}", done.cpu, done.device);
    }
}

/// Models with an op that devices do not run, whatever their hyper-parameters.
const WITHOUT_KERNELS: &[&str] = &["din", "dssm"];

#[test]
fn an_op_without_a_kernel_is_named_before_anything_runs() {
    let Some(device) = device() else { return };
    for model in WITHOUT_KERNELS.iter().chain(&["dcn_v2", "dlrm"]) {
        let cpu = Trainer::new(case(model), 1);
        let split = split_trainer(&cpu.programs).unwrap();
        let refused = DeviceProgram::compile(&split, &device, &[cpu.net.loss.name()]);
        let Err(Error::NoDeviceKernel { op, kinds, .. }) = refused else { panic!("{model}") };
        assert!(cpu.programs.main.block().ops.iter().any(|other| other.kind == op), "{op}");
        assert!(!kinds.contains(&op.as_str()) && kinds.contains(&"fc"));
    }
}
