use expect_test::expect;
use regatta_ir::{Act, Embedding, ParamAttr, Programs};
use regatta_ops::builder;
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, Optimizer, fuse, minimize};
use regatta_tensor::DType;

/// Vectors beside dense features, then two layers; the loss is `mean_0.tmp_0`.
fn click_model() -> Programs {
    let mut b = builder(1);
    let ids = b.data("ids", DType::U64, &[-1, 3]).unwrap();
    let dense = b.data("dense", DType::F32, &[-1, 2]).unwrap();
    let y = b.data("y", DType::F32, &[-1, 1]).unwrap();
    let table = Embedding { table: ParamAttr::weight().named("table"), ..Embedding::new(100, 4) };
    let vectors = b.embedding(&[&ids], &table).unwrap();
    let flat = b.reshape(&vectors, &[-1, 12]).unwrap();
    let joined = b.concat(&[&flat, &dense], 1).unwrap();
    let hidden = b.fc(&joined, 5, Act::Relu).unwrap();
    let predicted = b.fc(&hidden, 1, Act::None).unwrap();
    let cost = b.square_error_cost(&predicted, &y).unwrap();
    b.mean(&cost).unwrap();
    b.finish()
}

fn training_program() -> regatta_ir::Program {
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    minimize(&click_model(), "mean_0.tmp_0", &sgd, &Backward::default()).unwrap().programs.main
}

#[test]
fn a_click_model_before_and_after() {
    let before = training_program();
    expect![[r#"
        program main
        block 0
          data ids: u64[-1, 3]
          data dense: f32[-1, 2]
          data y: f32[-1, 1]
          param table: f32[100, 4]
          var embedding_0.tmp_0: f32[-1, 3, 4]
          var reshape_0.tmp_0: f32[-1, 12]
          var concat_0.tmp_0: f32[-1, 14]
          param fc_0.w_0: f32[14, 5]
          param fc_0.b_0: f32[5]
          var fc_0.tmp_0: f32[-1, 5]
          param fc_1.w_0: f32[5, 1]
          param fc_1.b_0: f32[1]
          var fc_1.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_1.tmp_0@GRAD: f32[-1, 1]
          var fc_0.tmp_0@GRAD: f32[-1, 5]
          var fc_1.w_0@GRAD: f32[5, 1]
          var fc_1.b_0@GRAD: f32[1]
          var concat_0.tmp_0@GRAD: f32[-1, 14]
          var fc_0.w_0@GRAD: f32[14, 5]
          var fc_0.b_0@GRAD: f32[5]
          var reshape_0.tmp_0@GRAD: f32[-1, 12]
          var embedding_0.tmp_0@GRAD: f32[-1, 3, 4]
          var table@GRAD: rows f32[100, 4]
          persist learning_rate_0: f32[1]
          Out: embedding_0.tmp_0 = embedding(W: table, Ids: ids) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: reshape_0.tmp_0 = reshape(X: embedding_0.tmp_0) {shape: [-1, 12]}
          Out: concat_0.tmp_0 = concat(X: [reshape_0.tmp_0, dense]) {axis: 1}
          Out: fc_0.tmp_0 = fc(X: concat_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: "relu"}
          Out: fc_1.tmp_0 = fc(X: fc_0.tmp_0, W: fc_1.w_0, Bias: fc_1.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dX: fc_0.tmp_0@GRAD, dW: fc_1.w_0@GRAD, dBias: fc_1.b_0@GRAD = fc_grad(X: fc_0.tmp_0, W: fc_1.w_0, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
          dX: concat_0.tmp_0@GRAD, dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: concat_0.tmp_0, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: "relu"} @backward
          Out: reshape_0.tmp_0@GRAD = slice(X: concat_0.tmp_0@GRAD) {axis: 1, end: 12, start: 0} @backward
          Out: embedding_0.tmp_0@GRAD = reshape(X: reshape_0.tmp_0@GRAD) {shape: [-1, 3, 4]} @backward
          dW: table@GRAD = embedding_grad(W: table, dOut: embedding_0.tmp_0@GRAD, Ids: ids) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"} @backward
          ParamOut: table = sgd(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_0.w_0 = sgd(Param: fc_0.w_0, Grad: fc_0.w_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_0.b_0 = sgd(Param: fc_0.b_0, Grad: fc_0.b_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_1.w_0 = sgd(Param: fc_1.w_0, Grad: fc_1.w_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_1.b_0 = sgd(Param: fc_1.b_0, Grad: fc_1.b_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&before.to_string());
    let after = fuse(&before, &[]).unwrap();
    expect![[r#"
        program main
        block 0
          data ids: u64[-1, 3]
          data dense: f32[-1, 2]
          data y: f32[-1, 1]
          param table: f32[100, 4]
          var concat_0.tmp_0: f32[-1, 14]
          param fc_0.w_0: f32[14, 5]
          param fc_0.b_0: f32[5]
          var fc_0.tmp_0: f32[-1, 5]
          param fc_1.w_0: f32[5, 1]
          param fc_1.b_0: f32[1]
          var fc_1.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_1.tmp_0@GRAD: f32[-1, 1]
          var fc_0.tmp_0@GRAD: f32[-1, 5]
          var fc_1.w_0@GRAD: f32[5, 1]
          var fc_1.b_0@GRAD: f32[1]
          var concat_0.tmp_0@GRAD: f32[-1, 14]
          var fc_0.w_0@GRAD: f32[14, 5]
          var fc_0.b_0@GRAD: f32[5]
          var table@GRAD: rows f32[100, 4]
          persist learning_rate_0: f32[1]
          Out: concat_0.tmp_0 = embedding_row(W: table, Ids: ids, Beside: dense) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: fc_0.tmp_0 = fc(X: concat_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: "relu"}
          Out: fc_1.tmp_0 = fc(X: fc_0.tmp_0, W: fc_1.w_0, Bias: fc_1.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dX: fc_0.tmp_0@GRAD, dW: fc_1.w_0@GRAD, dBias: fc_1.b_0@GRAD = fc_grad_through_relu(X: fc_0.tmp_0, W: fc_1.w_0, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
          dX: concat_0.tmp_0@GRAD, dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: concat_0.tmp_0, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
          dW: table@GRAD = embedding_row_grad(W: table, dOut: concat_0.tmp_0@GRAD, Ids: ids) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"} @backward
          ParamOut: table = sgd(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_0.w_0 = sgd(Param: fc_0.w_0, Grad: fc_0.w_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_0.b_0 = sgd(Param: fc_0.b_0, Grad: fc_0.b_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_1.w_0 = sgd(Param: fc_1.w_0, Grad: fc_1.w_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_1.b_0 = sgd(Param: fc_1.b_0, Grad: fc_1.b_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&after.to_string());
    assert_eq!(fuse(&after, &[]).unwrap(), after);
}

#[test]
fn what_is_wanted_is_still_made() {
    let before = training_program();
    for kept in before.block().vars.keys() {
        let after = fuse(&before, &[kept]).unwrap();
        assert!(after.block().vars.contains_key(kept), "{kept}");
    }
    let all: Vec<&str> = before.block().vars.keys().map(String::as_str).collect();
    assert_eq!(fuse(&before, &all).unwrap(), before);
}
