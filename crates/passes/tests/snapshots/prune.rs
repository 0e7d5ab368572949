use expect_test::expect;
use regatta_optim::{Rule, Sgd};
use regatta_passes::{
    Backward, MemoryReuse, Optimizer, clone_for_test, memory_reuse, minimize, prune,
};

use crate::models::{fit_a_line, parse};

fn training_program() -> regatta_ir::Program {
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    minimize(&fit_a_line(), "mean_0.tmp_0", &sgd, &Backward::default()).unwrap().programs.main
}

#[test]
fn clone_for_test_before_and_after() {
    let before = training_program();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param fc_0.w_0: f32[2, 1]
          param fc_0.b_0: f32[1]
          var fc_0.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_0.tmp_0@GRAD: f32[-1, 1]
          var fc_0.w_0@GRAD: f32[2, 1]
          var fc_0.b_0@GRAD: f32[1]
          persist learning_rate_0: f32[1]
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_0.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_0.tmp_0@GRAD = square_error_cost_grad(X: fc_0.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
          ParamOut: fc_0.w_0 = sgd(Param: fc_0.w_0, Grad: fc_0.w_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: fc_0.b_0 = sgd(Param: fc_0.b_0, Grad: fc_0.b_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&before.to_string());
    let after = clone_for_test(&before).unwrap();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param fc_0.w_0: f32[2, 1]
          param fc_0.b_0: f32[1]
          var fc_0.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_0.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
    "#]]
    .assert_eq(&after.to_string());
    assert_eq!(after, fit_a_line().main);
}

#[test]
fn prune_before_and_after() {
    let before = fit_a_line().main;
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param fc_0.w_0: f32[2, 1]
          param fc_0.b_0: f32[1]
          var fc_0.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_0.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
    "#]]
    .assert_eq(&before.to_string());
    let after = prune(&before, &["fc_0.tmp_0"]).unwrap();
    expect![[r#"
        program infer
        block 0
          data x: f32[-1, 2]
          param fc_0.w_0: f32[2, 1]
          param fc_0.b_0: f32[1]
          var fc_0.tmp_0: f32[-1, 1]
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
    "#]]
    .assert_eq(&after.to_string());
    assert_eq!(prune(&training_program(), &["fc_0.tmp_0"]).unwrap(), after);
}

#[test]
fn inputs_stay_for_test_and_go_when_pruned() {
    let before = parse(
        "program main
block 0
  data x: f32[-1, 2]
  data unused: f32[-1, 1]
  var y: f32[-1, 2]
  Out: y = relu(X: x)",
    );
    assert!(clone_for_test(&before).unwrap().block().vars.contains_key("unused"));
    assert!(!prune(&before, &["y"]).unwrap().block().vars.contains_key("unused"));
}

#[test]
fn layers_that_train_differently_are_switched_to_inference() {
    let mut b = regatta_ops::builder(1);
    let x = b.data("x", regatta_tensor::DType::F32, &[-1, 2]).unwrap();
    let h = b.batch_norm(&x, 0.9, 1e-5).unwrap();
    b.dropout(&h, 0.5, 3).unwrap();
    let before = b.finish().main;
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          param batch_norm_0.w_0: f32[2]
          param batch_norm_0.b_0: f32[2]
          persist batch_norm_0.mean: f32[2]
          persist batch_norm_0.variance: f32[2]
          var batch_norm_0.tmp_0: f32[-1, 2]
          var batch_norm_0.tmp_1: f32[2]
          var batch_norm_0.tmp_2: f32[2]
          var dropout_0.tmp_0: f32[-1, 2]
          var dropout_0.tmp_1: f32[-1, 2]
          Y: batch_norm_0.tmp_0, MeanOut: batch_norm_0.mean, VarianceOut: batch_norm_0.variance, SavedMean: batch_norm_0.tmp_1, SavedInvStd: batch_norm_0.tmp_2 = batch_norm(X: x, Scale: batch_norm_0.w_0, Bias: batch_norm_0.b_0, Mean: batch_norm_0.mean, Variance: batch_norm_0.variance) {data_layout: "NHWC", epsilon: 1e-5, is_test: false, momentum: 0.9, use_global_stats: false}
          Out: dropout_0.tmp_0, Mask: dropout_0.tmp_1 = dropout(X: batch_norm_0.tmp_0) {is_test: false, prob: 0.5, seed: 3}
    "#]].assert_eq(&before.to_string());
    let after = clone_for_test(&before).unwrap();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          param batch_norm_0.w_0: f32[2]
          param batch_norm_0.b_0: f32[2]
          persist batch_norm_0.mean: f32[2]
          persist batch_norm_0.variance: f32[2]
          var batch_norm_0.tmp_0: f32[-1, 2]
          var dropout_0.tmp_0: f32[-1, 2]
          var dropout_0.tmp_1: f32[-1, 2]
          Y: batch_norm_0.tmp_0 = batch_norm(X: x, Scale: batch_norm_0.w_0, Bias: batch_norm_0.b_0, Mean: batch_norm_0.mean, Variance: batch_norm_0.variance) {data_layout: "NHWC", epsilon: 1e-5, is_test: true, momentum: 0.9, use_global_stats: false}
          Out: dropout_0.tmp_0, Mask: dropout_0.tmp_1 = dropout(X: batch_norm_0.tmp_0) {is_test: true, prob: 0.5, seed: 3}
    "#]].assert_eq(&after.to_string());
}

#[test]
fn shared_memory_is_given_up() {
    let (shared, _) = memory_reuse(&training_program(), &MemoryReuse::default()).unwrap();
    assert!(shared.to_string().contains("buffer="));
    assert_eq!(clone_for_test(&shared).unwrap(), fit_a_line().main);
}

#[test]
fn a_value_that_is_overwritten_before_the_target_is_read_goes() {
    let before = parse(
        "program main
block 0
  data x: f32[-1, 2]
  persist seen: f32[-1, 2]
  var y: f32[-1, 2]
  var z: f32[-1, 2]
  Out: y = relu(X: x)
  Out: y = tanh(X: x)
  Out: z = scale(X: y) {scale: 2.0}
  Out: y = sigmoid(X: x)
  Out: seen = assign(X: y)",
    );
    expect![[r#"
        program infer
        block 0
          data x: f32[-1, 2]
          var y: f32[-1, 2]
          var z: f32[-1, 2]
          Out: y = tanh(X: x)
          Out: z = scale(X: y) {bias: 0.0, scale: 2.0}
    "#]]
    .assert_eq(&prune(&before, &["z"]).unwrap().to_string());
}

#[test]
fn targets_must_be_made_by_the_forward_part() {
    let refusal = |target| prune(&training_program(), &[target]).unwrap_err().to_string();
    assert_eq!(refusal("predict"), "op prune: variable 'predict' is not declared in this program");
    assert_eq!(
        refusal("fc_0.w_0@GRAD"),
        "prune: nothing in the forward part makes 'fc_0.w_0@GRAD'"
    );
    let parameter = prune(&training_program(), &["fc_0.w_0"]).unwrap();
    expect![[r#"
        program infer
        block 0
          param fc_0.w_0: f32[2, 1]
    "#]]
    .assert_eq(&parameter.to_string());
}
