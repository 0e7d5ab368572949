use expect_test::expect;
use regatta_ir::{Embedding, Fc, ParamAttr, Program, Programs};
use regatta_ops::builder;
use regatta_optim::{LossScaling, Rule, Sgd};
use regatta_passes::{
    AmpConfig, Backward, Clip, FuseAllReduce, Optimizer, RecomputeConfig, amp, backward,
    data_parallel, fuse_all_reduce, minimize, split_batch,
};

use crate::models::{added, inputs, parse, squared_loss, two_layers};

const LOSS: &str = "mean_0.tmp_0";

fn refusal(program: &Program, config: &AmpConfig) -> String {
    amp(program, config).unwrap_err().to_string()
}

#[test]
fn before_and_after() {
    let before = two_layers().main;
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
          Out: fc_0.tmp_0 = fc(X: x, W: w0) {act: ""}
          Out: relu_0.tmp_0 = relu(X: fc_0.tmp_0)
          Out: fc_1.tmp_0 = fc(X: relu_0.tmp_0, W: w1) {act: ""}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
    "#]]
    .assert_eq(&before.to_string());
    let after = amp(&before, &AmpConfig::bf16()).unwrap();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param w0: f32[2, 3]
          param w1: f32[3, 1]
          var x@BF16: bf16[-1, 2] stop_gradient
          var w0@BF16: bf16[2, 3]
          var fc_0.tmp_0: bf16[-1, 3]
          var relu_0.tmp_0: bf16[-1, 3]
          var w1@BF16: bf16[3, 1]
          var fc_1.tmp_0: bf16[-1, 1]
          var fc_1.tmp_0@F32: f32[-1, 1]
          var square_error_cost_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          Out: x@BF16 = cast(X: x) {dtype: "bf16"}
          Out: w0@BF16 = cast(X: w0) {dtype: "bf16"}
          Out: fc_0.tmp_0 = fc(X: x@BF16, W: w0@BF16) {act: ""}
          Out: relu_0.tmp_0 = relu(X: fc_0.tmp_0)
          Out: w1@BF16 = cast(X: w1) {dtype: "bf16"}
          Out: fc_1.tmp_0 = fc(X: relu_0.tmp_0, W: w1@BF16) {act: ""}
          Out: fc_1.tmp_0@F32 = cast(X: fc_1.tmp_0) {dtype: "f32"}
          Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0@F32, Label: y)
          Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0)
    "#]]
    .assert_eq(&after.to_string());
}

