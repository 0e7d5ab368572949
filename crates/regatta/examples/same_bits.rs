//! Three models, trained on numbers that any language can compute, by one process, by workers
//! against parameter servers or by ranks. `python/tests/same_bits.py` does the same from Python;
//! `python/tests/test_same_bits.py` compares what both save, bit by bit.
//!
//! Type `target/debug/examples/same_bits mlp ps out`, alone or behind `regatta launch`. Models are
//! `fit_a_line`, `mlp` and `dnn`; kinds are `ps` (synchronous) and `collective`.

use regatta::optim::Adam;
use regatta::prelude::*;

/// Steps of every worker, examples of every step.
const STEPS: usize = 20;
const BATCH: usize = 16;

/// Number `i` of a stream: a multiple of 1/65536 from 0 to 1, without rounding.
fn number(stream: u64, i: u64) -> f32 {
    let mixed = (stream * 40503 + i).wrapping_mul(2654435761) % 4294967296;
    (mixed >> 16) as f32 / 65536.0
}

/// A float input `[BATCH, width]` of a batch.
fn floats(batch: u64, input: u64, width: usize) -> Result<Value, regatta::tensor::Error> {
    let stream = batch * 64 + input;
    let values = (0..BATCH * width).map(|i| number(stream, i as u64)).collect();
    Ok(Tensor::from_f32(&[BATCH, width], values)?.into())
}

/// Integers below `limit` of a batch, `[BATCH, 1]`.
fn integers(batch: u64, input: u64, limit: u64) -> Vec<u64> {
    let stream = batch * 64 + input;
    (0..BATCH as u64).map(|i| (number(stream, i) * limit as f32) as u64).collect()
}

fn labels(batch: u64, input: u64) -> Result<Value, regatta::tensor::Error> {
    let values = integers(batch, input, 2).into_iter().map(|i| i as i64).collect();
    Ok(Tensor::from_i64(&[BATCH, 1], values)?.into())
}

type Feeds = Vec<(String, Value)>;
type Problem = Box<dyn std::error::Error>;
type Model = (Programs, String, fn(u64) -> Result<Feeds, Problem>);

/// A model, its loss, and the inputs of a batch.
fn model(name: &str) -> Result<Model, Problem> {
    match name {
        "fit_a_line" => {
            let model = regatta::quickstart::fit_a_line::model(42)?;
            let feeds = |batch| {
                let (x, y) = (floats(batch, 0, 13)?, floats(batch, 1, 1)?);
                Ok(vec![("x".into(), x), ("y".into(), y)])
            };
            Ok((model.programs, model.loss, feeds))
        }
        "mlp" => {
            let model = regatta::quickstart::mlp::model(42)?;
            let feeds = |batch| {
                Ok(vec![("x".into(), floats(batch, 0, 32)?), ("y".into(), labels(batch, 1)?)])
            };
            Ok((model.programs, model.loss, feeds))
        }
        "dnn" => dnn(),
        other => Err(format!("there is no model '{other}'").into()),
    }
}

/// The click model of the zoo, with 4 slots and a small table.
fn dnn() -> Result<Model, Problem> {
    let mut b = builder(42);
    let label = b.data("label", DType::I64, &[-1, 1])?;
    let slots = (1..=4).map(|i| b.data(&i.to_string(), DType::U64, &[-1, 1]));
    let slots = slots.collect::<Result<Vec<_>, _>>()?;
    let dense = b.data("dense_input", DType::F32, &[-1, 13])?;
    let init = Initializer::Uniform { low: -1.0, high: 1.0 };
    let table = ParamAttr::with_init(init).named("SparseFeatFactors");
    let table = regatta::ir::Embedding { table, ..regatta::ir::Embedding::new(101, 9) };
    let embedded = b.embedding(&slots.iter().collect::<Vec<_>>(), &table)?;
    let flat = b.reshape(&embedded, &[-1, 36])?;
    let mut hidden = b.concat(&[&flat, &dense], 1)?;
    for size in [32, 16] {
        hidden = b.fc(&hidden, size, Act::Relu)?;
    }
    let logits = b.fc(&hidden, 2, Act::None)?;
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label)?;
    let loss = b.mean(&cost)?;
    let feeds = |batch| {
        let mut feeds: Feeds = vec![("label".into(), labels(batch, 0)?)];
        for slot in 1..=4 {
            let ids = integers(batch, slot, 101);
            feeds.push((slot.to_string(), Tensor::from_u64(&[BATCH, 1], ids)?.into()));
        }
        feeds.push(("dense_input".into(), floats(batch, 5, 13)?));
        Ok(feeds)
    };
    Ok((b.finish(), loss.name().to_string(), feeds))
}

fn main() -> Result<(), Problem> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or(format!("{what} is missing"));
    let (name, kind, out) = (next("the model")?, next("the kind")?, next("the folder")?);
    let (programs, loss, feeds) = model(&name)?;
    let fleet = match kind.as_str() {
        "ps" => {
            let sync = DistributedStrategy { a_sync: false, ..Default::default() };
            Fleet::init(PaddleCloudRoleMaker::new(), false, sync)?
        }
        "collective" => Fleet::init(PaddleCloudRoleMaker::collective(), true, None)?,
        other => return Err(format!("there is no kind '{other}'").into()),
    };
    let adam = Optimizer::new(Rule::Adam(Adam::default()), 0.01);
    let minimized = fleet.distributed_optimizer(adam, None)?.minimize(&programs, &loss)?;
    if fleet.is_server() {
        return Ok(fleet.run_server()?);
    }
    let mut scope = Scope::new();
    run_startup(&minimized.programs.startup, &mut scope)?;
    let mut exe = fleet.executor(Options::default())?;
    for step in 0..STEPS {
        let batch = (step * fleet.worker_num() + fleet.worker_index()) as u64;
        let feeds = feeds(batch)?;
        let feeds: Vec<(&str, &Value)> = feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let cost = exe.run(&mut scope, &feeds, &[&loss])?[0].f32()[0];
        println!("{step} {:08x}", cost.to_bits());
    }
    fleet.barrier_worker()?;
    fleet.save_persistables(&mut scope, &out)?;
    Ok(fleet.stop_worker(&mut scope)?)
}
