//! The strategies of collective training, each as text.

use expect_test::expect;
use regatta_ir::Programs;
use regatta_optim::{Adam, Momentum, Rule, Sgd};
use regatta_passes::{
    Backward, Clip, Dgc, Lamb, Lars, Optimizer, Sharding, data_parallel, dgc, fp16_all_reduce,
    gradient_merge, hierarchical_all_reduce, lamb, lars, local_sgd, minimize, sharding,
    sync_batch_norm,
};

use crate::data_parallel::LOSS;
use crate::models::{added, fc_named, inputs, shared_table, squared_loss, two_layers};

fn sgd() -> Rule {
    Rule::Sgd(Sgd {})
}

fn momentum() -> Rule {
    Rule::Momentum(Momentum::default())
}

fn trained(programs: &Programs, rule: Rule, clip: Option<Clip>) -> Programs {
    let optimizer = Optimizer { clip, ..Optimizer::new(rule, 0.1) };
    minimize(programs, LOSS, &optimizer, &Backward::default()).unwrap().programs
}

fn parallel(programs: &Programs, rule: Rule, clip: Option<Clip>) -> Programs {
    let programs = trained(programs, rule, clip);
    Programs { main: data_parallel(&programs.main).unwrap(), startup: programs.startup }
}

#[test]
fn gradient_merge_before_and_after() {
    let before = parallel(&shared_table(), sgd(), None);
    expect![[r#"
        program main
        block 0
          data user: ragged u64[-1]
          data item: ragged u64[-1]
          param table: f32[100, 4]
          var embedding_0.tmp_0: f32[-1, 1, 4]
          var embedding_1.tmp_0: f32[-1, 1, 4]
          var elementwise_mul_0.tmp_0: f32[-1, 1, 4]
          var mean_0.tmp_0: f32[1]
          var elementwise_mul_0.tmp_0@GRAD: f32[-1, 1, 4]
          var embedding_0.tmp_0@GRAD: f32[-1, 1, 4]
          var embedding_1.tmp_0@GRAD: f32[-1, 1, 4]
          var table@GRAD@PART@0: rows f32[100, 4]
          var table@GRAD@PART@1: rows f32[100, 4]
          var table@GRAD: rows f32[100, 4]
          persist learning_rate_0: f32[1]
          var mean_0.tmp_0@GRAD@WHOLE: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var table@GRAD@COMM: f32[1]
          Out: embedding_0.tmp_0 = embedding(W: table, Ids: user) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: embedding_1.tmp_0 = embedding(W: table, Ids: item) {hash: false, is_sparse: true, padding_idx: -1, pool: "mean"}
          Out: elementwise_mul_0.tmp_0 = elementwise_mul(X: embedding_0.tmp_0, Y: embedding_1.tmp_0)
          Out: mean_0.tmp_0 = mean(X: elementwise_mul_0.tmp_0)
          Out: mean_0.tmp_0@GRAD@WHOLE = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          Out: mean_0.tmp_0@GRAD = scale_by_share(X: mean_0.tmp_0@GRAD@WHOLE) @backward
          dX: elementwise_mul_0.tmp_0@GRAD = mean_grad(X: elementwise_mul_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: embedding_0.tmp_0@GRAD, dY: embedding_1.tmp_0@GRAD = elementwise_mul_grad(X: embedding_0.tmp_0, Y: embedding_1.tmp_0, dOut: elementwise_mul_0.tmp_0@GRAD) @backward
          dW: table@GRAD@PART@0 = embedding_grad(W: table, dOut: embedding_1.tmp_0@GRAD, Ids: item) {hash: false, is_sparse: true, padding_idx: -1, pool: "mean"} @backward
          dW: table@GRAD@PART@1 = embedding_grad(W: table, dOut: embedding_0.tmp_0@GRAD, Ids: user) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"} @backward
          Out: table@GRAD = sum(X: [table@GRAD@PART@0, table@GRAD@PART@1]) @backward
          Handle: table@GRAD@COMM = gather_rows_start(X: table@GRAD) {name: "grads_0"} @optimize
          XOut: table@GRAD = gather_rows_wait(Handle: table@GRAD@COMM, X: table@GRAD) {name: "grads_0"} @optimize
          ParamOut: table = sgd(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&before.main.to_string());
    let after = gradient_merge(&before, true).unwrap();
    expect![[r#"
        program main
        block 0
          data user: ragged u64[-1]
          data item: ragged u64[-1]
          param table: f32[100, 4]
          var embedding_0.tmp_0: f32[-1, 1, 4]
          var embedding_1.tmp_0: f32[-1, 1, 4]
          var elementwise_mul_0.tmp_0: f32[-1, 1, 4]
          var mean_0.tmp_0: f32[1]
          var elementwise_mul_0.tmp_0@GRAD: f32[-1, 1, 4]
          var embedding_0.tmp_0@GRAD: f32[-1, 1, 4]
          var embedding_1.tmp_0@GRAD: f32[-1, 1, 4]
          var table@GRAD@PART@0: rows f32[100, 4]
          var table@GRAD@PART@1: rows f32[100, 4]
          var table@GRAD: rows f32[100, 4]
          var mean_0.tmp_0@GRAD@WHOLE: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          persist table@GRAD@MERGED: rows f32[100, 4]
          persist gradient_merge@COUNT: f32[1]
          var gradient_merge@ONE: f32[1]
          Out: embedding_0.tmp_0 = embedding(W: table, Ids: user) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: embedding_1.tmp_0 = embedding(W: table, Ids: item) {hash: false, is_sparse: true, padding_idx: -1, pool: "mean"}
          Out: elementwise_mul_0.tmp_0 = elementwise_mul(X: embedding_0.tmp_0, Y: embedding_1.tmp_0)
          Out: mean_0.tmp_0 = mean(X: elementwise_mul_0.tmp_0)
          Out: mean_0.tmp_0@GRAD@WHOLE = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          Out: mean_0.tmp_0@GRAD = scale_by_share(X: mean_0.tmp_0@GRAD@WHOLE) @backward
          dX: elementwise_mul_0.tmp_0@GRAD = mean_grad(X: elementwise_mul_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dX: embedding_0.tmp_0@GRAD, dY: embedding_1.tmp_0@GRAD = elementwise_mul_grad(X: embedding_0.tmp_0, Y: embedding_1.tmp_0, dOut: elementwise_mul_0.tmp_0@GRAD) @backward
          dW: table@GRAD@PART@0 = embedding_grad(W: table, dOut: embedding_1.tmp_0@GRAD, Ids: item) {hash: false, is_sparse: true, padding_idx: -1, pool: "mean"} @backward
          dW: table@GRAD@PART@1 = embedding_grad(W: table, dOut: embedding_0.tmp_0@GRAD, Ids: user) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"} @backward
          Out: table@GRAD = sum(X: [table@GRAD@PART@0, table@GRAD@PART@1]) @backward
          SumOut: table@GRAD@MERGED = accumulate(X: table@GRAD, Sum: table@GRAD@MERGED) @optimize
          Out: gradient_merge@ONE = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @optimize
          SumOut: gradient_merge@COUNT = accumulate(X: gradient_merge@ONE, Sum: gradient_merge@COUNT) @optimize
    "#]].assert_eq(&after.each.main.to_string());
    expect![[r#"
        program merged_update
        block 0
          param table: f32[100, 4]
          persist learning_rate_0: f32[1]
          var table@GRAD@COMM: f32[1]
          persist gradient_merge@COUNT: f32[1]
          persist table@GRAD@MERGED: rows f32[100, 4]
          var table@GRAD: rows f32[100, 4]
          Out: table@GRAD, SumOut: table@GRAD@MERGED = take_merged(Sum: table@GRAD@MERGED, Count: gradient_merge@COUNT) {avg: true} @optimize
          Handle: table@GRAD@COMM = gather_rows_start(X: table@GRAD) {name: "grads_0"} @optimize
          XOut: table@GRAD = gather_rows_wait(Handle: table@GRAD@COMM, X: table@GRAD) {name: "grads_0"} @optimize
          ParamOut: table = sgd(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
          Out: gradient_merge@COUNT = fill_constant() {dtype: "f32", shape: [1], value: 0.0} @optimize
    "#]].assert_eq(&after.then.to_string());
    let dense = parallel(&two_layers(), sgd(), None);
    let after = gradient_merge(&dense, false).unwrap();
    expect![[r#"
        persist w1@GRAD@MERGED: f32[3, 1]
        persist w0@GRAD@MERGED: f32[2, 3]
        persist gradient_merge@COUNT: f32[1]
        Out: w1@GRAD@MERGED = fill_constant() {dtype: "f32", shape: [3, 1], value: 0.0}
        Out: w0@GRAD@MERGED = fill_constant() {dtype: "f32", shape: [2, 3], value: 0.0}
        Out: gradient_merge@COUNT = fill_constant() {dtype: "f32", shape: [1], value: 0.0}
    "#]]
    .assert_eq(&added(&dense.startup, &after.each.startup));
    expect!["gradient_merge: the program updates nothing; call minimize first"]
        .assert_eq(&gradient_merge(&two_layers(), true).unwrap_err().to_string());
}

#[test]
fn local_sgd_before_and_after() {
    let before = trained(&two_layers(), momentum(), None);
    let after = local_sgd(&before, 4).unwrap();
    assert_eq!(after.each.main, before.main);
    expect![[r#"
        persist w0@SNAPSHOT: f32[2, 3]
        persist w1@SNAPSHOT: f32[3, 1]
        Out: w0@SNAPSHOT = assign(X: w0)
        Out: w1@SNAPSHOT = assign(X: w1)
    "#]]
    .assert_eq(&added(&before.startup, &after.each.startup));
    expect![[r#"
        program local_sgd_sync
        block 0
          param w0: f32[2, 3]
          persist w0@SNAPSHOT: f32[2, 3]
          param w1: f32[3, 1]
          persist w1@SNAPSHOT: f32[3, 1]
          var w0@DELTA: f32[2, 3]
          var w0@DELTA@COMM: f32[1]
          var w1@DELTA: f32[3, 1]
          var w1@DELTA@COMM: f32[1]
          Out: w0@DELTA = snapshot_delta(Snapshot: w0@SNAPSHOT, Param: w0) {by_row: false} @optimize
          Handle: w0@DELTA@COMM = all_reduce_start(X: w0@DELTA) {name: "w0@DELTA", node_ranks: 0, wire: "f32"} @optimize
          Out: w1@DELTA = snapshot_delta(Snapshot: w1@SNAPSHOT, Param: w1) {by_row: false} @optimize
          Handle: w1@DELTA@COMM = all_reduce_start(X: w1@DELTA) {name: "w1@DELTA", node_ranks: 0, wire: "f32"} @optimize
          XOut: w0@DELTA = all_reduce_wait(Handle: w0@DELTA@COMM, X: w0@DELTA) {name: "w0@DELTA"} @optimize
          ParamOut: w0, SnapshotOut: w0@SNAPSHOT = apply_delta(Delta: w0@DELTA, Param: w0, Snapshot: w0@SNAPSHOT) {scale: 0.25} @optimize
          XOut: w1@DELTA = all_reduce_wait(Handle: w1@DELTA@COMM, X: w1@DELTA) {name: "w1@DELTA"} @optimize
          ParamOut: w1, SnapshotOut: w1@SNAPSHOT = apply_delta(Delta: w1@DELTA, Param: w1, Snapshot: w1@SNAPSHOT) {scale: 0.25} @optimize
    "#]].assert_eq(&after.then.to_string());
    let table = local_sgd(&trained(&shared_table(), sgd(), None), 2).unwrap();
    expect![[r#"
        program local_sgd_sync
        block 0
          param table: f32[100, 4]
          persist table@SNAPSHOT: f32[100, 4]
          var table@DELTA: rows f32[100, 4]
          var table@DELTA@COMM: f32[1]
          Out: table@DELTA = snapshot_delta(Snapshot: table@SNAPSHOT, Param: table) {by_row: true} @optimize
          Handle: table@DELTA@COMM = gather_rows_start(X: table@DELTA) {name: "table@DELTA"} @optimize
          XOut: table@DELTA = gather_rows_wait(Handle: table@DELTA@COMM, X: table@DELTA) {name: "table@DELTA"} @optimize
          ParamOut: table, SnapshotOut: table@SNAPSHOT = apply_delta(Delta: table@DELTA, Param: table, Snapshot: table@SNAPSHOT) {scale: 0.5} @optimize
    "#]].assert_eq(&table.then.to_string());
    let adam = trained(&two_layers(), Rule::Adam(Adam::default()), None);
    expect!["local_sgd: 'w0' is updated by adam, but averages of parameters need sgd or momentum"]
        .assert_eq(&local_sgd(&adam, 2).unwrap_err().to_string());
}

#[test]
fn dgc_before_and_after() {
    let before = parallel(&two_layers(), momentum(), None);
    let how =
        Dgc { rampup_begin_step: 10, rampup_step: 4, sparsity: vec![0.75, 0.99], min_elements: 4 };
    let after = dgc(&before, &how).unwrap();
    // w1 has 3 elements and travels whole.
    expect![[r#"
        persist w0_dgc_u_0: f32[2, 3]
        persist w0_dgc_v_0: f32[2, 3]
        Handle: w0@GRAD@COMM, UOut: w0_dgc_u_0, VOut: w0_dgc_v_0 = dgc_start(Grad: w0@GRAD, U: w0_dgc_u_0, V: w0_dgc_v_0) {mu: 0.9, name: "grads_1", nesterov: false, rampup_begin_step: 10, rampup_step: 4, sparsity: [0.75, 0.99]} @optimize
        XOut: w0@GRAD = dgc_wait(Handle: w0@GRAD@COMM, X: w0@GRAD) {name: "grads_1"} @optimize
        ParamOut: w0, VelocityOut: w0_velocity_0 = dgc_momentum(Param: w0, Grad: w0@GRAD, LearningRate: learning_rate_0, Velocity: w0_velocity_0) {lr_scale: 1.0, mu: 0.9, nesterov: false, rampup_begin_step: 10} @optimize
    "#]].assert_eq(&added(&before.main, &after.main));
    expect![[r#"
        persist w0_dgc_u_0: f32[2, 3]
        persist w0_dgc_v_0: f32[2, 3]
        Out: w0_dgc_u_0 = fill_constant() {dtype: "f32", shape: [2, 3], value: 0.0}
        Out: w0_dgc_v_0 = fill_constant() {dtype: "f32", shape: [2, 3], value: 0.0}
    "#]]
    .assert_eq(&added(&before.startup, &after.startup));
    let refused = |programs: &Programs, how: &Dgc| dgc(programs, how).unwrap_err().to_string();
    expect!["dgc: no dense parameter has 16384 elements or more, so nothing would change"]
        .assert_eq(&refused(&before, &Dgc::default()));
    expect!["dgc: 'w0' is updated by sgd, but dgc needs momentum"]
        .assert_eq(&refused(&parallel(&two_layers(), sgd(), None), &how));
    let clipped = parallel(&two_layers(), momentum(), Some(Clip::Norm(1.0)));
    expect!["dgc: the program limits gradients (op clip_by_norm), but what dgc sends are entries of several steps; leave out the limit or dgc"].assert_eq(&refused(&clipped, &how));
}

#[test]
fn lars_and_lamb_before_and_after() {
    let before = trained(&two_layers(), momentum(), None).main;
    let how = Lars { coeff: 0.001, weight_decay: 0.0005, epsilon: 0.0, exclude: vec!["w1".into()] };
    expect![[r#"
        ParamOut: w0, StatesOut: w0_velocity_0 = lars_momentum(Param: w0, Grad: w0@GRAD, LearningRate: learning_rate_0, States: w0_velocity_0) {coeff: 0.001, epsilon: 0.0, lr_scale: 1.0, mu: 0.9, weight_decay: 0.0005} @optimize
        ParamOut: w1, StatesOut: w1_velocity_0 = lars_momentum(Param: w1, Grad: w1@GRAD, LearningRate: learning_rate_0, States: w1_velocity_0) {coeff: 0.001, epsilon: 0.0, lr_scale: 1.0, mu: 0.9, weight_decay: 0.0} @optimize
    "#]].assert_eq(&added(&before, &lars(&before, &how).unwrap()));
    let how = Lamb { weight_decay: 0.01, exclude: vec!["0".into()] };
    expect!["lamb: 'w0' is updated by momentum, but lamb needs adam"]
        .assert_eq(&lamb(&before, &how).unwrap_err().to_string());
    let before = trained(&two_layers(), Rule::Adam(Adam::default()), None).main;
    expect![[r#"
        ParamOut: w0, StatesOut: [w0_moment1_0, w0_moment2_0, w0_beta1_pow_0, w0_beta2_pow_0] = lamb(Param: w0, Grad: w0@GRAD, LearningRate: learning_rate_0, States: [w0_moment1_0, w0_moment2_0, w0_beta1_pow_0, w0_beta2_pow_0]) {beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lr_scale: 1.0, weight_decay: 0.0} @optimize
        ParamOut: w1, StatesOut: [w1_moment1_0, w1_moment2_0, w1_beta1_pow_0, w1_beta2_pow_0] = lamb(Param: w1, Grad: w1@GRAD, LearningRate: learning_rate_0, States: [w1_moment1_0, w1_moment2_0, w1_beta1_pow_0, w1_beta2_pow_0]) {beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lr_scale: 1.0, weight_decay: 0.01} @optimize
    "#]].assert_eq(&added(&before, &lamb(&before, &how).unwrap()));
}

#[test]
fn ways_of_all_reduce_before_and_after() {
    let before = parallel(&two_layers(), sgd(), None).main;
    expect![[r#"
        Handle: w1@GRAD@COMM = all_reduce_start(X: w1@GRAD) {name: "grads_0", node_ranks: 0, wire: "f16"} @optimize
        Handle: w0@GRAD@COMM = all_reduce_start(X: w0@GRAD) {name: "grads_1", node_ranks: 0, wire: "f16"} @optimize
    "#]].assert_eq(&added(&before, &fp16_all_reduce(&before).unwrap()));
    expect![[r#"
        Handle: w1@GRAD@COMM = all_reduce_start(X: w1@GRAD) {name: "grads_0", node_ranks: 4, wire: "f32"} @optimize
        Handle: w0@GRAD@COMM = all_reduce_start(X: w0@GRAD) {name: "grads_1", node_ranks: 4, wire: "f32"} @optimize
    "#]].assert_eq(&added(&before, &hierarchical_all_reduce(&before, 8, 4).unwrap()));
    let refused = |ranks, node| hierarchical_all_reduce(&before, ranks, node).unwrap_err();
    expect!["hierarchical_all_reduce: 6 ranks cannot be divided into several groups of 4 (hierarchical_allreduce_inter_nranks)"].assert_eq(&refused(6, 4).to_string());
    let alone = trained(&two_layers(), sgd(), None).main;
    expect!["fp16_all_reduce: the program all-reduces nothing; apply data_parallel first"]
        .assert_eq(&fp16_all_reduce(&alone).unwrap_err().to_string());
}

#[test]
fn sharding_before_and_after() {
    let before = parallel(&two_layers(), momentum(), Some(Clip::Norm(1.0)));
    for stage in [1, 2] {
        let after = sharding(&before, Sharding { ranks: 2, rank: 1, stage }).unwrap();
        match stage {
            1 => expect![[r#"
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
                  var w0@GRAD@CLIP: f32[2, 3]
                  var w1@GRAD@CLIP: f32[3, 1]
                  persist learning_rate_0: f32[1]
                  persist w1_velocity_0: f32[3, 1]
                  var mean_0.tmp_0@GRAD@WHOLE: f32[1]
                  var mean_0.tmp_0@GRAD: f32[1]
                  var w0@GRAD@COMM: f32[1]
                  var w1@GRAD@COMM: f32[1]
                  var w0@SHARD: f32[1]
                  var w1@SHARD: f32[1]
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
                  Out: w0@GRAD@CLIP = clip_by_norm(X: w0@GRAD) {max_norm: 1.0} @optimize
                  XOut: w1@GRAD = all_reduce_wait(Handle: w1@GRAD@COMM, X: w1@GRAD) {name: "grads_0"} @optimize
                  Out: w1@GRAD@CLIP = clip_by_norm(X: w1@GRAD) {max_norm: 1.0} @optimize
                  ParamOut: w1, StatesOut: w1_velocity_0 = momentum(Param: w1, Grad: w1@GRAD@CLIP, LearningRate: learning_rate_0, States: w1_velocity_0) {lr_scale: 1.0, mu: 0.9, nesterov: false} @optimize
                  Handle: w0@SHARD = broadcast_start(X: w0) {name: "w0@SHARD", root: 0} @optimize
                  Handle: w1@SHARD = broadcast_start(X: w1) {name: "w1@SHARD", root: 1} @optimize
                  XOut: w0 = broadcast_wait(Handle: w0@SHARD, X: w0) {name: "w0@SHARD"} @optimize
                  XOut: w1 = broadcast_wait(Handle: w1@SHARD, X: w1) {name: "w1@SHARD"} @optimize
            "#]],
            _ => expect![[r#"
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
                  var w1@GRAD@CLIP: f32[3, 1]
                  persist learning_rate_0: f32[1]
                  persist w1_velocity_0: f32[3, 1]
                  var mean_0.tmp_0@GRAD@WHOLE: f32[1]
                  var mean_0.tmp_0@GRAD: f32[1]
                  var w0@GRAD@COMM: f32[1]
                  var w1@GRAD@COMM: f32[1]
                  var w0@SHARD: f32[1]
                  var w1@SHARD: f32[1]
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
                  Handle: w1@GRAD@COMM = reduce_start(X: w1@GRAD) {name: "grads_0", root: 1} @optimize
                  dX: fc_0.tmp_0@GRAD = relu_grad(Out: relu_0.tmp_0, dOut: relu_0.tmp_0@GRAD) @backward
                  dW: w0@GRAD = fc_grad(X: x, W: w0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
                  Handle: w0@GRAD@COMM = reduce_start(X: w0@GRAD) {name: "grads_1", root: 0} @optimize
                  XOut: w0@GRAD = reduce_wait(Handle: w0@GRAD@COMM, X: w0@GRAD) {name: "grads_1"} @optimize
                  XOut: w1@GRAD = reduce_wait(Handle: w1@GRAD@COMM, X: w1@GRAD) {name: "grads_0"} @optimize
                  Out: w1@GRAD@CLIP = clip_by_norm(X: w1@GRAD) {max_norm: 1.0} @optimize
                  ParamOut: w1, StatesOut: w1_velocity_0 = momentum(Param: w1, Grad: w1@GRAD@CLIP, LearningRate: learning_rate_0, States: w1_velocity_0) {lr_scale: 1.0, mu: 0.9, nesterov: false} @optimize
                  Handle: w0@SHARD = broadcast_start(X: w0) {name: "w0@SHARD", root: 0} @optimize
                  Handle: w1@SHARD = broadcast_start(X: w1) {name: "w1@SHARD", root: 1} @optimize
                  XOut: w0 = broadcast_wait(Handle: w0@SHARD, X: w0) {name: "w0@SHARD"} @optimize
                  XOut: w1 = broadcast_wait(Handle: w1@SHARD, X: w1) {name: "w1@SHARD"} @optimize
            "#]],
        }
        .assert_eq(&after.main.to_string());
        // Velocities of w0 belong to rank 0.
        assert!(!after.startup.to_string().contains("w0_velocity_0"));
        assert!(after.startup.to_string().contains("w1_velocity_0"));
    }
    let table = parallel(&shared_table(), sgd(), None);
    let after = sharding(&table, Sharding { ranks: 2, rank: 0, stage: 2 }).unwrap();
    expect![[r#"
        var table@SHARD: f32[1]
        Handle: table@SHARD = broadcast_rows_start(Param: table, Grad: table@GRAD) {name: "table@SHARD", root: 0} @optimize
        ParamOut: table = broadcast_rows_wait(Handle: table@SHARD, Grad: table@GRAD, Param: table) {name: "table@SHARD"} @optimize
    "#]].assert_eq(&added(&table.main, &after.main));
    let refused = |programs: &Programs, stage| {
        sharding(programs, Sharding { ranks: 2, rank: 0, stage }).unwrap_err().to_string()
    };
    expect!["sharding: there is no stage 3; stages are 1 and 2"].assert_eq(&refused(&before, 3));
    expect!["sharding: the program does not exchange gradients; apply data_parallel first"]
        .assert_eq(&refused(&trained(&two_layers(), sgd(), None), 1));
    let clipped = parallel(&two_layers(), momentum(), Some(Clip::GlobalNorm(1.0)));
    expect!["sharding: op global_norm_factor needs all gradients, but in stage 2 each rank has those that it updates; use stage 1"].assert_eq(&refused(&clipped, 2));
}

#[test]
fn sync_batch_norm_before_and_after() {
    let mut b = regatta_ops::builder(1);
    let (x, y) = inputs(&mut b, 2);
    let hidden = fc_named(&mut b, &x, 3, "w0");
    let hidden = b.batch_norm(&hidden, 0.9, 1e-5).unwrap();
    let predicted = fc_named(&mut b, &hidden, 1, "w1");
    squared_loss(&mut b, &predicted, &y);
    let before = trained(&b.finish(), sgd(), None).main;
    expect![[r#"
        Y: batch_norm_0.tmp_0, MeanOut: batch_norm_0.mean, VarianceOut: batch_norm_0.variance, SavedMean: batch_norm_0.tmp_1, SavedInvStd: batch_norm_0.tmp_2 = sync_batch_norm(X: fc_0.tmp_0, Scale: batch_norm_0.w_0, Bias: batch_norm_0.b_0, Mean: batch_norm_0.mean, Variance: batch_norm_0.variance) {data_layout: "NHWC", epsilon: 1e-5, is_test: false, momentum: 0.9, name: "sync_batch_norm_0.tmp_1", use_global_stats: false}
        dX: fc_0.tmp_0@GRAD, dScale: batch_norm_0.w_0@GRAD, dBias: batch_norm_0.b_0@GRAD = sync_batch_norm_grad(X: fc_0.tmp_0, Scale: batch_norm_0.w_0, SavedMean: batch_norm_0.tmp_1, SavedInvStd: batch_norm_0.tmp_2, dY: batch_norm_0.tmp_0@GRAD) {data_layout: "NHWC", epsilon: 1e-5, is_test: false, momentum: 0.9, name: "sync_batch_norm_0.tmp_1", use_global_stats: false} @backward
    "#]].assert_eq(&added(&before, &sync_batch_norm(&before).unwrap()));
}
