//! Every op that devices run, over its registered samples and their gradients, equals the CPU's
//! kernel. A kind that no sample reaches fails.

use std::collections::BTreeSet;

use regatta_device::{Device, Queue};
use regatta_exec::Scope;
use regatta_exec::device::{DeviceBatch, DeviceInputs, DeviceProgram, device_kinds};
use regatta_ir::schema::Arity;
use regatta_ir::{Layout, Op, Origin, Program, VarDef, grad_name};
use regatta_ops::interp::{Cell, Env, eval, type_of};
use regatta_ops::{Grad, GradCtx, OPS, OpDef, Sample, StepCtx};
use regatta_tensor::{DType, Data, Ragged, Rng, Tensor, Value};

use crate::device;

/// A few ops with the values that they begin with.
struct Case {
    what: String,
    ops: Vec<Op>,
    env: Env,
}

#[test]
fn every_lowered_op_equals_the_cpu() {
    let Some(device) = device() else { return };
    let mut reached = BTreeSet::new();
    let cases = registered().into_iter().chain(further());
    for case in cases {
        reached.extend(case.ops.iter().map(|op| op.kind.clone()));
        check(&device, &case);
    }
    let missing: Vec<_> = device_kinds().into_iter().filter(|k| !reached.contains(*k)).collect();
    assert!(missing.is_empty(), "no sample reaches {missing:?}");
}

/// The samples of every kind that devices run, with their gradients.
fn registered() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in device_kinds() {
        let def = OPS.def(kind).unwrap();
        for sample in (def.samples)() {
            cases.push(with_gradient(def, &sample));
        }
    }
    cases
}

fn with_gradient(def: &OpDef, sample: &Sample) -> Case {
    let what = format!("{} ({})", def.schema.kind, sample.name);
    let (op, env) = forward_op(def, sample);
    let mut case = Case { what, ops: vec![op.clone()], env };
    let Grad::Rule(rule) = def.grad else { return case };
    let mut after = case.env.clone();
    eval(&op, &mut after, &mut StepCtx::default()).unwrap();
    let ignored = |slot: &str| sample.ignored_outputs.contains(&slot);
    let outs: Vec<String> = op
        .outputs
        .iter()
        .filter(|(slot, _)| !ignored(slot))
        .flat_map(|(_, vars)| vars.clone())
        .collect();
    let fixed = |slot: &str| sample.fixed.contains(&slot);
    let is_float = |var: &str| matches!(&after[var], Cell::Value(v) if v.dtype() == DType::F32);
    let wanted: Vec<String> = op
        .inputs
        .iter()
        .filter(|(slot, _)| !fixed(slot))
        .flat_map(|(_, vars)| vars.clone())
        .filter(|var| is_float(var))
        .collect();
    let has_grad = |var: &str| outs.iter().chain(&wanted).any(|v| v == var);
    let ty = |var: &str| type_of(&after[var]);
    case.ops.extend(rule(&GradCtx { op: &op, has_grad: &has_grad, ty: &ty }).unwrap());
    for out in &outs {
        let Cell::Value(Value::Dense(t)) = &after[out] else { panic!("{out} is dense") };
        let grad = random(&grad_name(out), t.shape());
        case.env.insert(grad_name(out), Cell::Value(grad));
    }
    case
}

fn random(name: &str, shape: &[usize]) -> Value {
    let (rng, n) = (Rng::named(1, name), shape.iter().product::<usize>());
    let floats = (0..n as u64).map(|i| rng.unit_f32(i) * 2.0 - 0.9).collect();
    Tensor::from_f32(shape, floats).unwrap().into()
}

/// As the gradient checks of `ops` do.
fn forward_op(def: &OpDef, sample: &Sample) -> (Op, Env) {
    let mut op = Op::new(def.schema.kind);
    let mut env = Env::new();
    for (slot, values) in &sample.inputs {
        let names: Vec<String> = (0..values.len()).map(|i| format!("{slot}_{i}")).collect();
        for (name, value) in names.iter().zip(values) {
            env.insert(name.clone(), Cell::Value(value.clone()));
        }
        op = op.inputs(slot, names.iter().map(String::as_str));
    }
    for (name, value) in &sample.attrs {
        op = op.attr(name, value.clone());
    }
    for slot in def.schema.outputs {
        let given = sample.out_counts.iter().find(|(s, _)| *s == slot.name).map(|(_, n)| *n);
        let n = given.unwrap_or(if slot.arity == Arity::Optional { 0 } else { 1 });
        let names: Vec<String> = (0..n).map(|i| format!("{}_{i}", slot.name)).collect();
        if !names.is_empty() {
            op = op.outputs(slot.name, names.iter().map(String::as_str));
        }
    }
    (op, env)
}

