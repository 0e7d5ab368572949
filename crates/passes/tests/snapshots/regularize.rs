use expect_test::expect;
use regatta_ir::Regularizer;
use regatta_passes::{ParamGrad, regularize};

use crate::models::{added, differentiated, pairs, shared_table, two_layers};

#[test]
fn before_and_after() {
    let (before, grads) = differentiated(&two_layers());
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
    "#]].assert_eq(&before.to_string());
    let (after, _) = regularize(&before, &grads, Some(Regularizer::L2(0.01))).unwrap();
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
          var w0@GRAD@DECAY: f32[2, 3]
          var w1@GRAD@DECAY: f32[3, 1]
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
          Out: w0@GRAD@DECAY = l2_decay(X: w0@GRAD, Param: w0) {coeff: 0.01} @optimize
          Out: w1@GRAD@DECAY = l2_decay(X: w1@GRAD, Param: w1) {coeff: 0.01} @optimize
    "#]].assert_eq(&after.to_string());
}

#[test]
fn a_parameters_own_penalty_wins_over_the_default() {
    let mut programs = two_layers();
    programs.main.block_mut().vars["w0"].param.regularizer = Some(Regularizer::L1(0.5));
    let (before, grads) = differentiated(&programs);
    let (after, changed) = regularize(&before, &grads, Some(Regularizer::L2(0.01))).unwrap();
    expect![[r#"
        var w0@GRAD@DECAY: f32[2, 3]
        var w1@GRAD@DECAY: f32[3, 1]
        Out: w0@GRAD@DECAY = l1_decay(X: w0@GRAD, Param: w0) {coeff: 0.5} @optimize
        Out: w1@GRAD@DECAY = l2_decay(X: w1@GRAD, Param: w1) {coeff: 0.01} @optimize
    "#]]
    .assert_eq(&added(&before, &after));
    expect![[r#"
        w0 -> w0@GRAD@DECAY
        w1 -> w1@GRAD@DECAY
    "#]]
    .assert_eq(&pairs(&changed));

    let (after, changed) = regularize(&before, &grads, None).unwrap();
    expect![[r#"
        var w0@GRAD@DECAY: f32[2, 3]
        Out: w0@GRAD@DECAY = l1_decay(X: w0@GRAD, Param: w0) {coeff: 0.5} @optimize
    "#]]
    .assert_eq(&added(&before, &after));
    expect![[r#"
        w0 -> w0@GRAD@DECAY
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&pairs(&changed));
}

#[test]
fn a_penalty_of_zero_adds_nothing() {
    let mut programs = two_layers();
    programs.main.block_mut().vars["w0"].param.regularizer = Some(Regularizer::L2(0.0));
    let (before, grads) = differentiated(&programs);
    let (after, _) = regularize(&before, &grads, Some(Regularizer::L2(0.01))).unwrap();
    expect![[r#"
        var w1@GRAD@DECAY: f32[3, 1]
        Out: w1@GRAD@DECAY = l2_decay(X: w1@GRAD, Param: w1) {coeff: 0.01} @optimize
    "#]]
    .assert_eq(&added(&before, &after));
}

#[test]
fn row_sparse_gradients_stay_row_sparse() {
    let (before, grads) = differentiated(&shared_table());
    let (after, _) = regularize(&before, &grads, Some(Regularizer::L1(0.5))).unwrap();
    expect![[r#"
        var table@GRAD@DECAY: rows f32[100, 4]
        Out: table@GRAD@DECAY = l1_decay(X: table@GRAD, Param: table) {coeff: 0.5} @optimize
    "#]]
    .assert_eq(&added(&before, &after));
}

#[test]
fn bad_factors_and_strangers_are_refused() {
    let (before, grads) = differentiated(&two_layers());
    let error = regularize(&before, &grads, Some(Regularizer::L2(f64::NAN))).unwrap_err();
    assert_eq!(error.to_string(), "regularize: the factor for 'w0' is NaN");
    let stranger = [ParamGrad { param: "w9".into(), grad: "w0@GRAD".into() }];
    let error = regularize(&before, &stranger, Some(Regularizer::L2(0.1))).unwrap_err();
    assert_eq!(error.to_string(), "op regularize: variable 'w9' is not declared in this program");
    let mixed_up = [ParamGrad { param: "w1".into(), grad: "w0@GRAD".into() }];
    let error = regularize(&before, &mixed_up, Some(Regularizer::L2(0.1))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "op l2_decay: X 'w0@GRAD' should be the gradient of f32[3, 1], but is f32[2, 3]"
    );
}
