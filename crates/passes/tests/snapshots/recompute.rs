use expect_test::expect;
use regatta_ir::{Act, Fc, Program, Programs};
use regatta_ops::builder;
use regatta_passes::{Backward, RecomputeConfig, backward, memory_reuse, recompute, split_batch};

use crate::models::{added, differentiated, fit_a_line, inputs, parse, squared_loss, two_layers};

fn named(names: &[&str]) -> RecomputeConfig {
    let checkpoints = names.iter().map(|n| n.to_string()).collect();
    RecomputeConfig { checkpoints, ..RecomputeConfig::default() }
}

/// Layers of one width without biases.
fn tower(layers: usize) -> Programs {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 4);
    let mut h = x;
    for _ in 0..layers {
        h = b.fc_with(&h, &Fc { bias: None, act: Act::Relu, ..Fc::new(4) }).unwrap();
    }
    let out = b.fc(&h, 1, Act::None).unwrap();
    squared_loss(&mut b, &out, &y);
    b.finish()
}

fn refusal(program: &Program, config: &RecomputeConfig) -> String {
    recompute(program, config).unwrap_err().to_string()
}

#[test]
fn before_and_after() {
    let (before, _) = differentiated(&tower(3));
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 4]
          data y: f32[-1, 1]
          param fc_0.w_0: f32[4, 4]
          var fc_0.tmp_0: f32[-1, 4]
          param fc_1.w_0: f32[4, 4]
          var fc_1.tmp_0: f32[-1, 4]
          param fc_2.w_0: f32[4, 4]
          var fc_2.tmp_0: f32[-1, 4]
          param fc_3.w_0: f32[4, 1]
          param fc_3.b_0: f32[1]
          var fc_3.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_3.tmp_0@GRAD: f32[-1, 1]
          var fc_2.tmp_0@GRAD: f32[-1, 4]
          var fc_3.w_0@GRAD: f32[4, 1]
          var fc_3.b_0@GRAD: f32[1]
          var fc_1.tmp_0@GRAD: f32[-1, 4]
          var fc_2.w_0@GRAD: f32[4, 4]
          var fc_0.tmp_0@GRAD: f32[-1, 4]
          var fc_1.w_0@GRAD: f32[4, 4]
          var fc_0.w_0@GRAD: f32[4, 4]
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0) {act: "relu"}
          Out: fc_1.tmp_0 = fc(X: fc_0.tmp_0, W: fc_1.w_0) {act: "relu"}
          Out: fc_2.tmp_0 = fc(X: fc_1.tmp_0, W: fc_2.w_0) {act: "relu"}
          Out: fc_3.tmp_0 = fc(X: fc_2.tmp_0, W: fc_3.w_0, Bias: fc_3.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_3.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_3.tmp_0@GRAD = square_error_cost_grad(X: fc_3.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dX: fc_2.tmp_0@GRAD, dW: fc_3.w_0@GRAD, dBias: fc_3.b_0@GRAD = fc_grad(X: fc_2.tmp_0, W: fc_3.w_0, Out: fc_3.tmp_0, dOut: fc_3.tmp_0@GRAD) {act: ""} @backward
          dX: fc_1.tmp_0@GRAD, dW: fc_2.w_0@GRAD = fc_grad(X: fc_1.tmp_0, W: fc_2.w_0, Out: fc_2.tmp_0, dOut: fc_2.tmp_0@GRAD) {act: "relu"} @backward
          dX: fc_0.tmp_0@GRAD, dW: fc_1.w_0@GRAD = fc_grad(X: fc_0.tmp_0, W: fc_1.w_0, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: "relu"} @backward
          dW: fc_0.w_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: "relu"} @backward
    "#]].assert_eq(&before.to_string());
    let after = recompute(&before, &named(&["fc_1.tmp_0"])).unwrap();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 4]
          data y: f32[-1, 1]
          param fc_0.w_0: f32[4, 4]
          var fc_0.tmp_0: f32[-1, 4]
          param fc_1.w_0: f32[4, 4]
          var fc_1.tmp_0: f32[-1, 4]
          param fc_2.w_0: f32[4, 4]
          var fc_2.tmp_0: f32[-1, 4]
          param fc_3.w_0: f32[4, 1]
          param fc_3.b_0: f32[1]
          var fc_3.tmp_0: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
          var fc_3.tmp_0@GRAD: f32[-1, 1]
          var fc_2.tmp_0@GRAD: f32[-1, 4]
          var fc_3.w_0@GRAD: f32[4, 1]
          var fc_3.b_0@GRAD: f32[1]
          var fc_1.tmp_0@GRAD: f32[-1, 4]
          var fc_2.w_0@GRAD: f32[4, 4]
          var fc_0.tmp_0@GRAD: f32[-1, 4]
          var fc_1.w_0@GRAD: f32[4, 4]
          var fc_0.w_0@GRAD: f32[4, 4]
          var fc_0.tmp_0@AGAIN: f32[-1, 4]
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0) {act: "relu"}
          Out: fc_1.tmp_0 = fc(X: fc_0.tmp_0, W: fc_1.w_0) {act: "relu"}
          Out: fc_2.tmp_0 = fc(X: fc_1.tmp_0, W: fc_2.w_0) {act: "relu"}
          Out: fc_3.tmp_0 = fc(X: fc_2.tmp_0, W: fc_3.w_0, Bias: fc_3.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_3.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_3.tmp_0@GRAD = square_error_cost_grad(X: fc_3.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dX: fc_2.tmp_0@GRAD, dW: fc_3.w_0@GRAD, dBias: fc_3.b_0@GRAD = fc_grad(X: fc_2.tmp_0, W: fc_3.w_0, Out: fc_3.tmp_0, dOut: fc_3.tmp_0@GRAD) {act: ""} @backward
          dX: fc_1.tmp_0@GRAD, dW: fc_2.w_0@GRAD = fc_grad(X: fc_1.tmp_0, W: fc_2.w_0, Out: fc_2.tmp_0, dOut: fc_2.tmp_0@GRAD) {act: "relu"} @backward
          Out: fc_0.tmp_0@AGAIN = fc(X: x, W: fc_0.w_0) {act: "relu"} @backward
          dX: fc_0.tmp_0@GRAD, dW: fc_1.w_0@GRAD = fc_grad(X: fc_0.tmp_0@AGAIN, W: fc_1.w_0, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: "relu"} @backward
          dW: fc_0.w_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0@AGAIN, dOut: fc_0.tmp_0@GRAD) {act: "relu"} @backward
    "#]].assert_eq(&after.to_string());
}