/// What no registered sample reaches: fused ops, ops on gradients, and sizes beyond one group.
fn further() -> Vec<Case> {
    let case = |what: &str, ops: Vec<Op>, values: Vec<(&str, Value)>| Case {
        what: what.to_string(),
        ops,
        env: values.into_iter().map(|(k, v)| (k.to_string(), Cell::Value(v))).collect(),
    };
    let x = |shape: &[usize]| ("x", random("x", shape));
    let w = |shape: &[usize]| ("w", random("w", shape));
    let d = |shape: &[usize]| ("d", random("d", shape));
    let of = |kind: &str| Op::new(kind).input("X", "x").output("Out", "out");
    let layer = |kind: &str| {
        Op::new(kind).input("X", "x").input("W", "w").input("Out", "x").input("dOut", "d")
    };
    let layer =
        |kind: &str| layer(kind).output("dX", "dx").output("dW", "dw").output("dBias", "db");
    let ints = Tensor::from_i64(&[3], vec![-4, 0, 9]).unwrap();
    let unsigned = Tensor::from_u64(&[3], vec![4, 0, 1 << 40]).unwrap();
    let cast = || of("cast").attr("dtype", "f32");
    let matmul = || Op::new("matmul").input("X", "x").input("Y", "w").output("Out", "out");
    vec![
        case("relu behind", vec![layer("fc_grad_through_relu")], {
            // Out has the shape of dOut; without an activation nobody reads it.
            vec![x(&[7, 5]), w(&[5, 5]), d(&[7, 5])]
        }),
        case("large layer", vec![layer("fc_grad").attr("act", "tanh")], {
            vec![x(&[150, 70]), w(&[70, 70]), d(&[150, 70])]
        }),
        case("large product", vec![matmul()], vec![x(&[130, 200]), w(&[200, 66])]),
        case("signed", vec![cast()], vec![("x", ints.into())]),
        case("unsigned", vec![cast()], vec![("x", unsigned.into())]),
        case("limits", vec![of("clip_by_value").attr("min", -0.3).attr("max", 0.2)], vec![x(&[9])]),
        case("small norm", vec![of("clip_by_norm").attr("max_norm", 1e3)], vec![x(&[9])]),
        case("large norm", vec![of("clip_by_norm").attr("max_norm", 0.5)], vec![x(&[700])]),
        case("factor", vec![norm_factor(), scaled()], vec![x(&[400]), w(&[3, 3])]),
        case("l2", vec![decay("l2_decay")], vec![x(&[5, 3]), w(&[5, 3])]),
        case("l1", vec![decay("l1_decay")], vec![x(&[5, 3]), w(&[5, 3])]),
        case("constant", vec![constant(), of("fill_like").attr("value", 2.5)], vec![x(&[4, 2])]),
        case("large mean", mean_and_gradient(), vec![x(&[300, 7]), d(&[1])]),
        case("one input", vec![join_gradient()], vec![x(&[4, 3]), w(&[4, 2]), d(&[4, 5])]),
        case("pooled rows", rows_and_gradient("embedding_row", "sum"), rows_inputs()),
        case("mean of rows", rows_and_gradient("embedding_row", "mean"), rows_inputs()),
    ]
}

fn norm_factor() -> Op {
    Op::new("global_norm_factor").inputs("X", ["x", "w"]).attr("clip_norm", 0.7).output("Out", "f")
}

fn scaled() -> Op {
    Op::new("scale_by").input("X", "x").input("Factor", "f").output("Out", "out")
}

fn decay(kind: &str) -> Op {
    Op::new(kind).input("X", "x").input("Param", "w").attr("coeff", 0.3).output("Out", "out")
}

fn constant() -> Op {
    Op::new("fill_constant").attr("shape", vec![2, 3]).attr("value", 1.5).output("Out", "constant")
}

fn mean_and_gradient() -> Vec<Op> {
    let back = Op::new("mean_grad").input("X", "x").input("dOut", "d").output("dX", "dx");
    vec![Op::new("mean").input("X", "x").output("Out", "out"), back]
}

