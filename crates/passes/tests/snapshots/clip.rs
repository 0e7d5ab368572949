use expect_test::expect;
use regatta_passes::{Clip, clip};

use crate::models::{added, differentiated, pairs, shared_table, two_layers};

fn clipped(how: Clip) -> String {
    let mut programs = two_layers();
    programs.main.block_mut().vars["w1"].param.clip = false;
    let (before, grads) = differentiated(&programs);
    let (after, grads) = clip(&before, &grads, how).unwrap();
    format!("{}---\n{}", added(&before, &after), pairs(&grads))
}

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
    let (after, _) = clip(&before, &grads, Clip::GlobalNorm(5.0)).unwrap();
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
          var global_norm_factor@CLIP: f32[1]
          var w0@GRAD@CLIP: f32[2, 3]
          var w1@GRAD@CLIP: f32[3, 1]
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
          Out: global_norm_factor@CLIP = global_norm_factor(X: [w0@GRAD, w1@GRAD]) {clip_norm: 5.0} @optimize
          Out: w0@GRAD@CLIP = scale_by(X: w0@GRAD, Factor: global_norm_factor@CLIP) @optimize
          Out: w1@GRAD@CLIP = scale_by(X: w1@GRAD, Factor: global_norm_factor@CLIP) @optimize
    "#]].assert_eq(&after.to_string());
}

#[test]
fn by_value_norm_and_global_norm_leave_noclip_parameters_alone() {
    expect![[r#"
        var w0@GRAD@CLIP: f32[2, 3]
        Out: w0@GRAD@CLIP = clip_by_value(X: w0@GRAD) {max: 1.0, min: -1.0} @optimize
        ---
        w0 -> w0@GRAD@CLIP
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&clipped(Clip::Value { min: -1.0, max: 1.0 }));
    expect![[r#"
        var w0@GRAD@CLIP: f32[2, 3]
        Out: w0@GRAD@CLIP = clip_by_norm(X: w0@GRAD) {max_norm: 2.0} @optimize
        ---
        w0 -> w0@GRAD@CLIP
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&clipped(Clip::Norm(2.0)));
    expect![[r#"
        var global_norm_factor@CLIP: f32[1]
        var w0@GRAD@CLIP: f32[2, 3]
        Out: global_norm_factor@CLIP = global_norm_factor(X: w0@GRAD) {clip_norm: 5.0} @optimize
        Out: w0@GRAD@CLIP = scale_by(X: w0@GRAD, Factor: global_norm_factor@CLIP) @optimize
        ---
        w0 -> w0@GRAD@CLIP
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&clipped(Clip::GlobalNorm(5.0)));
}

#[test]
fn nothing_is_added_when_no_parameter_is_clipped() {
    let mut programs = two_layers();
    for var in programs.main.block_mut().vars.values_mut() {
        var.param.clip = false;
    }
    let (before, grads) = differentiated(&programs);
    let (after, same) = clip(&before, &grads, Clip::GlobalNorm(1.0)).unwrap();
    assert_eq!((after, same), (before, grads));
}

#[test]
fn row_sparse_gradients_stay_row_sparse() {
    let (before, grads) = differentiated(&shared_table());
    let (after, _) = clip(&before, &grads, Clip::Norm(1.0)).unwrap();
    expect![[r#"
        var table@GRAD@CLIP: rows f32[100, 4]
        Out: table@GRAD@CLIP = clip_by_norm(X: table@GRAD) {max_norm: 1.0} @optimize
    "#]]
    .assert_eq(&added(&before, &after));
}

#[test]
fn bounds_that_make_no_sense_are_refused() {
    let (before, grads) = differentiated(&two_layers());
    let refusal = |how| clip(&before, &grads, how).unwrap_err().to_string();
    assert_eq!(
        refusal(Clip::Value { min: 1.0, max: -1.0 }),
        "op clip_by_value: attribute 'min' is larger than 'max'"
    );
    assert_eq!(refusal(Clip::Norm(0.0)), "op clip_by_norm: attribute 'max_norm' is 0, not above 0");
    assert_eq!(
        refusal(Clip::GlobalNorm(f64::NAN)),
        "op global_norm_factor: attribute 'clip_norm' is NaN, not above 0"
    );
}

#[test]
fn gradients_are_not_clipped_twice() {
    let (before, grads) = differentiated(&two_layers());
    let (once, _) = clip(&before, &grads, Clip::Norm(1.0)).unwrap();
    let error = clip(&once, &grads, Clip::Norm(1.0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "variable 'w0@GRAD@CLIP' is declared twice: as f32[2, 3] and as f32[2, 3]"
    );
}
