//! What is refused, batches of several sizes, values that come and go.

use regatta_device::{Arena, Device, Queue, Step};
use regatta_exec::device::{DeviceBatch, DeviceInputs, DeviceProgram};
use regatta_exec::{Error, Executor, Lookup, Options, Scope, run_startup};
use regatta_ir::{Act, Embedding, ParamAttr, Pool, Programs, Regularizer};
use regatta_optim::{Adam, Lamb, RowRule, Rule, SharedState};
use regatta_passes::{Backward, Clip, Optimizer, Split, minimize, split_trainer};
use regatta_tensor::{DType, Data, Ragged, Rng, RowIndex, Tensor, Value};

use crate::device;

pub(crate) const ROWS: usize = 50;

/// Pooled rows of two inputs of a table beside dense features, and two classes; with penalties and
/// a limit on all gradients.
fn model(rule: Rule) -> (Programs, String) {
    build(rule, true)
}

pub(crate) fn build(rule: Rule, limits: bool) -> (Programs, String) {
    let mut b = regatta_ops::builder(3);
    let a = b.data("a", DType::U64, &[-1, 2]).unwrap();
    let bag = b.sparse_data("bag").unwrap();
    let x = b.data("x", DType::F32, &[-1, 3]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let mut table = ParamAttr { name: Some("table".into()), ..ParamAttr::weight() };
    table.info.regularizer = limits.then_some(Regularizer::L1(0.02));
    let (pool, padding_idx) = (Pool::Mean, Some(0));
    let spec = Embedding { table, pool, padding_idx, ..Embedding::new(ROWS as i64, 4) };
    let rows = b.embedding(&[&a, &bag], &spec).unwrap();
    let rows = b.reshape(&rows, &[-1, 12]).unwrap();
    let joined = b.concat(&[&rows, &x], 1).unwrap();
    let hidden = b.fc(&joined, 6, Act::Tanh).unwrap();
    let logits = b.fc(&hidden, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let mut optimizer = Optimizer::new(rule, 0.05);
    optimizer.clip = limits.then_some(Clip::GlobalNorm(0.4));
    optimizer.regularizer = limits.then_some(Regularizer::L2(0.01));
    let made = minimize(&b.finish(), &loss, &optimizer, &Backward::default()).unwrap();
    (made.programs, loss)
}

/// A batch of that many examples.
pub(crate) fn batch(rows: usize, seed: u64) -> Vec<(&'static str, Value)> {
    let rng = Rng::new(seed, 9);
    let id = |i: usize| rng.u64(i as u64) % ROWS as u64;
    let offsets: Vec<u32> = (0..=rows as u32).map(|i| i * (i + 1) / 2).collect();
    let bag = (0..offsets[rows] as usize).map(|i| id(1000 + i)).collect();
    let x = (0..rows as u64 * 3).map(|i| rng.unit_f32(i) - 0.5).collect();
    let labels = (0..rows).map(|i| (id(i) % 2) as i64).collect();
    let a = Tensor::from_u64(&[rows, 2], (0..rows * 2).map(id).collect()).unwrap();
    vec![
        ("a", a.into()),
        ("bag", Ragged::new(Data::U64(bag), offsets).unwrap().into()),
        ("x", Tensor::from_f32(&[rows, 3], x).unwrap().into()),
        ("label", Tensor::from_i64(&[rows, 1], labels).unwrap().into()),
    ]
}

/// The model on a device: row `key` lies in slot `ROWS - key`, in rows with room to spare.
struct Trained {
    split: Split,
    program: DeviceProgram,
    arena: Arena,
    shared: SharedState,
    lookup: Lookup,
    /// Batches that are under way.
    inputs: [DeviceInputs; 2],
    step: usize,
}

const STRIDE: usize = 4 * 3 + 1;

fn slot(key: u64) -> u32 {
    (ROWS - key as usize) as u32
}

impl Trained {
    fn new(device: &Device, programs: &Programs, scope: &Scope, loss: &str) -> Trained {
        let split = split_trainer(programs).unwrap();
        let mut program = DeviceProgram::compile(&split, device, &[loss]).unwrap();
        program.write_values(scope).unwrap();
        let table = scope.get("table").unwrap();
        let mut rows = vec![f32::NAN; (ROWS + 1) * STRIDE];
        for (key, weights) in table.f32().chunks_exact(4).enumerate() {
            let at = slot(key as u64) as usize * STRIDE;
            rows[at..at + 4].copy_from_slice(weights);
            rows[at + 4..at + 12].fill(0.0);
        }
        let buffer = device.buffer_of(&rows).unwrap();
        let arena = Arena { buffer, stride: STRIDE as u32, dim: 4 };
        let (shared, lookup) = (split.tables[0].rule.shared_state(), Lookup::default());
        Trained { split, program, arena, shared, lookup, inputs: Default::default(), step: 0 }
    }

    fn step(&mut self, values: &[(&'static str, Value)]) -> f32 {
        let table = &self.split.exchange.tables[0];
        let value = |name: &str| values.iter().find(|(n, _)| *n == name).map(|(_, v)| v);
        let mut index = RowIndex::default();
        self.lookup.prepare(table, false, &mut index, value).unwrap();
        let slots: Vec<u32> = self.lookup.keys().iter().map(|&key| slot(key)).collect();
        let own = values.iter().map(|(name, value)| (*name, value));
        let feeds: Vec<(&str, &Value)> = own.chain(self.lookup.feeds(table)).collect();
        let mut batch = DeviceBatch::default();
        self.program.preparer().prepare(&feeds, &[&slots], &mut batch).unwrap();
        let inputs = &mut self.inputs[self.step % 2];
        self.program.upload(&batch, Queue::Transfer, inputs).unwrap();
        self.program.compute(inputs, &[&self.arena]).unwrap();
        self.program.apply(0.05).unwrap();
        let grads = self.program.row_grads(0).unwrap();
        assert_eq!((grads.rows, grads.dim), (slots.len(), 4));
        let rule = self.split.tables[0].rule;
        let step = Step::new(&rule, 0.05, &self.shared).unwrap();
        let device = self.program.device();
        let packed = (grads.grads, grads.rows as u32);
        device.update_rows(Queue::Compute, &step, &self.arena, grads.slots, packed).unwrap();
        rule.advance(&mut self.shared);
        self.step += 1;
        self.program.fetch().unwrap()[0].f32()[0]
    }
}

pub(crate) fn started(programs: &Programs) -> Scope {
    let mut scope = Scope::new();
    run_startup(&programs.startup, &mut scope).unwrap();
    scope
}

#[test]
fn batches_of_several_sizes_train_like_the_cpu() {
    let Some(device) = device() else { return };
    let (programs, loss) = model(Rule::Adam(Adam::default()));
    let mut scope = started(&programs);
    let mut on_device = Trained::new(&device, &programs, &scope, &loss);
    let mut cpu = Executor::new(programs.main.clone(), Options::default()).unwrap();
    for (step, rows) in [8, 8, 5, 11, 8, 1, 5].into_iter().enumerate() {
        let values = batch(rows, step as u64);
        let feeds: Vec<(&str, &Value)> = values.iter().map(|(name, v)| (*name, v)).collect();
        let want = cpu.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0];
        let got = on_device.step(&values);
        assert!((got - want).abs() <= 1e-5, "step {step} of {rows} rows: {got}, not {want}");
    }
}

#[test]
fn a_program_goes_on_from_values_and_states_of_another() {
    let Some(device) = device() else { return };
    let (programs, loss) = model(Rule::Adam(Adam::default()));
    let mut first = Trained::new(&device, &programs, &started(&programs), &loss);
    for seed in 0..3 {
        first.step(&batch(8, seed));
    }
    let mut scope = started(&programs);
    first.program.read_values(&mut scope).unwrap();
    let mut second = Trained::new(&device, &programs, &scope, &loss);
    for dense in &first.split.dense {
        let states = first.program.states(&dense.name).unwrap().unwrap();
        let names: Vec<_> = states.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["moment1", "moment2", "beta1_pow", "beta2_pow"]);
        let values: Vec<Vec<f32>> = states.into_iter().map(|(_, values)| values).collect();
        second.program.set_states(&dense.name, &values).unwrap();
    }
    let n = (ROWS + 1) * STRIDE;
    let rows = device.read_floats(Queue::Compute, &first.arena.buffer, 0, n).unwrap();
    second.arena.buffer = device.buffer_of(&rows).unwrap();
    second.shared = first.shared;
    for seed in 7..10 {
        let values = batch(8, seed);
        assert_eq!(first.step(&values), second.step(&values));
    }
    assert!(first.program.states("nothing").unwrap().is_none());
    assert_eq!(second.program.set_states("fc_0.b_0", &[vec![0.0; 5]]).unwrap_err().to_string(), {
        "'fc_0.b_0: moment1' should be 6 floats, but the value at hand is 5 floats"
    });
}

#[test]
fn what_a_device_cannot_do_is_said_before_it_runs() {
    let Some(device) = device() else { return };
    let (programs, loss) = model(Rule::Lamb(Lamb::default()));
    let split = split_trainer(&programs).unwrap();
    let error = DeviceProgram::compile(&split, &device, &[&loss]).err().unwrap().to_string();
    assert!(error.contains("the optimizer 'lamb' has no kernel for devices"), "{error}");

    let mut b = regatta_ops::builder(3);
    let x = b.data("x", DType::F32, &[-1, 3]).unwrap();
    let half = b.cast(&x, DType::F16).unwrap();
    let name = half.name().to_string();
    let mut program =
        DeviceProgram::new(b.finish().main, vec![], vec![], &device, &[&name]).unwrap();
    let error = run(&mut program, &[("x", &Tensor::zeros(DType::F32, &[2, 3]).into())]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("op cast") && error.contains("devices compute with f32"), "{error}");
}

fn run(program: &mut DeviceProgram, feeds: &[(&str, &Value)]) -> Result<Vec<Tensor>, Error> {
    let (mut batch, mut inputs) = (DeviceBatch::default(), DeviceInputs::default());
    program.preparer().prepare(feeds, &[], &mut batch)?;
    program.upload(&batch, Queue::Compute, &mut inputs)?;
    program.compute(&mut inputs, &[])?;
    program.fetch()
}

#[test]
fn wrong_inputs_are_named() {
    let Some(device) = device() else { return };
    let mut b = regatta_ops::builder(3);
    let x = b.data("x", DType::F32, &[-1, 3]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&x, &label).unwrap();
    let programs = b.finish();
    let main = programs.main;
    let mut program = DeviceProgram::new(main, vec![], vec![], &device, &[cost.name()]).unwrap();
    let x: Value = Tensor::zeros(DType::F32, &[2, 3]).into();
    let labels = |labels: Vec<i64>| Value::from(Tensor::from_i64(&[2, 1], labels).unwrap());
    let good = run(&mut program, &[("x", &x), ("label", &labels(vec![2, -100]))]).unwrap();
    assert!((good[0].f32()[0] - 3f32.ln()).abs() < 1e-6 && good[0].f32()[1] == 0.0);
    let mut said = |feeds: &[(&str, &Value)]| run(&mut program, feeds).unwrap_err().to_string();
    assert_eq!(
        said(&[("x", &x), ("label", &labels(vec![0, 3]))]),
        "feed 'label': label 3 is not one of the 3 classes"
    );
    assert_eq!(said(&[("x", &x)]), "input 'label' (an input) was not fed");
    let wide: Value = Tensor::zeros(DType::F32, &[2, 4]).into();
    assert_eq!(
        said(&[("x", &wide), ("label", &labels(vec![0, 1]))]),
        "feed 'x' should be f32[-1, 3], but is f32[2, 4]"
    );
}