fn join_gradient() -> Op {
    let op = Op::new("concat_grad").inputs("X", ["x", "w"]).input("dOut", "d").output("dX", "dx");
    op.attr("axis", 1).attr("index", 1)
}

fn rows_and_gradient(kind: &str, pool: &str) -> Vec<Op> {
    let both = |op: Op| {
        op.input("W", "w").inputs("Ids", ["a", "b"]).attr("pool", pool).attr("padding_idx", 2)
    };
    let forward = both(Op::new(kind)).input("Beside", "x").output("Out", "out");
    let back = both(Op::new(&format!("{kind}_grad"))).input("dOut", "d").output("dW", "dw");
    vec![forward, back]
}

fn rows_inputs() -> Vec<(&'static str, Value)> {
    let a = Tensor::from_u64(&[3, 2], vec![1, 3, 3, 2, 4, 1]).unwrap();
    let b = Ragged::new(Data::U64(vec![4, 2, 0, 2, 1]), vec![0, 2, 2, 5]).unwrap();
    let floats = |name, shape: &[usize]| (name, random(name, shape));
    vec![
        ("a", a.into()),
        ("b", b.into()),
        floats("w", &[5, 3]),
        floats("x", &[3, 2]),
        floats("d", &[3, 11]),
    ]
}

/// Runs a case on both and compares all floats that were made.
fn check(device: &Device, case: &Case) {
    let what = &case.what;
    let mut expected = case.env.clone();
    for op in &case.ops {
        let done = eval(op, &mut expected, &mut StepCtx::default());
        done.unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    let (program, scope, made) = program_of(case);
    let fetch: Vec<&str> = made.iter().map(String::as_str).collect();
    let compiled = DeviceProgram::new(program, vec![], vec![], device, &fetch);
    let mut program = compiled.unwrap_or_else(|e| panic!("{what}: {e}"));
    program.write_values(&scope).unwrap();
    let fed: Vec<(&str, &Value)> = case
        .env
        .iter()
        .filter_map(|(name, cell)| match cell {
            Cell::Value(value) => Some((name.as_str(), value)),
            Cell::Rows(_) => None,
        })
        .collect();
    let (mut batch, mut inputs) = (DeviceBatch::default(), DeviceInputs::default());
    let prepared = program.preparer().prepare(&fed, &[], &mut batch);
    prepared.unwrap_or_else(|e| panic!("{what}: {e}"));
    program.upload(&batch, Queue::Compute, &mut inputs).unwrap();
    program.compute(&mut inputs, &[]).unwrap_or_else(|e| panic!("{what}: {e}"));
    let fetched = program.fetch().unwrap_or_else(|e| panic!("{what}: {e}"));
    for (name, got) in made.iter().zip(&fetched) {
        compare(&format!("{what}: {name}"), got.f32(), &expected[name].floats());
    }
}

fn compare(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= 1e-5 * (1.0 + want.abs());
        assert!(close, "{what}[{i}] is {got}, the CPU has {want}");
    }
}

/// The ops as a program: tables are parameters, everything else is fed; with the floats it makes.
fn program_of(case: &Case) -> (Program, Scope, Vec<String>) {
    let mut program = Program::new("sample");
    let mut scope = Scope::new();
    let tables: Vec<&str> = case.ops.iter().filter_map(|op| op.input_var("W")).collect();
    let is_table = |name: &str| {
        tables.contains(&name) && case.ops.iter().any(|op| op.kind.starts_with("embedding"))
    };
    let mut names: Vec<&String> = case.env.keys().collect();
    names.sort();
    for name in names {
        let origin = if is_table(name) { Origin::Param } else { Origin::Data };
        let ty = type_of(&case.env[name]);
        program.block_mut().declare(VarDef::new(name.as_str(), ty, origin)).unwrap();
        if let (true, Cell::Value(Value::Dense(t))) = (is_table(name), &case.env[name]) {
            scope.set(name, t.clone());
        }
    }
    let mut made = Vec::new();
    for op in &case.ops {
        made.extend(
            program.push(op.clone(), &OPS).unwrap_or_else(|e| panic!("{}: {e}", case.what)),
        );
    }
    let is_float = |name: &String| {
        let ty = &program.block().vars[name].ty;
        ty.dtype == DType::F32 && ty.layout != Layout::Ragged
    };
    made.retain(is_float);
    (program, scope, made)
}
