//! What a tensor promises beyond the values of single ops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_eager::nn::{BatchNorm, Embedding, Init, Layer, Linear, cross_entropy};
use regatta_eager::{
    Autocast, Error, Optimizer, Param, Template, Tensor, autocast, grad, no_grad, seed,
};
use regatta_optim::{Adam, Rule, Sgd};
use regatta_tensor::DType;

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(shape, values.to_vec()).unwrap()
}

fn pair(kind: &str) -> Arc<Template> {
    Template::new(kind, &[("X", 1), ("Y", 1)], &[], &[]).unwrap()
}

fn of_two(kind: &str, x: &Tensor, y: &Tensor) -> Tensor {
    pair(kind).call(&[x, y]).unwrap().remove(0)
}

#[test]
fn gradients_add_up_over_uses_and_backwards() {
    let x = floats(&[2], &[2.0, 3.0]).trainable();
    let loss = || of_two("elementwise_mul", &x, &x).op("mean", &[]).unwrap();
    loss().backward(None, false).unwrap();
    assert_eq!(x.grad().unwrap().to_f32(), [2.0, 3.0]);
    loss().backward(None, false).unwrap();
    assert_eq!(x.grad().unwrap().to_f32(), [4.0, 6.0]);
    x.clear_grad(true);
    assert_eq!(x.grad().unwrap().to_f32(), [0.0, 0.0]);
    x.clear_grad(false);
    assert!(x.grad().is_none());
}

#[test]
fn a_freed_graph_says_so() {
    let x = floats(&[1], &[2.0]).trainable();
    let y = x.op("square", &[]).unwrap();
    y.backward(None, true).unwrap();
    y.backward(None, false).unwrap();
    assert_eq!(x.grad().unwrap().to_f32(), [8.0]);
    let error = y.backward(None, false).unwrap_err();
    assert!(matches!(&error, Error::Freed { op } if op == "square"), "{error}");
    assert!(error.to_string().contains("retain_graph"));
}

#[test]
fn nothing_recorded_says_so() {
    let x = floats(&[1], &[2.0]).trainable();
    let y = no_grad(|| x.op("square", &[]).unwrap());
    assert!(matches!(y.backward(None, false), Err(Error::NoGraph(_))));
    let many = floats(&[2], &[1.0, 2.0]).trainable().op("square", &[]).unwrap();
    assert!(many.backward(None, false).unwrap_err().to_string().contains("2 elements"));
}

#[test]
fn a_change_in_place_leaves_what_was_computed() {
    let x = floats(&[2], &[1.0, 2.0]).trainable();
    let w = floats(&[2], &[3.0, 4.0]).trainable();
    let y = of_two("elementwise_mul", &x, &w);
    let view = w.op("reshape", &[("shape", vec![2, 1].into())]).unwrap();
    w.set(&floats(&[2], &[9.0, 9.0])).unwrap();
    assert_eq!(view.to_f32(), [3.0, 4.0]);
    y.op("mean", &[]).unwrap().backward(None, false).unwrap();
    // The gradient uses the value from the time of the product.
    assert_eq!(x.grad().unwrap().to_f32(), [1.5, 2.0]);
    assert_eq!(w.version(), 1);
    assert!(w.set(&floats(&[1], &[0.0])).is_err());
}

#[test]
fn hooks_see_and_replace_the_whole_gradient() {
    let x = floats(&[1], &[3.0]).trainable();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let y = x.op("square", &[]).unwrap();
    y.hook(Arc::new(move |gradient| {
        seen.fetch_add(1, Ordering::Relaxed);
        assert_eq!(gradient.to_f32(), [2.0]);
        Ok(Some(gradient.op("scale", &[("scale", 10.0.into())])?))
    }));
    let ready = Arc::new(AtomicUsize::new(0));
    let count = ready.clone();
    x.on_ready(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }));
    y.retain_grads();
    of_two("elementwise_add", &y, &y).backward(None, false).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(ready.load(Ordering::Relaxed), 1);
    assert_eq!(x.grad().unwrap().to_f32(), [120.0]);
    assert_eq!(y.grad().unwrap().to_f32(), [20.0]);
}

#[test]
fn a_failing_hook_fails_the_backward() {
    let x = floats(&[1], &[3.0]).trainable();
    let id = x.hook(Arc::new(|_| Err(Error::Hook("no".into()))));
    let y = x.op("square", &[]).unwrap();
    assert!(matches!(y.backward(None, true), Err(Error::Hook(_))));
    x.unhook(id);
    y.backward(None, false).unwrap();
}

