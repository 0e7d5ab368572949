//! Training on one machine: it learns, threads and memory reuse change nothing, bad input is named.

mod common;

use common::{adam, batch, initialised, mlp, sgd};
use regatta_exec::{Error, Executor, Options, Scope, run_startup};
use regatta_ir::{Act, Embedding, Origin, ParamAttr, Pool, VarType};
use regatta_passes::pipeline::Rewrite;
use regatta_passes::{Backward, Clip, minimize};
use regatta_tensor::{DType, Data, Ragged, Rng, Tensor, Value};

const WIDTHS: [i64; 4] = [16, 32, 16, 2];

fn losses(options: Options, rows: usize, steps: u64) -> (Vec<f32>, Scope) {
    let model = mlp(&WIDTHS, Act::Relu, &adam(0.01));
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main, options).unwrap();
    let losses = (0..steps)
        .map(|step| {
            let (x, label) = batch(rows, 16, step % 5);
            let feeds = [("x", &x), ("label", &label)];
            executor.run(&mut scope, &feeds, &[&model.loss]).unwrap()[0].f32()[0]
        })
        .collect();
    (losses, scope)
}

#[test]
fn a_network_learns() {
    let (losses, _) = losses(Options::default(), 64, 200);
    assert!(losses[0] > 0.5, "{}", losses[0]);
    assert!(losses[199] < 0.1, "{}", losses[199]);
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let (a, _) = losses(Options::default(), 33, 30);
    let (b, _) = losses(Options::default(), 33, 30);
    assert_eq!(a, b);
}

#[test]
fn memory_reuse_changes_no_bit() {
    let (a, _) = losses(Options::default(), 33, 30);
    let (b, _) = losses(Options { memory_reuse: false, ..Options::default() }, 33, 30);
    assert_eq!(a, b);
}

#[test]
fn threads_give_the_same_losses_and_parameters() {
    let (one, scope_one) = losses(Options::default(), 50, 40);
    for threads in [2, 3, 4] {
        let options = Options { threads, ..Options::default() };
        let (many, scope_many) = losses(options, 50, 40);
        for (step, (a, b)) in one.iter().zip(&many).enumerate() {
            assert!((a - b).abs() < 1e-5, "{threads} threads, step {step}: {a} and {b}");
        }
        for name in scope_one.names().iter().filter(|n| n.ends_with("w_0")) {
            let (a, b) = (scope_one.get(name).unwrap(), scope_many.get(name).unwrap());
            for (a, b) in a.f32().iter().zip(b.f32()) {
                assert!((a - b).abs() < 1e-4, "{threads} threads, {name}: {a} and {b}");
            }
        }
    }
}

#[test]
fn more_threads_than_examples_is_fine() {
    let (one, _) = losses(Options::default(), 3, 5);
    let (many, _) = losses(Options { threads: 8, ..Options::default() }, 3, 5);
    one.iter().zip(&many).for_each(|(a, b)| assert!((a - b).abs() < 1e-5));
}

#[test]
fn parameters_start_with_given_values() {
    let mut b = regatta_ops::builder(3);
    let w = b.param("w", &[2, 2], &ParamAttr::weight()).unwrap();
    b.initial_values(&w, &[0.5, -1.0, 2.0, 3.25]).unwrap();
    assert!(b.initial_values(&w, &[0.5]).unwrap_err().to_string().contains("f32[2, 2]"));
    let mut programs = b.finish();
    // What is written as text comes back the same.
    let text = programs.startup.to_string();
    programs.startup = regatta_ir::text::parse(&text).unwrap();
    let scope = initialised(&programs);
    assert_eq!(scope.get("w").unwrap().f32(), [0.5, -1.0, 2.0, 3.25], "{text}");
}

#[test]
fn threads_add_up_integers() {
    let mut b = regatta_ops::builder(3);
    let x = b.data("x", DType::I64, &[-1, 2]).unwrap();
    let twice = b.sum(&[&x, &x]).unwrap();
    let total = b.reduce_sum(&twice, &[0], false).unwrap();
    let (total, program) = (total.name().to_string(), b.finish().main);
    let x: Value = Tensor::from_i64(&[5, 2], (0..10).collect()).unwrap().into();
    for threads in 1..=3 {
        let options = Options { threads, ..Options::default() };
        let mut executor = Executor::new(program.clone(), options).unwrap();
        let out = executor.run(&mut Scope::new(), &[("x", &x)], &[&total]).unwrap();
        assert_eq!(out[0].i64(), [40, 50], "{threads} threads");
    }
}

