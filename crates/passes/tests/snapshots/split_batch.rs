use expect_test::expect;
use regatta_ir::{Act, Program};
use regatta_ops::builder;
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, Clip, Optimizer, clone_for_test, minimize, split_batch};
use regatta_tensor::DType;

use crate::models::{inputs, parse, shared_table, squared_loss, two_layers};

/// One line per op: who runs it, and what its outputs are in a part.
fn shown(program: &Program) -> String {
    let (in_part, parts) = split_batch(program).unwrap();
    let lines = program.block().ops.iter().zip(in_part).map(|(op, part)| {
        let outs = op.output_vars().map(|v| match (part, parts.get(v)) {
            (true, Some(p)) => format!("{v}: {p:?}"),
            _ => v.to_string(),
        });
        let outs = outs.collect::<Vec<_>>().join(", ");
        format!("{} {} -> {outs}\n", if part { "part " } else { "whole" }, op.kind)
    });
    lines.collect()
}

fn trained(programs: &regatta_ir::Programs, loss: &str) -> Program {
    let sgd = Rule::Sgd(Sgd {});
    let optimizer = Optimizer { clip: Some(Clip::GlobalNorm(1.0)), ..Optimizer::new(sgd, 0.1) };
    minimize(programs, loss, &optimizer, &Backward::default()).unwrap().programs.main
}

fn refusal(program: &Program) -> String {
    split_batch(program).unwrap_err().to_string()
}