#[test]
fn gradients_can_be_asked_for_without_being_added() {
    let x = floats(&[1], &[3.0]).trainable();
    let other = floats(&[1], &[3.0]).trainable();
    let y = x.op("square", &[]).unwrap();
    let z = y.op("square", &[]).unwrap();
    let found = grad(&[&z], &[&x, &y, &other], &[None], false).unwrap();
    assert_eq!(found[0].as_ref().unwrap().to_f32(), [108.0]);
    assert_eq!(found[1].as_ref().unwrap().to_f32(), [18.0]);
    assert!(found[2].is_none());
    assert!(x.grad().is_none());
}

#[test]
fn gradients_of_tables_name_rows() {
    let mut init = Init::new(7);
    let table = Embedding::new(&mut init, 1000, 4).unwrap();
    let ids = Tensor::from_i64(&[3], vec![5, 999, 5]).unwrap();
    let loss = |ids: &Tensor| table.forward(ids).unwrap().op("mean", &[]).unwrap();
    loss(&ids).backward(None, false).unwrap();
    loss(&Tensor::from_i64(&[1], vec![7]).unwrap()).backward(None, false).unwrap();
    let gradient = table.weight.grad().unwrap();
    let rows = gradient.to_rows().unwrap();
    assert_eq!(rows.rows, [5, 999, 7]);
    assert_eq!(rows.values[0], 2.0 / 12.0);
    assert_eq!(gradient.to_f32().len(), 4000);
}

/// Rows that rest, and rows that move on by their moments as a dense gradient makes them.
#[test]
fn adam_on_tables_is_lazy_or_exact() {
    let run = |lazy: Option<bool>| {
        let mut init = Init::new(7);
        let weight = init.uniform(&[6, 2], 1.0).unwrap();
        let is_sparse = lazy.is_some();
        let slots = [("W", 1), ("Ids", 1)];
        let lookup =
            Template::new("embedding", &slots, &[("is_sparse", is_sparse.into())], &[]).unwrap();
        let mut adam = Optimizer::new(Rule::Adam(Adam::default())).lazy(lazy.unwrap_or(true));
        for ids in [[0i64, 1], [1, 2], [4, 4]] {
            let ids = Tensor::from_i64(&[2], ids.to_vec()).unwrap();
            let rows = lookup.call(&[&weight, &ids]).unwrap().remove(0);
            rows.op("mean", &[]).unwrap().backward(None, false).unwrap();
            adam.step(&[Param::new(&weight)], 0.1).unwrap();
            weight.clear_grad(false);
        }
        weight.to_f32()
    };
    let (dense, exact, lazy) = (run(None), run(Some(false)), run(Some(true)));
    assert_eq!(dense, exact);
    assert_ne!(dense, lazy);
    assert_eq!(dense[6..8], lazy[6..8], "row 3 was never touched");
}

#[test]
fn statistics_are_updated_in_place() {
    let mut norm = BatchNorm::new(2).unwrap();
    let x = floats(&[2, 2, 1], &[1.0, 2.0, 3.0, 6.0]).trainable();
    let y = norm.forward(&x).unwrap();
    assert_eq!(y.shape(), [2, 2, 1]);
    let mean = norm.mean.to_f32();
    assert!((mean[0] - 0.2).abs() < 1e-6 && (mean[1] - 0.4).abs() < 1e-6, "{mean:?}");
    y.op("mean", &[]).unwrap().backward(None, false).unwrap();
    assert_eq!(x.grad().unwrap().shape(), [2, 2, 1]);
    norm.train(false);
    let before = norm.mean.version();
    norm.forward(&x).unwrap();
    assert_eq!(norm.mean.version(), before);
}

#[test]
fn long_graphs_are_dropped_one_op_after_the_other() {
    let mut x = floats(&[1], &[1.0]).trainable();
    for _ in 0..200_000 {
        x = x.op("scale", &[]).unwrap();
    }
    drop(x);
}

#[test]
fn random_ops_follow_from_the_seed() {
    let x = floats(&[64], &[1.0; 64]);
    let draw = || {
        let dropout = Template::new("dropout", &[("X", 1)], &[], &[]).unwrap();
        dropout.call(&[&x]).unwrap().remove(0).to_f32()
    };
    seed(5);
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    seed(5);
    assert_eq!((draw(), draw()), (first, second));
}