/// Two slots over one table, pooled, with clipping: row-sparse gradients all the way.
fn sparse_losses(threads: usize, sparse: bool) -> Vec<f32> {
    let mut b = regatta_ops::builder(3);
    let clicks = b.sparse_data("clicks").unwrap();
    let item = b.data("item", DType::U64, &[-1, 2]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let spec = Embedding { sparse, pool: Pool::Mean, ..Embedding::new(50, 4) };
    let e = b.embedding(&[&clicks, &item], &spec).unwrap();
    let e = b.reshape(&e, &[-1, 12]).unwrap();
    let logits = b.fc(&e, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let mut optimizer = sgd(0.5);
    optimizer.clip = Some(Clip::GlobalNorm(1.0));
    let programs = minimize(&b.finish(), &loss, &optimizer, &Backward::default()).unwrap().programs;
    let mut scope = initialised(&programs);
    let options = Options { threads, check_nan_inf: true, ..Options::default() };
    let mut executor = Executor::new(programs.main, options).unwrap();
    (0..30)
        .map(|step| {
            let rng = Rng::new(step % 3, 9);
            let rows = 20u64;
            let mut offsets = vec![0u32];
            let mut ids = Vec::new();
            for r in 0..rows {
                ids.extend((0..r % 4).map(|i| rng.u64(r * 10 + i) % 50));
                offsets.push(ids.len() as u32);
            }
            let items: Vec<u64> = (0..2 * rows).map(|i| rng.u64(1000 + i) % 50).collect();
            let labels = (0..rows as usize).map(|r| (items[2 * r] % 2) as i64).collect();
            let clicks: Value = Ragged::new(Data::U64(ids), offsets).unwrap().into();
            let items: Value = Tensor::from_u64(&[rows as usize, 2], items).unwrap().into();
            let label: Value = Tensor::from_i64(&[rows as usize, 1], labels).unwrap().into();
            let feeds = [("clicks", &clicks), ("item", &items), ("label", &label)];
            executor.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0]
        })
        .collect()
}

#[test]
fn row_sparse_gradients_equal_dense_ones_with_any_number_of_threads() {
    let dense = sparse_losses(1, false);
    assert!(dense[29] < 0.8 * dense[0], "{dense:?}");
    for threads in [1, 2, 3] {
        let sparse = sparse_losses(threads, true);
        for (step, (a, b)) in dense.iter().zip(&sparse).enumerate() {
            assert!((a - b).abs() < 1e-5, "{threads} threads, step {step}: {a} and {b}");
        }
    }
}

#[test]
fn fetches_come_in_order_and_of_any_kind() {
    let model = mlp(&WIDTHS, Act::Tanh, &sgd(0.1));
    let mut scope = initialised(&model.programs);
    for threads in [1, 3] {
        let options = Options { threads, ..Options::default() };
        let mut executor = Executor::new(model.programs.main.clone(), options).unwrap();
        let (x, label) = batch(10, 16, 0);
        let fetch = [&model.softmax, "x", "fc_0.b_0", &model.loss, "fc_0.w_0@GRAD"];
        let out =
            executor.run(&mut scope, &[("x", &x), ("label", &label)], &fetch).unwrap().to_vec();
        assert_eq!(out[0].shape(), [10, 2]);
        out[0].f32().chunks(2).for_each(|p| assert!((p[0] + p[1] - 1.0).abs() < 1e-6));
        assert_eq!(Value::Dense(out[1].clone()), x);
        assert_eq!(out[2].shape(), [32]);
        assert_eq!(out[4].shape(), [16, 32]);
    }
}

#[test]
fn what_is_not_copied_is_read_where_it_was_computed() {
    for threads in [1, 3] {
        let model = mlp(&WIDTHS, Act::Relu, &adam(0.01));
        let main = &model.programs.main;
        let grads = main.block().vars.keys().filter(|name| name.ends_with("w_0@GRAD"));
        // A parameter and an input are not in the memory of the plan.
        let mut fetch: Vec<String> = vec![model.loss.clone()];
        fetch.extend(grads.cloned());
        assert_eq!(fetch.len(), 4);
        fetch.extend(["fc_0.w_0".into(), "x".into()]);
        let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
        let options = Options { threads, ..Options::default() };
        let mut executors = [(); 2].map(|()| Executor::new(main.clone(), options.clone()).unwrap());
        let mut scopes = [(); 2].map(|()| initialised(&model.programs));
        for step in 0..3 {
            let (x, label) = batch(20, 16, step);
            let feeds = [("x", &x), ("label", &label)];
            let copies = executors[0].run(&mut scopes[0], &feeds, &fetch).unwrap().to_vec();
            let copied = executors[1].run_copying(&mut scopes[1], &feeds, &fetch, 1).unwrap();
            assert_eq!(copied, &copies[..1]);
            for (i, copy) in copies.iter().enumerate() {
                assert_eq!(executors[1].fetched_floats(i), copy.f32(), "{}", fetch[i]);
                assert_eq!(executors[0].fetched_floats(i), copy.f32(), "{}", fetch[i]);
            }
        }
    }
}

fn error(feeds: &[(&str, &Value)], fetch: &[&str]) -> String {
    let model = mlp(&WIDTHS, Act::Relu, &sgd(0.1));
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    executor.run(&mut scope, feeds, fetch).unwrap_err().to_string()
}

#[test]
fn bad_input_is_named() {
    let (x, label) = batch(4, 16, 0);
    let (short, _) = batch(3, 16, 0);
    let (narrow, _) = batch(4, 15, 0);
    let cases = [
        (
            error(&[("xx", &x), ("label", &label)], &[]),
            "feed 'xx' is not an input of this program; did you mean 'x'?",
        ),
        (error(&[("x", &x)], &[]), "input 'label' (i64[-1, 1]) was not fed"),
        (
            error(&[("x", &narrow), ("label", &label)], &[]),
            "feed 'x' should be f32[-1, 16], but is f32[4, 15]",
        ),
        (
            error(&[("x", &label), ("label", &label)], &[]),
            "feed 'x' should be f32[-1, 16], but is i64[4, 1]",
        ),
        (
            error(&[("x", &short), ("label", &label)], &[]),
            "feed 'label' has 4 examples, but 'x' has 3",
        ),
        (
            error(&[("x", &x), ("label", &label)], &["losss"]),
            "fetch 'losss': no such variable in program 'main'",
        ),
    ];
    for (got, want) in cases {
        assert!(got.starts_with(want), "{got}\nshould start with\n{want}");
    }
    let bad: Value = Tensor::from_i64(&[4, 1], vec![0, 1, 2, 0]).unwrap().into();
    let got = error(&[("x", &x), ("label", &bad)], &[]);
    assert!(got.contains("label 2 of example 2 is not one of the 2 classes"), "{got}");
}

#[test]
fn running_before_startup_is_an_error() {
    let model = mlp(&WIDTHS, Act::Relu, &sgd(0.1));
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    let (x, label) = batch(4, 16, 0);
    let e = executor.run(&mut Scope::new(), &[("x", &x), ("label", &label)], &[]).unwrap_err();
    assert!(matches!(e, Error::NotInitialised { .. }));
    assert!(e.to_string().contains("parameter 'fc_0.w_0' is not initialised"), "{e}");
}

#[test]
fn a_parameter_of_another_shape_is_an_error() {
    let model = mlp(&WIDTHS, Act::Relu, &sgd(0.1));
    let mut scope = initialised(&model.programs);
    scope.set("fc_0.w_0", Tensor::zeros(DType::F32, &[16, 31]));
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    let (x, label) = batch(4, 16, 0);
    let e = executor.run(&mut scope, &[("x", &x), ("label", &label)], &[]).unwrap_err();
    assert!(e.to_string().contains("'fc_0.w_0' should be f32[16, 32]"), "{e}");
}

#[test]
fn not_a_number_is_found_where_it_arises() {
    let model = mlp(&WIDTHS, Act::Relu, &sgd(0.1));
    let mut scope = initialised(&model.programs);
    let options = Options { check_nan_inf: true, ..Options::default() };
    let mut executor = Executor::new(model.programs.main, options).unwrap();
    let (x, label) = batch(4, 16, 0);
    executor.run(&mut scope, &[("x", &x), ("label", &label)], &[]).unwrap();
    scope.get_mut("fc_1.w_0").unwrap().f32_mut()[3] = f32::NAN;
    let e = executor.run(&mut scope, &[("x", &x), ("label", &label)], &[]).unwrap_err();
    let text = e.to_string();
    assert!(text.starts_with("step 1: op fc wrote NaN to 'fc_1.tmp_0'"), "{text}");
}

#[test]
fn a_startup_program_sets_what_the_seed_says() {
    let model = mlp(&WIDTHS, Act::Relu, &sgd(0.1));
    let (mut a, mut b) = (Scope::new(), Scope::new());
    run_startup(&model.programs.startup, &mut a).unwrap();
    run_startup(&model.programs.startup, &mut b).unwrap();
    assert_eq!(a.get("fc_0.w_0"), b.get("fc_0.w_0"));
    assert_ne!(a.get("fc_0.w_0").unwrap().f32()[..4], a.get("fc_1.w_0").unwrap().f32()[..4]);
}

/// Zeros are not written, and random values drawn in parts by several threads, of which there are
/// enough here; nobody can tell.
#[test]
fn first_values_are_those_of_the_ops_one_after_the_other() {
    let startup = mlp(&[1500, 1000, 2], Act::Relu, &adam(0.1)).programs.startup;
    let (mut made, mut by_ops) = (Scope::new(), Scope::new());
    run_startup(&startup, &mut made).unwrap();
    for var in startup.persistables() {
        let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d as usize).collect();
        let other = Tensor::from_f32(&shape, vec![7.0; shape.iter().product()]).unwrap();
        by_ops.set(&var.name, other);
    }
    Executor::new(startup, Options::default()).unwrap().run(&mut by_ops, &[], &[]).unwrap();
    assert!(made.names().len() > 8);
    for name in by_ops.names() {
        assert!(made.get(name) == by_ops.get(name), "{name}");
    }
}

