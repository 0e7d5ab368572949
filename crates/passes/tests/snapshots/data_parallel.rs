use expect_test::expect;
use regatta_ir::Program;
use regatta_optim::{Rule, Sgd};
use regatta_passes::{
    Backward, Clip, FuseAllReduce, Optimizer, data_parallel, fuse_all_reduce, minimize, split_batch,
};

use crate::models::{added, shared_table, two_layers};

pub(crate) const LOSS: &str = "mean_0.tmp_0";

/// Two layers with plain gradient descent.
fn trained(clip: Option<Clip>) -> Program {
    let optimizer = Optimizer { clip, ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1) };
    minimize(&two_layers(), LOSS, &optimizer, &Backward::default()).unwrap().programs.main
}

#[test]
fn before_and_after() {
    let before = trained(None);
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param w0: f32[2, 3]
          var fc_0.tmp_0: f32[-1, 3]
          var relu_0.tmp_0: f32[-1, 3]
          param w1: f32[3, 1]
          var fc_1.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_1.tmp_0@GRAD: f32[-1, 1]
          var relu_0.tmp_0@GRAD: f32[-1, 3]
          var w1@GRAD: f32[3, 1]
          var fc_0.tmp_0@GRAD: f32[-1, 3]
          var w0@GRAD: f32[2, 3]
          persist learning_rate_0: f32[1]
          Out: fc_0.tmp_0 = fc(X: x, W: w0) {act: ""}
          Out: relu_0.tmp_0 = relu(X: fc_0.tmp_0)
          Out: fc_1.tmp_0 = fc(X: relu_0.tmp_0, W: w1) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dX: relu_0.tmp_0@GRAD, dW: w1@GRAD = fc_grad(X: relu_0.tmp_0, W: w1, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
          dX: fc_0.tmp_0@GRAD = relu_grad(Out: relu_0.tmp_0, dOut: relu_0.tmp_0@GRAD) @backward
          dW: w0@GRAD = fc_grad(X: x, W: w0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
          ParamOut: w0 = sgd(Param: w0, Grad: w0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: w1 = sgd(Param: w1, Grad: w1@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&before.to_string());
    let after = data_parallel(&before).unwrap();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param w0: f32[2, 3]
          var fc_0.tmp_0: f32[-1, 3]
          var relu_0.tmp_0: f32[-1, 3]
          param w1: f32[3, 1]
          var fc_1.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_1.tmp_0@GRAD: f32[-1, 1]
          var relu_0.tmp_0@GRAD: f32[-1, 3]
          var w1@GRAD: f32[3, 1]
          var fc_0.tmp_0@GRAD: f32[-1, 3]
          var w0@GRAD: f32[2, 3]
          persist learning_rate_0: f32[1]
          var mean_0.tmp_0@GRAD@WHOLE: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var w0@GRAD@COMM: f32[1]
          var w1@GRAD@COMM: f32[1]
          Out: fc_0.tmp_0 = fc(X: x, W: w0) {act: ""}
          Out: relu_0.tmp_0 = relu(X: fc_0.tmp_0)
          Out: fc_1.tmp_0 = fc(X: relu_0.tmp_0, W: w1) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD@WHOLE = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          Out: mean_0.tmp_0@GRAD = scale_by_share(X: mean_0.tmp_0@GRAD@WHOLE) @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dX: relu_0.tmp_0@GRAD, dW: w1@GRAD = fc_grad(X: relu_0.tmp_0, W: w1, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
          Handle: w1@GRAD@COMM = all_reduce_start(X: w1@GRAD) {name: "grads_0", node_ranks: 0, wire: "f32"} @optimize
          dX: fc_0.tmp_0@GRAD = relu_grad(Out: relu_0.tmp_0, dOut: relu_0.tmp_0@GRAD) @backward
          dW: w0@GRAD = fc_grad(X: x, W: w0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
          Handle: w0@GRAD@COMM = all_reduce_start(X: w0@GRAD) {name: "grads_1", node_ranks: 0, wire: "f32"} @optimize
          XOut: w0@GRAD = all_reduce_wait(Handle: w0@GRAD@COMM, X: w0@GRAD) {name: "grads_1"} @optimize
          ParamOut: w0 = sgd(Param: w0, Grad: w0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          XOut: w1@GRAD = all_reduce_wait(Handle: w1@GRAD@COMM, X: w1@GRAD) {name: "grads_0"} @optimize
          ParamOut: w1 = sgd(Param: w1, Grad: w1@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&after.to_string());
}

#[test]
fn fused_into_buckets() {
    let before = data_parallel(&trained(None)).unwrap();
    let after = fuse_all_reduce(&before, &FuseAllReduce::default()).unwrap();
    expect![[r#"
        var grads_0@BUCKET: f32[1]
        Handle: grads_0@BUCKET = all_reduce_start(X: [w1@GRAD, w0@GRAD]) {name: "grads_0", node_ranks: 0, wire: "f32"} @optimize
        XOut: [w1@GRAD, w0@GRAD] = all_reduce_wait(Handle: grads_0@BUCKET, X: [w1@GRAD, w0@GRAD]) {name: "grads_0"} @optimize
    "#]].assert_eq(&added(&before, &after));
    // The last bucket takes w0 only (24 bytes), the rest has another.
    let mb = |bytes: f64| bytes / f64::from(1 << 20);
    let small = FuseAllReduce { bucket_mb: mb(100.0), last_bucket_mb: mb(24.0), max_count: None };
    assert_eq!(fuse_all_reduce(&before, &small).unwrap(), before);
    let one = FuseAllReduce { max_count: Some(1), ..FuseAllReduce::default() };
    assert_eq!(fuse_all_reduce(&before, &one).unwrap(), before);
}

#[test]
fn clipping_sees_the_sum() {
    let before = trained(Some(Clip::GlobalNorm(1.0)));
    let after = data_parallel(&before).unwrap();
    expect![[r#"
        var mean_0.tmp_0@GRAD@WHOLE: f32[1]
        var w0@GRAD@COMM: f32[1]
        var w1@GRAD@COMM: f32[1]
        Out: mean_0.tmp_0@GRAD@WHOLE = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        Out: mean_0.tmp_0@GRAD = scale_by_share(X: mean_0.tmp_0@GRAD@WHOLE) @backward
        Handle: w1@GRAD@COMM = all_reduce_start(X: w1@GRAD) {name: "grads_0", node_ranks: 0, wire: "f32"} @optimize
        Handle: w0@GRAD@COMM = all_reduce_start(X: w0@GRAD) {name: "grads_1", node_ranks: 0, wire: "f32"} @optimize
        XOut: w0@GRAD = all_reduce_wait(Handle: w0@GRAD@COMM, X: w0@GRAD) {name: "grads_1"} @optimize
        XOut: w1@GRAD = all_reduce_wait(Handle: w1@GRAD@COMM, X: w1@GRAD) {name: "grads_0"} @optimize
    "#]].assert_eq(&added(&before, &after));
    let kinds: Vec<&str> = after.block().ops.iter().map(|op| op.kind.as_str()).collect();
    let at = |kind: &str| kinds.iter().rposition(|k| *k == kind).unwrap();
    assert!(at("all_reduce_wait") < at("global_norm_factor"));
}

#[test]
fn tables_are_gathered_by_row() {
    let optimizer = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    let before =
        minimize(&shared_table(), LOSS, &optimizer, &Backward::default()).unwrap().programs.main;
    let after = data_parallel(&before).unwrap();
    expect![[r#"
        var mean_0.tmp_0@GRAD@WHOLE: f32[1]
        var table@GRAD@COMM: f32[1]
        Out: mean_0.tmp_0@GRAD@WHOLE = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        Out: mean_0.tmp_0@GRAD = scale_by_share(X: mean_0.tmp_0@GRAD@WHOLE) @backward
        Handle: table@GRAD@COMM = gather_rows_start(X: table@GRAD) {name: "grads_0"} @optimize
        XOut: table@GRAD = gather_rows_wait(Handle: table@GRAD@COMM, X: table@GRAD) {name: "grads_0"} @optimize
    "#]].assert_eq(&added(&before, &after));
}

/// With several threads, all of them finish their part before gradients are exchanged.
#[test]
fn exchanges_are_not_split_over_threads() {
    let program = data_parallel(&trained(None)).unwrap();
    let (in_part, _) = split_batch(&program).unwrap();
    for (op, in_part) in program.block().ops.iter().zip(in_part) {
        let exchange = op.kind.ends_with("_start") || op.kind.ends_with("_wait");
        assert!(!exchange || !in_part, "{}", op.kind);
    }
}

#[test]
fn refusals() {
    let refused = |program: &Program| data_parallel(program).unwrap_err().to_string();
    let twice = data_parallel(&trained(None)).unwrap();
    expect!["data_parallel: the program exchanges its gradients already"]
        .assert_eq(&refused(&twice));
    expect!["data_parallel: the program updates nothing; call minimize first"]
        .assert_eq(&refused(&two_layers().main));
}
