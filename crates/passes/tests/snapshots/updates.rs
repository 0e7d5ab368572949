use expect_test::expect;
use regatta_ir::Regularizer;
use regatta_optim::{Adam, Rule, Schedule, Sgd};
use regatta_passes::{Backward, Clip, Optimizer, insert_updates, minimize};

use crate::models::{added, differentiated, fit_a_line, pairs, shared_table, two_layers};

const LOSS: &str = "mean_0.tmp_0";

#[test]
fn before_and_after() {
    let mut programs = two_layers();
    let (main, grads) = differentiated(&programs);
    programs.main = main;
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
    "#]].assert_eq(&programs.main.to_string());
    let sgd = Rule::Sgd(Sgd {});
    let (after, ops) = insert_updates(&programs, &grads, &sgd, 0.1, &Schedule::Constant).unwrap();
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
    "#]].assert_eq(&after.main.to_string());
    assert_eq!(ops.len(), 2);
}

#[test]
fn adam_keeps_its_states_in_both_programs() {
    let programs = fit_a_line();
    let adam = Optimizer::new(Rule::Adam(Adam::default()), 0.001);
    let made = minimize(&programs, LOSS, &adam, &Backward::default()).unwrap();
    let (differentiated, _) = differentiated(&programs);
    expect![[r#"
        persist learning_rate_0: f32[1]
        persist fc_0.w_0_moment1_0: f32[2, 1]
        persist fc_0.w_0_moment2_0: f32[2, 1]
        persist fc_0.w_0_beta1_pow_0: f32[1]
        persist fc_0.w_0_beta2_pow_0: f32[1]
        persist fc_0.b_0_moment1_0: f32[1]
        persist fc_0.b_0_moment2_0: f32[1]
        persist fc_0.b_0_beta1_pow_0: f32[1]
        persist fc_0.b_0_beta2_pow_0: f32[1]
        ParamOut: fc_0.w_0, StatesOut: [fc_0.w_0_moment1_0, fc_0.w_0_moment2_0, fc_0.w_0_beta1_pow_0, fc_0.w_0_beta2_pow_0] = adam(Param: fc_0.w_0, Grad: fc_0.w_0@GRAD, LearningRate: learning_rate_0, States: [fc_0.w_0_moment1_0, fc_0.w_0_moment2_0, fc_0.w_0_beta1_pow_0, fc_0.w_0_beta2_pow_0]) {beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lazy: true, lr_scale: 1.0} @optimize
        ParamOut: fc_0.b_0, StatesOut: [fc_0.b_0_moment1_0, fc_0.b_0_moment2_0, fc_0.b_0_beta1_pow_0, fc_0.b_0_beta2_pow_0] = adam(Param: fc_0.b_0, Grad: fc_0.b_0@GRAD, LearningRate: learning_rate_0, States: [fc_0.b_0_moment1_0, fc_0.b_0_moment2_0, fc_0.b_0_beta1_pow_0, fc_0.b_0_beta2_pow_0]) {beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lazy: true, lr_scale: 1.0} @optimize
    "#]].assert_eq(&added(&differentiated, &made.programs.main));
    expect![[r#"
        persist learning_rate_0: f32[1]
        persist fc_0.w_0_moment1_0: f32[2, 1]
        persist fc_0.w_0_moment2_0: f32[2, 1]
        persist fc_0.w_0_beta1_pow_0: f32[1]
        persist fc_0.w_0_beta2_pow_0: f32[1]
        persist fc_0.b_0_moment1_0: f32[1]
        persist fc_0.b_0_moment2_0: f32[1]
        persist fc_0.b_0_beta1_pow_0: f32[1]
        persist fc_0.b_0_beta2_pow_0: f32[1]
        Out: learning_rate_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.001}
        Out: fc_0.w_0_moment1_0 = fill_constant() {dtype: "f32", shape: [2, 1], value: 0.0}
        Out: fc_0.w_0_moment2_0 = fill_constant() {dtype: "f32", shape: [2, 1], value: 0.0}
        Out: fc_0.w_0_beta1_pow_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.8999999761581421}
        Out: fc_0.w_0_beta2_pow_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.9990000128746033}
        Out: fc_0.b_0_moment1_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.0}
        Out: fc_0.b_0_moment2_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.0}
        Out: fc_0.b_0_beta1_pow_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.8999999761581421}
        Out: fc_0.b_0_beta2_pow_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.9990000128746033}
    "#]].assert_eq(&added(&programs.startup, &made.programs.startup));
}