#[test]
fn less_memory_with_reuse_and_it_is_reported() {
    let model = mlp(&WIDTHS, Act::Relu, &sgd(0.1));
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main, Options::default()).unwrap();
    let (x, label) = batch(64, 16, 0);
    executor.run(&mut scope, &[("x", &x), ("label", &label)], &[]).unwrap();
    let memory = executor.memory().unwrap();
    assert!(memory.bytes < memory.bytes_without_reuse, "{memory:?}");
}

/// What is shown is what plans are made of.
#[test]
fn the_lowered_program_takes_as_much_memory_as_a_run() {
    let model = mlp(&[16, 32, 32, 2], Act::Relu, &adam(0.01));
    let mut scope = initialised(&model.programs);
    let mut executor = Executor::new(model.programs.main.clone(), Options::default()).unwrap();
    let typed = |name: &str, ty| (name.to_string(), ty);
    let feeds = [
        typed("x", VarType::f32([20, 16])),
        typed("label", VarType::dense(DType::I64, vec![20, 1])),
    ];
    let mut passes = Vec::new();
    let watch = &mut |name: &str, _: &str, _: &dyn Rewrite| passes.push(name.to_string());
    let lowered = executor.lowered(&feeds, std::slice::from_ref(&model.loss), watch).unwrap();
    assert_eq!(passes, ["fuse", "split_batch", "memory_reuse", "concrete_types"]);
    let text = lowered.programs()[0].to_string();
    assert!(text.contains("fc_grad_through_relu("), "{text}");
    let (x, label) = batch(20, 16, 1);
    executor.run(&mut scope, &[("x", &x), ("label", &label)], &[&model.loss]).unwrap();
    // Buffers of the text, each as large as its largest variable, and what has memory of its own.
    let mut buffers: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    for var in lowered.programs()[0].block().vars.values().filter(|v| v.origin == Origin::Temp) {
        let bytes = (var.ty.numel().unwrap() * var.ty.dtype.size()).div_ceil(64) * 64;
        let buffer = var.buffer.clone().unwrap_or_else(|| var.name.clone());
        let size = buffers.entry(buffer).or_default();
        *size = bytes.max(*size);
    }
    assert_eq!(buffers.values().sum::<usize>(), executor.memory().unwrap().bytes);
    let wrong = [typed("x", VarType::f32([20, 15]))];
    let error = executor.lowered(&wrong, &[], &mut |_, _, _| {}).unwrap_err().to_string();
    assert_eq!(error, "feed 'x' should be f32[-1, 16], but is f32[20, 15]");
}