#[test]
fn offloaded_checkpoints_go_and_come_back() {
    let (before, _) = differentiated(&tower(3));
    let config = RecomputeConfig { enable_offload: true, ..named(&["fc_0.tmp_0", "fc_1.tmp_0"]) };
    let after = recompute(&before, &config).unwrap();
    expect![[r#"
        var fc_0.tmp_0@OFFLOADED: f32[-1, 4]
        var fc_1.tmp_0@OFFLOADED: f32[-1, 4]
        var fc_1.tmp_0@RELOADED: f32[-1, 4]
        var fc_0.tmp_0@RELOADED: f32[-1, 4]
        Out: fc_0.tmp_0@OFFLOADED = offload(X: fc_0.tmp_0)
        Out: fc_1.tmp_0@OFFLOADED = offload(X: fc_1.tmp_0)
        Out: fc_1.tmp_0@RELOADED = reload(X: fc_1.tmp_0@OFFLOADED) @backward
        dX: fc_1.tmp_0@GRAD, dW: fc_2.w_0@GRAD = fc_grad(X: fc_1.tmp_0@RELOADED, W: fc_2.w_0, Out: fc_2.tmp_0, dOut: fc_2.tmp_0@GRAD) {act: "relu"} @backward
        Out: fc_0.tmp_0@RELOADED = reload(X: fc_0.tmp_0@OFFLOADED) @backward
        dX: fc_0.tmp_0@GRAD, dW: fc_1.w_0@GRAD = fc_grad(X: fc_0.tmp_0@RELOADED, W: fc_1.w_0, Out: fc_1.tmp_0@RELOADED, dOut: fc_1.tmp_0@GRAD) {act: "relu"} @backward
        dW: fc_0.w_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0@RELOADED, dOut: fc_0.tmp_0@GRAD) {act: "relu"} @backward
    "#]].assert_eq(&added(&before, &after));
    split_batch(&after).unwrap();
}

/// Each of 16 layers is kept, or every fourth and the layers of one segment.
#[test]
fn without_names_the_program_is_cut_into_about_equal_segments() {
    let (before, _) = differentiated(&tower(16));
    let after = recompute(&before, &RecomputeConfig::default()).unwrap();
    let again = |op: &&regatta_ir::Op| op.output_vars().any(|v| v.ends_with("@AGAIN"));
    let repeated: Vec<&str> =
        after.block().ops.iter().filter(again).map(|op| op.output_vars().next().unwrap()).collect();
    expect![[r#"
        fc_10.tmp_0@AGAIN
        fc_11.tmp_0@AGAIN
        fc_12.tmp_0@AGAIN
        fc_13.tmp_0@AGAIN
        fc_5.tmp_0@AGAIN
        fc_6.tmp_0@AGAIN
        fc_7.tmp_0@AGAIN
        fc_8.tmp_0@AGAIN
        fc_0.tmp_0@AGAIN
        fc_1.tmp_0@AGAIN
        fc_2.tmp_0@AGAIN
        fc_3.tmp_0@AGAIN"#]]
    .assert_eq(&repeated.join("\n"));
    let bytes = |program: &Program| memory_reuse(program, &Default::default()).unwrap().1.after;
    assert!(bytes(&after) < bytes(&before), "{} {}", bytes(&after), bytes(&before));
}

#[test]
fn a_small_program_is_left_as_it_is() {
    let (before, _) = differentiated(&fit_a_line());
    assert_eq!(recompute(&before, &RecomputeConfig::default()).unwrap(), before);
}

/// A skipped connection crosses the boundary, so it is kept too.
#[test]
fn what_crosses_a_cut_is_kept() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 4);
    let skipped = b.fc(&x, 4, Act::Relu).unwrap();
    let h = b.fc(&skipped, 4, Act::Tanh).unwrap();
    let checkpoint = b.fc(&h, 4, Act::Relu).unwrap();
    let joined = b.elementwise_mul(&checkpoint, &skipped).unwrap();
    let out = b.fc(&joined, 1, Act::None).unwrap();
    squared_loss(&mut b, &out, &y);
    let (before, _) = differentiated(&b.finish());
    let after = recompute(&before, &named(&[checkpoint.name()])).unwrap();
    expect![[r#"
        var fc_1.tmp_0@AGAIN: f32[-1, 4]
        Out: fc_1.tmp_0@AGAIN = fc(X: fc_0.tmp_0, W: fc_1.w_0, Bias: fc_1.b_0) {act: "tanh"} @backward
        dX: fc_1.tmp_0@GRAD, dW: fc_2.w_0@GRAD, dBias: fc_2.b_0@GRAD = fc_grad(X: fc_1.tmp_0@AGAIN, W: fc_2.w_0, Out: fc_2.tmp_0, dOut: fc_2.tmp_0@GRAD) {act: "relu"} @backward
        dX: fc_0.tmp_0@GRAD@PART@1, dW: fc_1.w_0@GRAD, dBias: fc_1.b_0@GRAD = fc_grad(X: fc_0.tmp_0, W: fc_1.w_0, Out: fc_1.tmp_0@AGAIN, dOut: fc_1.tmp_0@GRAD) {act: "tanh"} @backward
    "#]].assert_eq(&added(&before, &after));
}

/// Dropout makes a mask beside the checkpoint: it is repeated for the mask, and the checkpoint is
/// still the one that was kept.
#[test]
fn an_op_that_makes_a_checkpoint_and_something_else_is_repeated() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 4);
    let h = b.fc(&x, 4, Act::Relu).unwrap();
    let checkpoint = b.dropout(&h, 0.5, 3).unwrap();
    let out = b.fc(&checkpoint, 1, Act::None).unwrap();
    squared_loss(&mut b, &out, &y);
    let (before, _) = differentiated(&b.finish());
    let after = recompute(&before, &named(&[checkpoint.name()])).unwrap();
    expect![[r#"
        var fc_0.tmp_0@AGAIN: f32[-1, 4]
        var dropout_0.tmp_0@AGAIN: f32[-1, 4]
        var dropout_0.tmp_1@AGAIN: f32[-1, 4]
        Out: fc_0.tmp_0@AGAIN = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: "relu"} @backward
        Out: dropout_0.tmp_0@AGAIN, Mask: dropout_0.tmp_1@AGAIN = dropout(X: fc_0.tmp_0@AGAIN) {is_test: false, prob: 0.5, seed: 3} @backward
        Out: fc_0.tmp_0@GRAD = elementwise_mul(X: dropout_0.tmp_0@GRAD, Y: dropout_0.tmp_1@AGAIN) @backward
        dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0@AGAIN, dOut: fc_0.tmp_0@GRAD) {act: "relu"} @backward
    "#]].assert_eq(&added(&before, &after));
}

#[test]
fn ops_that_change_state_run_once() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 4);
    let h = b.fc(&x, 4, Act::None).unwrap();
    let h = b.batch_norm(&h, 0.9, 1e-5).unwrap();
    let h = b.relu(&h).unwrap();
    let checkpoint = b.fc(&h, 4, Act::Relu).unwrap();
    let out = b.fc(&checkpoint, 1, Act::None).unwrap();
    squared_loss(&mut b, &out, &y);
    let (before, _) = differentiated(&b.finish());
    let after = recompute(&before, &named(&[checkpoint.name()])).unwrap();
    expect![[r#"
        var fc_0.tmp_0@AGAIN: f32[-1, 4]
        var relu_0.tmp_0@AGAIN: f32[-1, 4]
        Out: fc_0.tmp_0@AGAIN = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""} @backward
        Out: relu_0.tmp_0@AGAIN = relu(X: batch_norm_0.tmp_0) @backward
        dX: relu_0.tmp_0@GRAD, dW: fc_1.w_0@GRAD, dBias: fc_1.b_0@GRAD = fc_grad(X: relu_0.tmp_0@AGAIN, W: fc_1.w_0, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: "relu"} @backward
        dX: batch_norm_0.tmp_0@GRAD = relu_grad(Out: relu_0.tmp_0@AGAIN, dOut: relu_0.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD, dScale: batch_norm_0.w_0@GRAD, dBias: batch_norm_0.b_0@GRAD = batch_norm_grad(X: fc_0.tmp_0@AGAIN, Scale: batch_norm_0.w_0, SavedMean: batch_norm_0.tmp_1, SavedInvStd: batch_norm_0.tmp_2, dY: batch_norm_0.tmp_0@GRAD) {data_layout: "NHWC", epsilon: 1e-5, is_test: false, momentum: 0.9, use_global_stats: false} @backward
        dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0@AGAIN, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&before, &after));
}