#[test]
fn a_schedule_writes_the_learning_rate_before_the_updates() {
    let mut programs = two_layers();
    programs.main.block_mut().vars["w0"].param.lr_scale = 0.5;
    let schedule = Schedule::Exponential { decay_steps: 10, decay_rate: 0.5, staircase: true };
    let optimizer = Optimizer { schedule, ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1) };
    let made = minimize(&programs, LOSS, &optimizer, &Backward::default()).unwrap();
    let (differentiated, _) = differentiated(&programs);
    expect![[r#"
        persist learning_rate_0: f32[1]
        persist @LR_STEP@: i64[1]
        StepOut: @LR_STEP@, LearningRateOut: learning_rate_0 = lr_schedule(Step: @LR_STEP@, LearningRate: learning_rate_0) {base: 0.1, schedule: "{\"schedule\":\"exponential\",\"decay_steps\":10,\"decay_rate\":0.5,\"staircase\":true}"} @optimize
        ParamOut: w0 = sgd(Param: w0, Grad: w0@GRAD, LearningRate: learning_rate_0) {lr_scale: 0.5} @optimize
        ParamOut: w1 = sgd(Param: w1, Grad: w1@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&added(&differentiated, &made.programs.main));
    expect![[r#"
        persist learning_rate_0: f32[1]
        persist @LR_STEP@: i64[1]
        Out: learning_rate_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.10000000149011612}
        Out: @LR_STEP@ = fill_constant() {dtype: "i64", shape: [1], value: 0.0}
    "#]].assert_eq(&added(&programs.startup, &made.programs.startup));
    let kinds: Vec<&str> = made.optimize_ops.iter().map(|op| op.kind.as_str()).collect();
    assert_eq!(kinds, ["lr_schedule", "sgd", "sgd"]);
}

#[test]
fn minimize_clips_then_penalises_then_updates() {
    let programs = two_layers();
    let optimizer = Optimizer {
        regularizer: Some(Regularizer::L2(0.01)),
        clip: Some(Clip::GlobalNorm(5.0)),
        ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1)
    };
    let made = minimize(&programs, LOSS, &optimizer, &Backward::default()).unwrap();
    let (differentiated, _) = differentiated(&programs);
    expect![[r#"
        var global_norm_factor@CLIP: f32[1]
        var w0@GRAD@CLIP: f32[2, 3]
        var w1@GRAD@CLIP: f32[3, 1]
        var w0@GRAD@CLIP@DECAY: f32[2, 3]
        var w1@GRAD@CLIP@DECAY: f32[3, 1]
        persist learning_rate_0: f32[1]
        Out: global_norm_factor@CLIP = global_norm_factor(X: [w0@GRAD, w1@GRAD]) {clip_norm: 5.0} @optimize
        Out: w0@GRAD@CLIP = scale_by(X: w0@GRAD, Factor: global_norm_factor@CLIP) @optimize
        Out: w1@GRAD@CLIP = scale_by(X: w1@GRAD, Factor: global_norm_factor@CLIP) @optimize
        Out: w0@GRAD@CLIP@DECAY = l2_decay(X: w0@GRAD@CLIP, Param: w0) {coeff: 0.01} @optimize
        Out: w1@GRAD@CLIP@DECAY = l2_decay(X: w1@GRAD@CLIP, Param: w1) {coeff: 0.01} @optimize
        ParamOut: w0 = sgd(Param: w0, Grad: w0@GRAD@CLIP@DECAY, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
        ParamOut: w1 = sgd(Param: w1, Grad: w1@GRAD@CLIP@DECAY, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&added(&differentiated, &made.programs.main));
    expect![[r#"
        w0 -> w0@GRAD@CLIP@DECAY
        w1 -> w1@GRAD@CLIP@DECAY
    "#]]
    .assert_eq(&pairs(&made.params_grads));
    let kinds: Vec<&str> = made.optimize_ops.iter().map(|op| op.kind.as_str()).collect();
    assert_eq!(kinds, ["sgd", "sgd"]);
}

#[test]
fn tables_are_updated_from_their_rows() {
    let programs = shared_table();
    let optimizer = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    let made = minimize(&programs, LOSS, &optimizer, &Backward::default()).unwrap();
    let update = made.optimize_ops.last().unwrap();
    assert_eq!(
        update.to_string(),
        "ParamOut: table = sgd(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize"
    );
}

#[test]
fn impossible_rules_and_schedules_are_refused() {
    let refusal = |optimizer: Optimizer| {
        minimize(&two_layers(), LOSS, &optimizer, &Backward::default()).unwrap_err().to_string()
    };
    let adam = Adam { beta1: 1.5, ..Adam::default() };
    assert_eq!(
        refusal(Optimizer::new(Rule::Adam(adam), 0.1)),
        "insert_updates: adam: `beta1` is 1.5, expected 0 <= value < 1"
    );
    let schedule = Schedule::Exponential { decay_steps: 0, decay_rate: 0.5, staircase: false };
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    assert_eq!(
        refusal(Optimizer { schedule, ..sgd.clone() }),
        "insert_updates: exponential: `decay_steps` is 0, expected at least 1"
    );
    assert_eq!(
        refusal(Optimizer { learning_rate: f64::NAN, ..sgd }),
        "insert_updates: constant: `learning_rate` is NaN, expected a finite number >= 0"
    );
}