#[test]
fn casts_compute_in_16_bits_and_give_32_bit_gradients() {
    let mut init = Init::new(3);
    let layer = Linear::new(&mut init, 4, 3, "").unwrap();
    let x = floats(&[2, 4], &[0.5; 8]);
    let exact = layer.forward(&x).unwrap().to_f32();
    let white = ["fc".to_string()].into_iter().collect();
    let guard = autocast(Autocast { dtype: DType::BF16, white, black: Default::default() });
    let y = layer.forward(&x).unwrap();
    drop(guard);
    assert_eq!(y.dtype(), DType::BF16);
    let y = y.op("cast", &[("dtype", "f32".into())]).unwrap();
    for (a, b) in y.to_f32().iter().zip(&exact) {
        assert!((a - b).abs() < 0.01, "{a} {b}");
    }
    y.op("mean", &[]).unwrap().backward(None, false).unwrap();
    assert_eq!(layer.weight.grad().unwrap().dtype(), DType::F32);
    assert_eq!(layer.forward(&x).unwrap().to_f32(), exact);
}

#[test]
fn mistakes_are_errors() {
    let x = floats(&[2, 3], &[0.0; 6]);
    let y = floats(&[2, 3], &[0.0; 6]);
    assert!(pair("matmul").call(&[&x, &y]).unwrap_err().to_string().contains("matmul"));
    assert!(x.op("no_such_op", &[]).is_err());
    assert!(x.op("relu", &[("alpha", 1.0.into())]).is_err());
    let table = floats(&[2, 3], &[0.0; 6]);
    let lookup = Template::new("embedding", &[("W", 1), ("Ids", 1)], &[], &[]).unwrap();
    let error = lookup.call(&[&table, &Tensor::from_i64(&[1], vec![5]).unwrap()]).unwrap_err();
    assert!(error.to_string().contains('5'), "{error}");
    let logits = floats(&[1, 2], &[0.0; 2]);
    assert!(cross_entropy(&logits, &Tensor::from_i64(&[1, 1], vec![2]).unwrap()).is_err());
}

#[test]
fn tensors_compute_on_several_threads() {
    let w = floats(&[64, 64], &[0.01; 4096]).trainable();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let x = floats(&[8, 64], &[1.0; 512]);
                for _ in 0..50 {
                    let y = of_two("matmul", &x, &w);
                    assert!((y.to_f32()[0] - 0.64).abs() < 1e-5);
                    y.op("mean", &[]).unwrap().backward(None, false).unwrap();
                }
            });
        }
    });
    let sum = w.grad().unwrap().to_f32()[0];
    assert!((sum - 200.0 / 64.0).abs() < 1e-3, "{sum}");
}

#[test]
fn a_step_of_an_optimizer_moves_against_the_gradient() {
    let w = floats(&[1], &[1.0]).trainable();
    let unused = floats(&[1], &[1.0]).trainable();
    w.op("square", &[]).unwrap().backward(None, false).unwrap();
    let mut sgd = Optimizer::new(Rule::Sgd(Sgd {}));
    sgd.step(&[Param::new(&w), Param::new(&unused)], 0.25).unwrap();
    assert_eq!((w.to_f32(), unused.to_f32()), (vec![0.5], vec![1.0]));
}

#[test]
fn shapes_may_depend_on_values() {
    let x = floats(&[2, 2], &[0.0, 3.0, 1.0, 3.0]);
    assert_eq!(x.nonzero().unwrap().to_tensor().i64(), [0, 1, 1, 0, 1, 1]);
    let found = x.unique().unwrap();
    assert_eq!(found.values.to_f32(), [0.0, 1.0, 3.0]);
    assert_eq!(found.counts.to_tensor().i64(), [1, 1, 2]);
    assert_eq!(found.inverse.to_tensor().i64(), [0, 2, 1, 2]);
    assert!(x.masked_select(&Tensor::from_i64(&[2], vec![1, 0]).unwrap()).is_err());
}

#[test]
fn regularization_reaches_all_rows_unless_lazy() {
    let run = |lazy: bool| {
        let weight = floats(&[3, 1], &[1.0, 1.0, 1.0]).trainable();
        let lookup = Template::new("embedding", &[("W", 1), ("Ids", 1)], &[], &[]).unwrap();
        let rows = lookup.call(&[&weight, &Tensor::from_i64(&[1], vec![0]).unwrap()]).unwrap();
        rows[0].op("mean", &[]).unwrap().backward(None, false).unwrap();
        let decay = Some(regatta_ir::Regularizer::L2(0.5));
        let mut sgd = Optimizer::new(Rule::Sgd(Sgd {})).regularizer(decay).lazy(lazy);
        sgd.step(&[Param::new(&weight)], 0.1).unwrap();
        weight.to_f32()
    };
    assert_eq!(run(false), [1.0 - 0.15, 0.95, 0.95]);
    assert_eq!(run(true), [1.0 - 0.15, 1.0, 1.0]);
}
