use expect_test::expect;
use regatta_ir::{Act, Op, Program};
use regatta_ops::builder;
use regatta_ops::interp::{Cell, Env, eval};
use regatta_passes::{Backward, Optimizer, backward, memory_reuse, minimize};
use regatta_tensor::{Ragged, Rng, Tensor};

use crate::models::{
    added, differentiated, fc_named, fit_a_line, inputs, pairs, parse, shared_table, squared_loss,
    two_layers,
};

fn refusal(program: &Program, loss: &str, what: &Backward) -> String {
    backward(program, loss, what).unwrap_err().to_string()
}

fn only(parameters: &[&str]) -> Backward {
    let parameters = Some(parameters.iter().map(|p| p.to_string()).collect());
    Backward { parameters, ..Backward::default() }
}

#[test]
fn before_and_after() {
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
    let (after, grads) = differentiated(&fit_a_line());
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
          Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_0.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: fc_0.tmp_0@GRAD = square_error_cost_grad(X: fc_0.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
          dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&after.to_string());
    expect![[r#"
        fc_0.w_0 -> fc_0.w_0@GRAD
        fc_0.b_0 -> fc_0.b_0@GRAD
    "#]]
    .assert_eq(&pairs(&grads));
}

#[test]
fn parts_of_a_variable_used_twice_are_summed() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let hidden = fc_named(&mut b, &x, 2, "w");
    let bent = b.tanh(&hidden).unwrap();
    let both = b.elementwise_add(&hidden, &bent).unwrap();
    let predicted = fc_named(&mut b, &both, 1, "v");
    squared_loss(&mut b, &predicted, &y);
    let programs = b.finish();
    let (after, _) = differentiated(&programs);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_1.tmp_0@GRAD: f32[-1, 1]
        var elementwise_add_0.tmp_0@GRAD: f32[-1, 2]
        var v@GRAD: f32[2, 1]
        var fc_0.tmp_0@GRAD@PART@0: f32[-1, 2]
        var tanh_0.tmp_0@GRAD: f32[-1, 2]
        var fc_0.tmp_0@GRAD@PART@1: f32[-1, 2]
        var fc_0.tmp_0@GRAD: f32[-1, 2]
        var w@GRAD: f32[2, 2]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        dX: elementwise_add_0.tmp_0@GRAD, dW: v@GRAD = fc_grad(X: elementwise_add_0.tmp_0, W: v, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
        Out: fc_0.tmp_0@GRAD@PART@0 = assign(X: elementwise_add_0.tmp_0@GRAD) @backward
        Out: tanh_0.tmp_0@GRAD = assign(X: elementwise_add_0.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD@PART@1 = tanh_grad(Out: tanh_0.tmp_0, dOut: tanh_0.tmp_0@GRAD) @backward
        Out: fc_0.tmp_0@GRAD = sum(X: [fc_0.tmp_0@GRAD@PART@0, fc_0.tmp_0@GRAD@PART@1]) @backward
        dW: w@GRAD = fc_grad(X: x, W: w, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&programs.main, &after));
}

#[test]
fn a_variable_used_twice_by_one_op_gets_both_parts() {
    let mut b = builder(1);
    let (x, _) = inputs(&mut b, 2);
    let hidden = fc_named(&mut b, &x, 2, "w");
    let squared = b.elementwise_mul(&hidden, &hidden).unwrap();
    b.mean(&squared).unwrap();
    let programs = b.finish();
    let (after, _) = differentiated(&programs);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var elementwise_mul_0.tmp_0@GRAD: f32[-1, 2]
        var fc_0.tmp_0@GRAD@PART@0: f32[-1, 2]
        var fc_0.tmp_0@GRAD@PART@1: f32[-1, 2]
        var fc_0.tmp_0@GRAD: f32[-1, 2]
        var w@GRAD: f32[2, 2]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: elementwise_mul_0.tmp_0@GRAD = mean_grad(X: elementwise_mul_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD@PART@0, dY: fc_0.tmp_0@GRAD@PART@1 = elementwise_mul_grad(X: fc_0.tmp_0, Y: fc_0.tmp_0, dOut: elementwise_mul_0.tmp_0@GRAD) @backward
        Out: fc_0.tmp_0@GRAD = sum(X: [fc_0.tmp_0@GRAD@PART@0, fc_0.tmp_0@GRAD@PART@1]) @backward
        dW: w@GRAD = fc_grad(X: x, W: w, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&programs.main, &after));
    check_numerically(&after, "mean_0.tmp_0", &["w"]);
}

#[test]
fn a_parameter_shared_by_layers_gets_one_summed_gradient() {
    let mut b = builder(1);
    let (x, _) = inputs(&mut b, 2);
    let first = fc_named(&mut b, &x, 2, "w");
    let first = b.tanh(&first).unwrap();
    let second = fc_named(&mut b, &first, 2, "w");
    b.mean(&second).unwrap();
    let programs = b.finish();
    let (after, grads) = differentiated(&programs);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var fc_1.tmp_0@GRAD: f32[-1, 2]
        var tanh_0.tmp_0@GRAD: f32[-1, 2]
        var w@GRAD@PART@0: f32[2, 2]
        var fc_0.tmp_0@GRAD: f32[-1, 2]
        var w@GRAD@PART@1: f32[2, 2]
        var w@GRAD: f32[2, 2]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: fc_1.tmp_0@GRAD = mean_grad(X: fc_1.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: tanh_0.tmp_0@GRAD, dW: w@GRAD@PART@0 = fc_grad(X: tanh_0.tmp_0, W: w, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
        dX: fc_0.tmp_0@GRAD = tanh_grad(Out: tanh_0.tmp_0, dOut: tanh_0.tmp_0@GRAD) @backward
        dW: w@GRAD@PART@1 = fc_grad(X: x, W: w, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
        Out: w@GRAD = sum(X: [w@GRAD@PART@0, w@GRAD@PART@1]) @backward
    "#]].assert_eq(&added(&programs.main, &after));
    expect![[r#"
        w -> w@GRAD
    "#]]
    .assert_eq(&pairs(&grads));
    check_numerically(&after, "mean_0.tmp_0", &["w"]);
}

#[test]
fn a_table_looked_up_twice_merges_its_row_sparse_parts() {
    let programs = shared_table();
    let (after, grads) = differentiated(&programs);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var elementwise_mul_0.tmp_0@GRAD: f32[-1, 1, 4]
        var embedding_0.tmp_0@GRAD: f32[-1, 1, 4]
        var embedding_1.tmp_0@GRAD: f32[-1, 1, 4]
        var table@GRAD@PART@0: rows f32[100, 4]
        var table@GRAD@PART@1: rows f32[100, 4]
        var table@GRAD: rows f32[100, 4]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: elementwise_mul_0.tmp_0@GRAD = mean_grad(X: elementwise_mul_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: embedding_0.tmp_0@GRAD, dY: embedding_1.tmp_0@GRAD = elementwise_mul_grad(X: embedding_0.tmp_0, Y: embedding_1.tmp_0, dOut: elementwise_mul_0.tmp_0@GRAD) @backward
        dW: table@GRAD@PART@0 = embedding_grad(W: table, dOut: embedding_1.tmp_0@GRAD, Ids: item) {hash: false, is_sparse: true, padding_idx: -1, pool: "mean"} @backward
        dW: table@GRAD@PART@1 = embedding_grad(W: table, dOut: embedding_0.tmp_0@GRAD, Ids: user) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"} @backward
        Out: table@GRAD = sum(X: [table@GRAD@PART@0, table@GRAD@PART@1]) @backward
    "#]].assert_eq(&added(&programs.main, &after));
    expect![[r#"
        table -> table@GRAD
    "#]]
    .assert_eq(&pairs(&grads));
    check_numerically(&after, "mean_0.tmp_0", &["table"]);
}

#[test]
fn a_loss_may_be_a_weighted_sum_of_means() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = fc_named(&mut b, &x, 1, "w");
    let error = squared_loss(&mut b, &predicted, &y);
    let size = b.abs(&predicted).unwrap();
    let size = b.mean(&size).unwrap();
    let weighted = b.scale(&size, 0.25, 0.0).unwrap();
    let total = b.elementwise_add(&error, &weighted).unwrap();
    let programs = b.finish();
    let (after, _) = backward(&programs.main, total.name(), &Backward::default()).unwrap();
    expect![[r#"
        var elementwise_add_0.tmp_0@GRAD: f32[1]
        var mean_0.tmp_0@GRAD: f32[1]
        var scale_0.tmp_0@GRAD: f32[1]
        var mean_1.tmp_0@GRAD: f32[1]
        var abs_0.tmp_0@GRAD: f32[-1, 1]
        var fc_0.tmp_0@GRAD@PART@0: f32[-1, 1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_0.tmp_0@GRAD@PART@1: f32[-1, 1]
        var fc_0.tmp_0@GRAD: f32[-1, 1]
        var w@GRAD: f32[2, 1]
        Out: elementwise_add_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        Out: mean_0.tmp_0@GRAD = assign(X: elementwise_add_0.tmp_0@GRAD) @backward
        Out: scale_0.tmp_0@GRAD = assign(X: elementwise_add_0.tmp_0@GRAD) @backward
        Out: mean_1.tmp_0@GRAD = scale(X: scale_0.tmp_0@GRAD) {bias: 0.0, scale: 0.25} @backward
        dX: abs_0.tmp_0@GRAD = mean_grad(X: abs_0.tmp_0, dOut: mean_1.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD@PART@0 = abs_grad(X: fc_0.tmp_0, dOut: abs_0.tmp_0@GRAD) @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD@PART@1 = square_error_cost_grad(X: fc_0.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        Out: fc_0.tmp_0@GRAD = sum(X: [fc_0.tmp_0@GRAD@PART@0, fc_0.tmp_0@GRAD@PART@1]) @backward
        dW: w@GRAD = fc_grad(X: x, W: w, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&programs.main, &after));
    check_numerically(&after, total.name(), &["w"]);
}

#[test]
fn ops_after_the_loss_are_left_alone() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = fc_named(&mut b, &x, 1, "w");
    let loss = squared_loss(&mut b, &predicted, &y);
    let root = b.sqrt(&loss).unwrap();
    let size = b.abs(&predicted).unwrap();
    b.mean(&size).unwrap();
    let programs = b.finish();
    let (after, _) = differentiated(&programs);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_0.tmp_0@GRAD: f32[-1, 1]
        var w@GRAD: f32[2, 1]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD = square_error_cost_grad(X: fc_0.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        dW: w@GRAD = fc_grad(X: x, W: w, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&programs.main, &after));
    assert!(!after.to_string().contains(&format!("{root}@GRAD")));
}

#[test]
fn an_op_without_gradient_after_the_loss_does_not_matter() {
    let mut programs = fit_a_line();
    let metric = Op::new("global_norm_factor")
        .input("X", "fc_0.tmp_0")
        .attr("clip_norm", 1.0)
        .output("Out", "metric");
    let block = programs.main.block_mut();
    let ty = regatta_ir::VarType::f32([1]);
    block.declare(regatta_ir::VarDef::new("metric", ty, regatta_ir::Origin::Temp)).unwrap();
    block.ops.push(metric);
    let (_, grads) = differentiated(&programs);
    assert_eq!(grads.len(), 2);
    assert_eq!(
        refusal(&programs.main, "metric", &Backward::default()),
        "backward: op global_norm_factor on the way to the loss has no gradient: it works on gradients"
    );
}

#[test]
fn no_gradient_flows_through_stop_gradient_and_no_grad_set() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let hidden = fc_named(&mut b, &x, 2, "w0");
    b.stop_gradient(&hidden).unwrap();
    let predicted = fc_named(&mut b, &hidden, 1, "w1");
    squared_loss(&mut b, &predicted, &y);
    let stopped = b.finish();
    let (after, grads) = differentiated(&stopped);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_1.tmp_0@GRAD: f32[-1, 1]
        var w1@GRAD: f32[2, 1]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        dW: w1@GRAD = fc_grad(X: fc_0.tmp_0, W: w1, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&stopped.main, &after));
    expect![[r#"
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&pairs(&grads));

    let no_grad_set = vec!["relu_0.tmp_0".to_string()];
    let what = Backward { no_grad_set, ..Backward::default() };
    let programs = two_layers();
    let (after, grads) = backward(&programs.main, "mean_0.tmp_0", &what).unwrap();
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_1.tmp_0@GRAD: f32[-1, 1]
        var w1@GRAD: f32[3, 1]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        dW: w1@GRAD = fc_grad(X: relu_0.tmp_0, W: w1, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&programs.main, &after));
    expect![[r#"
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&pairs(&grads));
}

#[test]
fn inputs_have_a_gradient_if_they_ask_for_it() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    b.require_gradient(&x).unwrap();
    let predicted = b.fc(&x, 1, Act::Relu).unwrap();
    squared_loss(&mut b, &predicted, &y);
    let programs = b.finish();
    let (after, grads) = differentiated(&programs);
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_0.tmp_0@GRAD: f32[-1, 1]
        var x@GRAD: f32[-1, 2]
        var fc_0.w_0@GRAD: f32[2, 1]
        var fc_0.b_0@GRAD: f32[1]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_0.tmp_0@GRAD = square_error_cost_grad(X: fc_0.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        dX: x@GRAD, dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: x, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: "relu"} @backward
    "#]].assert_eq(&added(&programs.main, &after));
    expect![[r#"
        fc_0.w_0 -> fc_0.w_0@GRAD
        fc_0.b_0 -> fc_0.b_0@GRAD
    "#]]
    .assert_eq(&pairs(&grads));
    check_numerically(&after, "mean_0.tmp_0", &["fc_0.w_0", "x"]);
}

#[test]
fn only_named_parameters_are_differentiated() {
    let programs = two_layers();
    let (after, grads) = backward(&programs.main, "mean_0.tmp_0", &only(&["w1"])).unwrap();
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_1.tmp_0@GRAD: f32[-1, 1]
        var w1@GRAD: f32[3, 1]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_1.tmp_0@GRAD = square_error_cost_grad(X: fc_1.tmp_0, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        dW: w1@GRAD = fc_grad(X: relu_0.tmp_0, W: w1, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
    "#]].assert_eq(&added(&programs.main, &after));
    expect![[r#"
        w1 -> w1@GRAD
    "#]]
    .assert_eq(&pairs(&grads));
}

#[test]
fn the_loss_must_be_one_float() {
    let main = fit_a_line().main;
    let all = Backward::default();
    assert_eq!(
        refusal(&main, "fc_0.tmp_0", &all,),
        "backward: the loss 'fc_0.tmp_0' is f32[-1, 1], not one float"
    );
    assert_eq!(
        refusal(&main, "lost", &all),
        "op backward: variable 'lost' is not declared in this program"
    );
    assert_eq!(refusal(&main, "y", &all), "backward: the loss 'y' is f32[-1, 1], not one float");
    let constant = parse(
        "program main
block 0
  var one: f32[1]
  Out: one = fill_constant() {shape: [1], value: 1.0}",
    );
    assert_eq!(
        refusal(&constant, "one", &all),
        "backward: 'one' depends on nothing that is trained"
    );
    let integer = parse(
        "program main
block 0
  var one: i64[1]
  Out: one = fill_constant() {shape: [1], value: 1.0, dtype: \"i64\"}",
    );
    assert_eq!(refusal(&integer, "one", &all), "backward: the loss 'one' is i64[1], not one float");
}

#[test]
fn an_op_without_gradient_on_the_way_is_named() {
    let main = parse(
        "program main
block 0
  data x: f32[-1, 2]
  param w: f32[2, 2]
  var h: f32[-1, 2]
  var c: f32[-1, 2]
  var loss: f32[1]
  Out: h = fc(X: x, W: w)
  Out: c = clip_by_value(X: h) {min: 0.0, max: 1.0}
  Out: loss = mean(X: c)",
    );
    assert_eq!(
        refusal(&main, "loss", &Backward::default()),
        "backward: op clip_by_value on the way to the loss has no gradient: it works on gradients"
    );
}

#[test]
fn named_parameters_must_be_trained_and_reach_the_loss() {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = fc_named(&mut b, &x, 1, "w");
    squared_loss(&mut b, &predicted, &y);
    fc_named(&mut b, &x, 1, "elsewhere");
    let mut main = b.finish().main;
    let loss = "mean_0.tmp_0";
    assert_eq!(
        refusal(&main, loss, &only(&["w", "elsewhere"]),),
        "backward: the loss does not depend on 'elsewhere'"
    );
    assert_eq!(
        refusal(&main, loss, &only(&["v"]),),
        "op backward: variable 'v' is not declared in this program"
    );
    assert_eq!(refusal(&main, loss, &only(&["x"])), "backward: 'x' is no parameter");
    let no_grad_set = vec!["w".to_string()];
    assert_eq!(
        refusal(&main, loss, &Backward { no_grad_set, ..only(&["w"]) }),
        "backward: parameter 'w' is not trained: it is frozen, has stop_gradient or is in no_grad_set"
    );
    main.block_mut().vars["w"].param.trainable = false;
    assert_eq!(
        refusal(&main, loss, &only(&["w"])),
        "backward: parameter 'w' is not trained: it is frozen, has stop_gradient or is in no_grad_set"
    );
    assert_eq!(
        refusal(&main, loss, &Backward::default(),),
        "backward: 'mean_0.tmp_0' depends on nothing that is trained"
    );
}

#[test]
fn a_differentiated_program_is_refused() {
    let programs = fit_a_line();
    let (after, _) = differentiated(&programs);
    let all = Backward::default();
    assert_eq!(
        refusal(&after, "mean_0.tmp_0", &all),
        "backward: the program has gradients already (op fill_constant makes 'mean_0.tmp_0@GRAD'); start from the program before `minimize`"
    );
    let sgd = Optimizer::new(regatta_optim::Rule::Sgd(regatta_optim::Sgd {}), 0.1);
    let minimized = minimize(&programs, "mean_0.tmp_0", &sgd, &all).unwrap();
    let error = minimize(&minimized.programs, "mean_0.tmp_0", &sgd, &all).unwrap_err();
    assert_eq!(
        error.to_string(),
        "backward: the program has gradients already (op fill_constant makes 'mean_0.tmp_0@GRAD'); start from the program before `minimize`"
    );
}

#[test]
fn a_gradient_name_that_is_taken_is_refused() {
    let main = parse(
        "program main
block 0
  data w@GRAD: f32[2, 2]
  param w: f32[2, 2]
  var loss: f32[1]
  Out: loss = mean(X: w)",
    );
    assert_eq!(
        refusal(&main, "loss", &Backward::default()),
        "variable 'w@GRAD' is declared twice: as f32[2, 2] and as f32[2, 2]"
    );
}

#[test]
fn shared_memory_is_refused() {
    let (shared, _) = memory_reuse(&two_layers().main, &Default::default()).unwrap();
    assert_eq!(
        refusal(&shared, "mean_0.tmp_0", &Backward::default()),
        "backward: 'fc_0.tmp_0' shares memory already; apply memory_reuse as the last pass"
    );
}

/// Each of these would silently give a wrong gradient.
#[test]
fn values_that_are_gone_when_the_gradient_is_computed_are_refused() {
    let written_twice = parse(
        "program main
block 0
  data x: f32[-1, 2]
  param w: f32[2, 2]
  var h: f32[-1, 2]
  var g: f32[-1, 2]
  var loss: f32[1]
  Out: h = fc(X: x, W: w)
  Out: g = tanh(X: h)
  Out: h = relu(X: g)
  Out: loss = mean(X: h)",
    );
    assert_eq!(
        refusal(&written_twice, "loss", &Backward::default(),),
        "backward: 'h' is written more than once on the way to the loss"
    );
    let parameter_written = parse(
        "program main
block 0
  param w: f32[2]
  var half: f32[2]
  var loss: f32[1]
  Out: half = scale(X: w) {scale: 0.5}
  Out: w = assign(X: half)
  Out: loss = mean(X: half)",
    );
    assert_eq!(
        refusal(&parameter_written, "loss", &Backward::default(),),
        "backward: 'w' is written more than once on the way to the loss"
    );
    let input_overwritten = parse(
        "program main
block 0
  data x: f32[-1, 2]
  param w: f32[2, 2]
  var twice: f32[-1, 2]
  var h: f32[-1, 2]
  var loss: f32[1]
  Out: twice = scale(X: x) {scale: 2.0}
  Out: h = fc(X: twice, W: w)
  Out: twice = scale(X: x) {scale: 3.0}
  Out: loss = mean(X: h)",
    );
    assert_eq!(
        refusal(&input_overwritten, "loss", &Backward::default()),
        "backward: the gradient of op fc needs 'twice', which op scale overwrites"
    );
}

/// Runs the differentiated program and compares gradients with central differences of the loss.
fn check_numerically(program: &Program, loss: &str, variables: &[&str]) {
    let start = values(program);
    let run = |mut env: Env| {
        for op in &program.block().ops {
            eval(op, &mut env, &mut Default::default()).unwrap();
        }
        env
    };
    let after = run(start.clone());
    const STEP: f32 = 1e-2;
    for name in variables {
        let gradient = after[&format!("{name}@GRAD")].floats();
        for (at, got) in gradient.into_iter().enumerate() {
            let loss_at = |delta: f32| {
                let mut env = start.clone();
                let Some(Cell::Value(regatta_tensor::Value::Dense(t))) = env.get_mut(*name) else {
                    panic!("{name} is not dense");
                };
                t.f32_mut()[at] += delta;
                run(env)[loss].floats()[0]
            };
            let want = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
            assert!((got - want).abs() < 2e-3, "d{name}[{at}] is {got}, differences give {want}");
        }
    }
}

/// Three examples for every input, and something for every parameter.
fn values(program: &Program) -> Env {
    let mut env = Env::new();
    for var in program.block().vars.values() {
        if var.origin == regatta_ir::Origin::Temp {
            continue;
        }
        let value: regatta_tensor::Value = if var.ty.layout == regatta_ir::Layout::Ragged {
            let ids = regatta_tensor::Data::U64(vec![1, 7, 7, 2]);
            Ragged::new(ids, vec![0, 2, 3, 4]).unwrap().into()
        } else {
            let rng = Rng::named(3, &var.name);
            let shape: Vec<usize> =
                var.ty.shape.iter().map(|&d| usize::try_from(d).unwrap_or(3)).collect();
            let n: usize = shape.iter().product();
            let floats = (0..n as u64).map(|i| rng.unit_f32(i) * 1.6 - 0.8).collect();
            Tensor::from_f32(&shape, floats).unwrap().into()
        };
        env.insert(var.name.clone(), Cell::Value(value));
    }
    env
}
