//! Tables whose rows move after their last gradient: the same as with a dense gradient.

mod common;

use common::{adam, initialised};
use regatta_exec::{Executor, Options};
use regatta_ir::{Act, Embedding, ParamAttr};
use regatta_optim::{AdamW, Rule};
use regatta_passes::{Backward, Optimizer, minimize};
use regatta_tensor::{DType, Tensor, Value};

/// The table after some steps, each with ids of its own.
fn train(optimizer: &Optimizer, sparse: bool) -> Vec<f32> {
    let mut b = regatta_ops::builder(3);
    let ids = b.data("ids", DType::I64, &[-1, 2]).unwrap();
    let table = ParamAttr::weight().named("table");
    let spec = Embedding { table, sparse, ..Embedding::new(8, 3) };
    let vectors = b.embedding(&[&ids], &spec).unwrap();
    let flat = b.reshape(&vectors, &[-1, 6]).unwrap();
    let y = b.fc(&flat, 1, Act::Tanh).unwrap();
    let loss = b.mean(&y).unwrap();
    let loss = loss.name().to_string();
    let programs = minimize(&b.finish(), &loss, optimizer, &Backward::default()).unwrap().programs;
    let mut scope = initialised(&programs);
    let mut executor = Executor::new(programs.main.clone(), Options::default()).unwrap();
    // The second batch has another size, so another execution plan updates the table.
    for ids in [vec![0, 1, 1, 5], vec![2, 0], vec![5, 5, 7, 2], vec![3, 2]] {
        let ids: Value = Tensor::from_i64(&[ids.len() / 2, 2], ids).unwrap().into();
        executor.run(&mut scope, &[("ids", &ids)], &[]).unwrap();
    }
    scope.get("table").unwrap().f32().to_vec()
}

#[test]
fn rows_move_as_with_a_dense_gradient() {
    let adamw = Optimizer::new(Rule::AdamW(AdamW::default()), 0.1);
    for rule in [adam(0.1), adamw] {
        let exact = Optimizer { lazy: false, ..rule.clone() };
        assert_eq!(train(&exact, true), train(&rule, false));
        assert_ne!(train(&rule, true), train(&rule, false));
    }
}