#[test]
fn what_cannot_be_a_checkpoint_is_refused() {
    let (program, _) = differentiated(&two_layers());
    expect!["recompute: 'x' cannot be a checkpoint: it is no activation that one forward op makes"]
        .assert_eq(&refusal(&program, &named(&["x"])));
    expect![
        "recompute: 'w0@GRAD' cannot be a checkpoint: it is no activation that one forward op makes"
    ]
    .assert_eq(&refusal(&program, &named(&["w0@GRAD"])));
    expect!["op recompute: variable 'fc_7.tmp_0' is not declared in this program"]
        .assert_eq(&refusal(&program, &named(&["fc_7.tmp_0"])));
    expect!["recompute: the program has no gradients; call backward first"]
        .assert_eq(&refusal(&two_layers().main, &named(&["fc_0.tmp_0"])));
    let (three, _) = differentiated(&tower(3));
    let once = recompute(&three, &named(&["fc_1.tmp_0"])).unwrap();
    expect!["recompute: parts of the program are computed again already"]
        .assert_eq(&refusal(&once, &named(&["fc_1.tmp_0"])));
}

#[test]
fn checkpoint_shape_is_checked() {
    let (program, _) = differentiated(&two_layers());
    let with = |shape: &[i64]| RecomputeConfig {
        checkpoint_shape: shape.to_vec(),
        ..named(&["relu_0.tmp_0"])
    };
    recompute(&program, &with(&[64, 3])).unwrap();
    expect!["recompute: checkpoint_shape [-1, 3] holds -1; give every size"]
        .assert_eq(&refusal(&program, &with(&[-1, 3])));
    expect![
        "recompute: the checkpoint 'relu_0.tmp_0' is f32[-1, 3], not of checkpoint_shape [64, 4]"
    ]
    .assert_eq(&refusal(&program, &with(&[64, 4])));
}

#[test]
fn the_text_form_holds_everything() {
    let (program, _) = backward(&tower(3).main, "mean_0.tmp_0", &Backward::default()).unwrap();
    let config = RecomputeConfig { enable_offload: true, ..named(&["fc_1.tmp_0"]) };
    let after = recompute(&program, &config).unwrap();
    assert_eq!(parse(&after.to_string()), after);
}