#[test]
fn gradients_have_the_types_of_their_variables() {
    let program = amp(&two_layers().main, &AmpConfig::fp16()).unwrap();
    let (after, grads) = backward(&program, LOSS, &Backward::default()).unwrap();
    assert!(grads.iter().all(|g| after.block().vars[&g.grad].ty.to_string().starts_with("f32")));
    expect![[r#"
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_1.tmp_0@F32@GRAD: f32[-1, 1]
        var fc_1.tmp_0@GRAD: f16[-1, 1]
        var relu_0.tmp_0@GRAD: f16[-1, 3]
        var w1@F16@GRAD: f16[3, 1]
        var w1@GRAD: f32[3, 1]
        var fc_0.tmp_0@GRAD: f16[-1, 3]
        var w0@F16@GRAD: f16[2, 3]
        var w0@GRAD: f32[2, 3]
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: square_error_cost_0.tmp_0@GRAD = mean_grad(X: square_error_cost_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: fc_1.tmp_0@F32@GRAD = square_error_cost_grad(X: fc_1.tmp_0@F32, Label: y, dOut: square_error_cost_0.tmp_0@GRAD) @backward
        Out: fc_1.tmp_0@GRAD = cast(X: fc_1.tmp_0@F32@GRAD) {dtype: "f16"} @backward
        dX: relu_0.tmp_0@GRAD, dW: w1@F16@GRAD = fc_grad(X: relu_0.tmp_0, W: w1@F16, Out: fc_1.tmp_0, dOut: fc_1.tmp_0@GRAD) {act: ""} @backward
        Out: w1@GRAD = cast(X: w1@F16@GRAD) {dtype: "f32"} @backward
        dX: fc_0.tmp_0@GRAD = relu_grad(Out: relu_0.tmp_0, dOut: relu_0.tmp_0@GRAD) @backward
        dW: w0@F16@GRAD = fc_grad(X: x@F16, W: w0@F16, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
        Out: w0@GRAD = cast(X: w0@F16@GRAD) {dtype: "f32"} @backward
    "#]].assert_eq(&added(&program, &after));
}

/// An embedding beside a dense input, a product, a sum with an input: `follows` decides the rest.
fn mixed() -> Programs {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 4);
    let id = b.sparse_data("id").unwrap();
    let spec = Embedding { table: ParamAttr::weight().named("table"), ..Embedding::new(100, 4) };
    let e = b.embedding(&[&id], &spec).unwrap();
    let e = b.reshape(&e, &[-1, 4]).unwrap();
    let weight = ParamAttr::weight().named("w");
    let h = b.fc_with(&e, &Fc { weight, ..Fc::new(4) }).unwrap();
    let h = b.relu(&h).unwrap();
    let sum = b.elementwise_add(&h, &x).unwrap();
    let out = b.fc(&sum, 1, regatta_ir::Act::None).unwrap();
    squared_loss(&mut b, &out, &y);
    b.finish()
}

#[test]
fn ops_follow_their_inputs_and_f32_wins() {
    let before = mixed().main;
    let after = amp(&before, &AmpConfig::bf16()).unwrap();
    expect![[r#"
        var reshape_0.tmp_0@BF16: bf16[-1, 4]
        var w@BF16: bf16[4, 4]
        var fc_0.b_0@BF16: bf16[4]
        var fc_0.tmp_0: bf16[-1, 4]
        var relu_0.tmp_0: bf16[-1, 4]
        var relu_0.tmp_0@F32: f32[-1, 4]
        var elementwise_add_0.tmp_0@BF16: bf16[-1, 4]
        var fc_1.w_0@BF16: bf16[4, 1]
        var fc_1.b_0@BF16: bf16[1]
        var fc_1.tmp_0: bf16[-1, 1]
        var fc_1.tmp_0@F32: f32[-1, 1]
        Out: reshape_0.tmp_0@BF16 = cast(X: reshape_0.tmp_0) {dtype: "bf16"}
        Out: w@BF16 = cast(X: w) {dtype: "bf16"}
        Out: fc_0.b_0@BF16 = cast(X: fc_0.b_0) {dtype: "bf16"}
        Out: fc_0.tmp_0 = fc(X: reshape_0.tmp_0@BF16, W: w@BF16, Bias: fc_0.b_0@BF16) {act: ""}
        Out: relu_0.tmp_0@F32 = cast(X: relu_0.tmp_0) {dtype: "f32"}
        Out: elementwise_add_0.tmp_0 = elementwise_add(X: relu_0.tmp_0@F32, Y: x)
        Out: elementwise_add_0.tmp_0@BF16 = cast(X: elementwise_add_0.tmp_0) {dtype: "bf16"}
        Out: fc_1.w_0@BF16 = cast(X: fc_1.w_0) {dtype: "bf16"}
        Out: fc_1.b_0@BF16 = cast(X: fc_1.b_0) {dtype: "bf16"}
        Out: fc_1.tmp_0 = fc(X: elementwise_add_0.tmp_0@BF16, W: fc_1.w_0@BF16, Bias: fc_1.b_0@BF16) {act: ""}
        Out: fc_1.tmp_0@F32 = cast(X: fc_1.tmp_0) {dtype: "f32"}
        Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0@F32, Label: y)
    "#]].assert_eq(&added(&before, &after));
}

#[test]
fn pure_mode_converts_all_but_the_black_list() {
    let before = mixed().main;
    let after = amp(&before, &AmpConfig { pure: true, ..AmpConfig::bf16() }).unwrap();
    expect![[r#"
        var embedding_0.tmp_0@BF16: bf16[-1, 1, 4]
        var reshape_0.tmp_0: bf16[-1, 4]
        var w@BF16: bf16[4, 4]
        var fc_0.b_0@BF16: bf16[4]
        var fc_0.tmp_0: bf16[-1, 4]
        var relu_0.tmp_0: bf16[-1, 4]
        var x@BF16: bf16[-1, 4] stop_gradient
        var elementwise_add_0.tmp_0: bf16[-1, 4]
        var fc_1.w_0@BF16: bf16[4, 1]
        var fc_1.b_0@BF16: bf16[1]
        var fc_1.tmp_0: bf16[-1, 1]
        var fc_1.tmp_0@F32: f32[-1, 1]
        Out: embedding_0.tmp_0@BF16 = cast(X: embedding_0.tmp_0) {dtype: "bf16"}
        Out: reshape_0.tmp_0 = reshape(X: embedding_0.tmp_0@BF16) {shape: [-1, 4]}
        Out: w@BF16 = cast(X: w) {dtype: "bf16"}
        Out: fc_0.b_0@BF16 = cast(X: fc_0.b_0) {dtype: "bf16"}
        Out: fc_0.tmp_0 = fc(X: reshape_0.tmp_0, W: w@BF16, Bias: fc_0.b_0@BF16) {act: ""}
        Out: x@BF16 = cast(X: x) {dtype: "bf16"}
        Out: elementwise_add_0.tmp_0 = elementwise_add(X: relu_0.tmp_0, Y: x@BF16)
        Out: fc_1.w_0@BF16 = cast(X: fc_1.w_0) {dtype: "bf16"}
        Out: fc_1.b_0@BF16 = cast(X: fc_1.b_0) {dtype: "bf16"}
        Out: fc_1.tmp_0 = fc(X: elementwise_add_0.tmp_0, W: fc_1.w_0@BF16, Bias: fc_1.b_0@BF16) {act: ""}
        Out: fc_1.tmp_0@F32 = cast(X: fc_1.tmp_0) {dtype: "f32"}
        Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0@F32, Label: y)
    "#]].assert_eq(&added(&before, &after));
}

#[test]
fn custom_lists_move_ops_and_names_keep_variables() {
    let before = two_layers().main;
    let black = AmpConfig { custom_black_list: vec!["fc".into()], ..AmpConfig::bf16() };
    assert_eq!(amp(&before, &black).unwrap(), before);
    let names = vec!["fc_1.tmp_0".to_string()];
    let named = AmpConfig { custom_black_varnames: names, ..AmpConfig::bf16() };
    expect![[r#"
        var x@BF16: bf16[-1, 2] stop_gradient
        var w0@BF16: bf16[2, 3]
        var fc_0.tmp_0: bf16[-1, 3]
        var relu_0.tmp_0: bf16[-1, 3]
        var relu_0.tmp_0@F32: f32[-1, 3]
        Out: x@BF16 = cast(X: x) {dtype: "bf16"}
        Out: w0@BF16 = cast(X: w0) {dtype: "bf16"}
        Out: fc_0.tmp_0 = fc(X: x@BF16, W: w0@BF16) {act: ""}
        Out: relu_0.tmp_0@F32 = cast(X: relu_0.tmp_0) {dtype: "f32"}
        Out: fc_1.tmp_0 = fc(X: relu_0.tmp_0@F32, W: w1) {act: ""}
    "#]]
    .assert_eq(&added(&before, &amp(&before, &named).unwrap()));
    let white =
        AmpConfig { custom_white_list: vec!["square_error_cost".into()], ..AmpConfig::bf16() };
    expect![[r#"
        var x@BF16: bf16[-1, 2] stop_gradient
        var w0@BF16: bf16[2, 3]
        var fc_0.tmp_0: bf16[-1, 3]
        var relu_0.tmp_0: bf16[-1, 3]
        var w1@BF16: bf16[3, 1]
        var fc_1.tmp_0: bf16[-1, 1]
        var y@BF16: bf16[-1, 1] stop_gradient
        var square_error_cost_0.tmp_0: bf16[-1, 1]
        var square_error_cost_0.tmp_0@F32: f32[-1, 1]
        Out: x@BF16 = cast(X: x) {dtype: "bf16"}
        Out: w0@BF16 = cast(X: w0) {dtype: "bf16"}
        Out: fc_0.tmp_0 = fc(X: x@BF16, W: w0@BF16) {act: ""}
        Out: w1@BF16 = cast(X: w1) {dtype: "bf16"}
        Out: fc_1.tmp_0 = fc(X: relu_0.tmp_0, W: w1@BF16) {act: ""}
        Out: y@BF16 = cast(X: y) {dtype: "bf16"}
        Out: square_error_cost_0.tmp_0 = square_error_cost(X: fc_1.tmp_0, Label: y@BF16)
        Out: square_error_cost_0.tmp_0@F32 = cast(X: square_error_cost_0.tmp_0) {dtype: "f32"}
        Out: mean_0.tmp_0 = mean(X: square_error_cost_0.tmp_0@F32)
    "#]]
    .assert_eq(&added(&before, &amp(&before, &white).unwrap()));
}

#[test]
fn loss_scaling_stands_around_the_gradients() {
    let clip = Some(Clip::GlobalNorm(1.0));
    let sgd = || Optimizer { clip, ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1) };
    let plain =
        Optimizer { amp: Some(AmpConfig { loss_scaling: None, ..AmpConfig::fp16() }), ..sgd() };
    let scaled = Optimizer { amp: Some(AmpConfig::fp16()), ..sgd() };
    let what = Backward::default();
    let before = minimize(&two_layers(), LOSS, &plain, &what).unwrap().programs;
    let after = minimize(&two_layers(), LOSS, &scaled, &what).unwrap().programs;
    expect![[r#"
        persist @LOSS_SCALING@: f32[1]
        persist @LOSS_SCALING_GOOD_STEPS@: i64[1]
        persist @LOSS_SCALING_BAD_STEPS@: i64[1]
        var mean_0.tmp_0@GRAD@UNSCALED: f32[1]
        var @FOUND_INF@: f32[1]
        var w0@GRAD@UNSCALED: f32[2, 3]
        var w1@GRAD@UNSCALED: f32[3, 1]
        var w0@GRAD@UNSCALED@CLIP: f32[2, 3]
        var w1@GRAD@UNSCALED@CLIP: f32[3, 1]
        Out: mean_0.tmp_0@GRAD@UNSCALED = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        Out: mean_0.tmp_0@GRAD = scale_by(X: mean_0.tmp_0@GRAD@UNSCALED, Factor: @LOSS_SCALING@) @backward
        FoundInf: @FOUND_INF@ = check_finite(X: [w0@GRAD, w1@GRAD]) @optimize
        Out: w0@GRAD@UNSCALED = unscale(X: w0@GRAD, Scale: @LOSS_SCALING@) @optimize
        Out: w1@GRAD@UNSCALED = unscale(X: w1@GRAD, Scale: @LOSS_SCALING@) @optimize
        Out: global_norm_factor@CLIP = global_norm_factor(X: [w0@GRAD@UNSCALED, w1@GRAD@UNSCALED]) {clip_norm: 1.0} @optimize
        Out: w0@GRAD@UNSCALED@CLIP = scale_by(X: w0@GRAD@UNSCALED, Factor: global_norm_factor@CLIP) @optimize
        Out: w1@GRAD@UNSCALED@CLIP = scale_by(X: w1@GRAD@UNSCALED, Factor: global_norm_factor@CLIP) @optimize
        ParamOut: w0 = sgd(Param: w0, Grad: w0@GRAD@UNSCALED@CLIP, LearningRate: learning_rate_0, Skip: @FOUND_INF@) {lr_scale: 1.0} @optimize
        ParamOut: w1 = sgd(Param: w1, Grad: w1@GRAD@UNSCALED@CLIP, LearningRate: learning_rate_0, Skip: @FOUND_INF@) {lr_scale: 1.0} @optimize
        ScaleOut: @LOSS_SCALING@, GoodStepsOut: @LOSS_SCALING_GOOD_STEPS@, BadStepsOut: @LOSS_SCALING_BAD_STEPS@ = update_loss_scaling(FoundInf: @FOUND_INF@, Scale: @LOSS_SCALING@, GoodSteps: @LOSS_SCALING_GOOD_STEPS@, BadSteps: @LOSS_SCALING_BAD_STEPS@) {decr_every_n_nan_or_inf: 2, decr_ratio: 0.8, incr_every_n_steps: 1000, incr_ratio: 2.0} @optimize
    "#]].assert_eq(&added(&before.main, &after.main));
    expect![[r#"
        persist @LOSS_SCALING@: f32[1]
        persist @LOSS_SCALING_GOOD_STEPS@: i64[1]
        persist @LOSS_SCALING_BAD_STEPS@: i64[1]
        Out: @LOSS_SCALING@ = fill_constant() {dtype: "f32", shape: [1], value: 32768.0}
        Out: @LOSS_SCALING_GOOD_STEPS@ = fill_constant() {dtype: "i64", shape: [1], value: 0.0}
        Out: @LOSS_SCALING_BAD_STEPS@ = fill_constant() {dtype: "i64", shape: [1], value: 0.0}
    "#]]
    .assert_eq(&added(&before.startup, &after.startup));
}

#[test]
fn a_fixed_factor_has_no_counters() {
    let fixed = LossScaling { dynamic: false, ..LossScaling::default() };
    let amp = AmpConfig { loss_scaling: Some(fixed), ..AmpConfig::fp16() };
    let optimizer = Optimizer { amp: Some(amp), ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1) };
    let made = minimize(&two_layers(), LOSS, &optimizer, &Backward::default()).unwrap();
    let text = made.programs.main.to_string();
    assert!(text.contains("check_finite") && text.contains("Skip: @FOUND_INF@"), "{text}");
    assert!(!text.contains("update_loss_scaling") && !text.contains("STEPS"), "{text}");
}

/// Everything at once: gradients of ranks are added up before they are looked at, so that all ranks
/// leave out the same steps.
#[test]
fn gradients_of_ranks_are_added_up_before_they_are_checked() {
    let optimizer = Optimizer {
        amp: Some(AmpConfig::fp16()),
        recompute: Some(RecomputeConfig {
            checkpoints: vec!["fc_0.tmp_0".into()],
            ..RecomputeConfig::default()
        }),
        ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1)
    };
    let made = minimize(&two_layers(), LOSS, &optimizer, &Backward::default()).unwrap();
    let ranks = data_parallel(&made.programs.main).unwrap();
    let fused = fuse_all_reduce(&ranks, &FuseAllReduce::default()).unwrap();
    let at = |kind: &str| fused.block().ops.iter().position(|op| op.kind == kind).unwrap();
    assert!(at("all_reduce_wait") < at("check_finite"));
    let scales = |op: &&regatta_ir::Op| op.kind.starts_with("scale_by");
    assert_eq!(fused.block().ops.iter().filter(scales).count(), 2);
    split_batch(&fused).unwrap();
}

#[test]
fn wrong_lists_are_refused() {
    let program = two_layers().main;
    let white =
        |kind: &str| AmpConfig { custom_white_list: vec![kind.into()], ..AmpConfig::bf16() };
    expect!["amp: custom_white_list: there is no op 'matmull'; did you mean 'matmul'?"]
        .assert_eq(&refusal(&program, &white("matmull")));
    expect!["amp: custom_white_list: op embedding cannot be in 16 bits: its table would be converted whole at every step; what it looks up is converted"].assert_eq(&refusal(&program, &white("embedding")));
    let both = AmpConfig { custom_black_list: vec!["relu".into()], ..white("relu") };
    expect!["amp: op relu is on both custom lists"].assert_eq(&refusal(&program, &both));
    let names = vec!["fc_9.tmp_0".to_string()];
    let unknown = AmpConfig { custom_black_varnames: names, ..AmpConfig::bf16() };
    expect!["op amp: custom_black_varnames: variable 'fc_9.tmp_0' is not declared in this program"]
        .assert_eq(&refusal(&program, &unknown));
}

#[test]
fn what_is_rewritten_already_is_refused() {
    let half = amp(&two_layers().main, &AmpConfig::bf16()).unwrap();
    expect!["amp: op cast computes in 16 bits already"]
        .assert_eq(&refusal(&half, &AmpConfig::bf16()));
    let (late, _) = backward(&two_layers().main, LOSS, &Backward::default()).unwrap();
    expect!["amp: the program has gradients already (op fill_constant); apply amp first"]
        .assert_eq(&refusal(&late, &AmpConfig::bf16()));
    let bad = LossScaling { decr_ratio: 1.5, ..LossScaling::default() };
    let bad = AmpConfig { loss_scaling: Some(bad), ..AmpConfig::fp16() };
    let optimizer = Optimizer { amp: Some(bad), ..Optimizer::new(Rule::Sgd(Sgd {}), 0.1) };
    let error = minimize(&two_layers(), LOSS, &optimizer, &Backward::default()).unwrap_err();
    expect!["amp: loss scaling: `decr_ratio` is 1.5, expected between 0 and 1"]
        .assert_eq(&error.to_string());
}

#[test]
fn types_of_16_bits_can_be_written_and_read() {
    let program = amp(&two_layers().main, &AmpConfig::fp16()).unwrap();
    assert_eq!(parse(&program.to_string()), program);
}