#[test]
fn forward_and_backward_run_in_parts_and_updates_on_the_whole() {
    let before = trained(&two_layers(), "mean_0.tmp_0");
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
          Out: global_norm_factor@CLIP = global_norm_factor(X: [w0@GRAD, w1@GRAD]) {clip_norm: 1.0} @optimize
          Out: w0@GRAD@CLIP = scale_by(X: w0@GRAD, Factor: global_norm_factor@CLIP) @optimize
          Out: w1@GRAD@CLIP = scale_by(X: w1@GRAD, Factor: global_norm_factor@CLIP) @optimize
          ParamOut: w0 = sgd(Param: w0, Grad: w0@GRAD@CLIP, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          ParamOut: w1 = sgd(Param: w1, Grad: w1@GRAD@CLIP, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&before.to_string());
    expect![[r#"
        part  fc -> fc_0.tmp_0: Rows
        part  relu -> relu_0.tmp_0: Rows
        part  fc -> fc_1.tmp_0: Rows
        part  square_error_cost -> square_error_cost_0.tmp_0: Rows
        part  mean -> mean_0.tmp_0: Sum
        part  fill_constant -> mean_0.tmp_0@GRAD: Same
        part  mean_grad -> square_error_cost_0.tmp_0@GRAD: Rows
        part  square_error_cost_grad -> fc_1.tmp_0@GRAD: Rows
        part  fc_grad -> relu_0.tmp_0@GRAD: Rows, w1@GRAD: Sum
        part  relu_grad -> fc_0.tmp_0@GRAD: Rows
        part  fc_grad -> w0@GRAD: Sum
        whole global_norm_factor -> global_norm_factor@CLIP
        whole scale_by -> w0@GRAD@CLIP
        whole scale_by -> w1@GRAD@CLIP
        whole sgd -> w0
        whole sgd -> w1
    "#]]
    .assert_eq(&shown(&before));
}

#[test]
fn row_sparse_parts_are_sums() {
    expect![[r#"
        part  embedding -> embedding_0.tmp_0: Rows
        part  embedding -> embedding_1.tmp_0: Rows
        part  elementwise_mul -> elementwise_mul_0.tmp_0: Rows
        part  mean -> mean_0.tmp_0: Sum
        part  fill_constant -> mean_0.tmp_0@GRAD: Same
        part  mean_grad -> elementwise_mul_0.tmp_0@GRAD: Rows
        part  elementwise_mul_grad -> embedding_0.tmp_0@GRAD: Rows, embedding_1.tmp_0@GRAD: Rows
        part  embedding_grad -> table@GRAD@PART@0: Sum
        part  embedding_grad -> table@GRAD@PART@1: Sum
        part  sum -> table@GRAD: Sum
        whole global_norm_factor -> global_norm_factor@CLIP
        whole scale_by -> table@GRAD@CLIP
        whole sgd -> table
    "#]]
    .assert_eq(&shown(&trained(&shared_table(), "mean_0.tmp_0")));
}

#[test]
fn weighted_sums_of_means_stay_in_parts() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = b.fc(&x, 1, Act::None).unwrap();
    let error = squared_loss(&mut b, &predicted, &y);
    let size = b.abs(&predicted).unwrap();
    let size = b.mean(&size).unwrap();
    let weighted = b.scale(&size, 0.25, 0.0).unwrap();
    let total = b.elementwise_add(&error, &weighted).unwrap();
    expect![[r#"
        part  fc -> fc_0.tmp_0: Rows
        part  square_error_cost -> square_error_cost_0.tmp_0: Rows
        part  mean -> mean_0.tmp_0: Sum
        part  abs -> abs_0.tmp_0: Rows
        part  mean -> mean_1.tmp_0: Sum
        part  scale -> scale_0.tmp_0: Sum
        part  elementwise_add -> elementwise_add_0.tmp_0: Sum
        part  fill_constant -> elementwise_add_0.tmp_0@GRAD: Same
        part  assign -> mean_0.tmp_0@GRAD: Same
        part  assign -> scale_0.tmp_0@GRAD: Same
        part  scale -> mean_1.tmp_0@GRAD: Same
        part  mean_grad -> abs_0.tmp_0@GRAD: Rows
        part  abs_grad -> fc_0.tmp_0@GRAD@PART@0: Rows
        part  mean_grad -> square_error_cost_0.tmp_0@GRAD: Rows
        part  square_error_cost_grad -> fc_0.tmp_0@GRAD@PART@1: Rows
        part  sum -> fc_0.tmp_0@GRAD: Rows
        part  fc_grad -> fc_0.w_0@GRAD: Sum, fc_0.b_0@GRAD: Sum
        whole global_norm_factor -> global_norm_factor@CLIP
        whole scale_by -> fc_0.w_0@GRAD@CLIP
        whole scale_by -> fc_0.b_0@GRAD@CLIP
        whole sgd -> fc_0.w_0
        whole sgd -> fc_0.b_0
    "#]]
    .assert_eq(&shown(&trained(&b.finish(), total.name())));
}

/// The mean of a mean: its gradient reads the shape of the first one only.
#[test]
fn means_and_sums_of_means_stay_in_parts() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = b.fc(&x, 1, Act::None).unwrap();
    let error = squared_loss(&mut b, &predicted, &y);
    let again = b.mean(&error).unwrap();
    let total = b.reduce_sum(&again, &[], false).unwrap();
    expect![[r#"
        part  fc -> fc_0.tmp_0: Rows
        part  square_error_cost -> square_error_cost_0.tmp_0: Rows
        part  mean -> mean_0.tmp_0: Sum
        part  mean -> mean_1.tmp_0: Sum
        part  reduce_sum -> reduce_sum_0.tmp_0: Sum
        part  fill_constant -> reduce_sum_0.tmp_0@GRAD: Same
        part  reduce_sum_grad -> mean_1.tmp_0@GRAD: Same
        part  mean_grad -> mean_0.tmp_0@GRAD: Same
        part  mean_grad -> square_error_cost_0.tmp_0@GRAD: Rows
        part  square_error_cost_grad -> fc_0.tmp_0@GRAD: Rows
        part  fc_grad -> fc_0.w_0@GRAD: Sum, fc_0.b_0@GRAD: Sum
        whole global_norm_factor -> global_norm_factor@CLIP
        whole scale_by -> fc_0.w_0@GRAD@CLIP
        whole scale_by -> fc_0.b_0@GRAD@CLIP
        whole sgd -> fc_0.w_0
        whole sgd -> fc_0.b_0
    "#]]
    .assert_eq(&shown(&trained(&b.finish(), total.name())));
}

/// Examples that are no longer in the first dimension are neither rows nor summands of a part.
#[test]
fn what_moves_the_batch_runs_on_the_whole() {
    let program = parse(
        "program main
block 0
  data x: f32[-1, 2]
  var ones: f32[2, 1, 1]
  var twice: f32[2, -1, 2]
  var m: f32[1]
  Out: ones = fill_constant() {dtype: \"f32\", shape: [2, 1, 1], value: 1.0}
  Out: twice = elementwise_mul(X: x, Y: ones)
  Out: m = mean(X: twice)",
    );
    expect![[r#"
        part  fill_constant -> ones: Same
        whole elementwise_mul -> twice
        whole mean -> m
    "#]]
    .assert_eq(&shown(&program));
}

/// A metric, what follows from it, and a function of a sum over the batch feed no gradient: they
/// wait for all parts.
#[test]
fn metrics_and_what_follows_from_them_run_on_the_whole() {
    let program = parse(
        "program main
block 0
  data x: f32[-1, 2]
  persist seen: f32[1]
  var metric: f32[1]
  var doubled: f32[1]
  var m: f32[1]
  var root: f32[1]
  var c: f32[1]
  var both: f32[1]
  Out: metric = global_norm_factor(X: x) {clip_norm: 1.0}
  Out: doubled = scale(X: metric) {scale: 2.0}
  Out: m = mean(X: x)
  Out: root = sqrt(X: m)
  Out: seen = assign(X: m)
  Out: c = fill_constant() {shape: [1], value: 1.0}
  Out: both = elementwise_add(X: m, Y: c)",
    );
    expect![[r#"
        whole global_norm_factor -> metric
        whole scale -> doubled
        part  mean -> m: Sum
        whole sqrt -> root
        whole assign -> seen
        part  fill_constant -> c: Same
        whole elementwise_add -> both
    "#]]
    .assert_eq(&shown(&program));
}

#[test]
fn a_classifier_with_metrics_is_split_around_them() {
    let mut b = builder(1);
    let x = b.data("x", DType::F32, &[-1, 2]).unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let logits = b.fc(&x, 2, Act::None).unwrap();
    let (cost, softmax) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap();
    let accuracy = b.accuracy(&softmax, &label).unwrap();
    b.scale(&accuracy, 100.0, 0.0).unwrap();
    b.auc(&softmax, &label, 100).unwrap();
    expect![[r#"
        part  fc -> fc_0.tmp_0: Rows
        part  softmax_with_cross_entropy -> softmax_with_cross_entropy_0.tmp_0: Rows, softmax_with_cross_entropy_0.tmp_1: Rows
        part  mean -> mean_0.tmp_0: Sum
        whole accuracy -> accuracy_0.tmp_0
        whole scale -> scale_0.tmp_0
        whole auc -> auc_0.tmp_0, auc_0.stat_pos, auc_0.stat_neg
        part  fill_constant -> mean_0.tmp_0@GRAD: Same
        part  mean_grad -> softmax_with_cross_entropy_0.tmp_0@GRAD: Rows
        part  softmax_with_cross_entropy_grad -> fc_0.tmp_0@GRAD: Rows
        part  fc_grad -> fc_0.w_0@GRAD: Sum, fc_0.b_0@GRAD: Sum
        whole global_norm_factor -> global_norm_factor@CLIP
        whole scale_by -> fc_0.w_0@GRAD@CLIP
        whole scale_by -> fc_0.b_0@GRAD@CLIP
        whole sgd -> fc_0.w_0
        whole sgd -> fc_0.b_0
    "#]].assert_eq(&shown(&trained(&b.finish(), loss.name())));
}

#[test]
fn batch_normalisation_needs_the_whole_batch_to_train_but_not_to_test() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let h = b.batch_norm(&x, 0.9, 1e-5).unwrap();
    let predicted = b.fc(&h, 1, Act::None).unwrap();
    let loss = squared_loss(&mut b, &predicted, &y);
    let main = trained(&b.finish(), loss.name());
    assert_eq!(
        refusal(&main),
        "split_batch: the gradients depend on op batch_norm, which needs the whole batch; run it with one thread"
    );
    expect![[r#"
        part  batch_norm -> batch_norm_0.tmp_0: Rows
        part  fc -> fc_0.tmp_0: Rows
        part  square_error_cost -> square_error_cost_0.tmp_0: Rows
        part  mean -> mean_0.tmp_0: Sum
    "#]]
    .assert_eq(&shown(&clone_for_test(&main).unwrap()));
}

#[test]
fn a_part_does_not_change_what_the_whole_reads_later() {
    let program = parse(
        "program main
block 0
  data x: f32[-1, 2]
  var t: f32[-1, 2]
  var metric: f32[1]
  var u: f32[-1, 2]
  Out: t = relu(X: x)
  Out: metric = global_norm_factor(X: t) {clip_norm: 1.0}
  Out: t = tanh(X: x)
  Out: u = scale(X: t) {scale: 2.0}",
    );
    expect![[r#"
        part  relu -> t: Rows
        whole global_norm_factor -> metric
        whole tanh -> t
        whole scale -> u
    "#]]
    .assert_eq(&shown(&program));
}

#[test]
fn gradients_that_need_the_whole_batch_are_refused() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = b.fc(&x, 1, Act::None).unwrap();
    let loss = squared_loss(&mut b, &predicted, &y);
    let root = b.sqrt(&loss).unwrap();
    assert_eq!(
        refusal(&trained(&b.finish(), root.name())),
        "split_batch: the gradients depend on op sqrt, which needs the whole batch; run it with one thread"
    );

    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = b.fc(&x, 1, Act::None).unwrap();
    let loss = squared_loss(&mut b, &predicted, &y);
    let squared = b.elementwise_mul(&loss, &loss).unwrap();
    assert_eq!(
        refusal(&trained(&b.finish(), squared.name())),
        "split_batch: op elementwise_mul_grad is applied to a sum over the batch before it is complete; run it with one thread"
    );
}

#[test]
fn a_penalty_in_the_loss_on_a_trained_parameter_is_refused() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = b.fc(&x, 1, Act::None).unwrap();
    let error = squared_loss(&mut b, &predicted, &y);
    let w = b.var("fc_0.w_0").unwrap();
    let size = b.square(&w).unwrap();
    let size = b.mean(&size).unwrap();
    let total = b.elementwise_add(&error, &size).unwrap();
    assert_eq!(
        refusal(&trained(&b.finish(), total.name())),
        "split_batch: op sum is applied to a sum over the batch before it is complete; run it with one thread"
    );
}

#[test]
fn rows_that_all_share_are_gathered_in_parts_and_those_of_the_batch_on_the_whole() {
    let program = parse(
        r#"
        program main
        block 0
          data x: f32[-1, 2]
          data index: i64[-1]
          param w: f32[9, 2]
          var a: f32[-1, 2]
          var b: f32[-1, 2]
          Out: a = gather(X: w, Index: index) {axis: 0}
          Out: b = gather(X: x, Index: index) {axis: 0}
        "#,
    );
    expect![[r#"
        part  gather -> a: Rows
        whole gather -> b
    "#]]
    .assert_eq(&shown(&program));
}
