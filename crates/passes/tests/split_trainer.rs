//! A training program before and after it is split for parameter servers.

use expect_test::expect;
use regatta_ir::{Act, Embedding, Program, Programs};
use regatta_optim::{Adagrad, Rule, Schedule};
use regatta_passes::{Backward, Optimizer, ServerPartition, minimize, split_server, split_trainer};
use regatta_tensor::DType;

fn click_model(optimizer: &Optimizer, padding: Option<i64>) -> Programs {
    let mut b = regatta_ops::builder(1);
    let user = b.data("user", DType::U64, &[-1, 1]).unwrap();
    let tags = b.sparse_data("tags").unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let mut spec = Embedding { padding_idx: padding, ..Embedding::new(100, 2) };
    spec.table = spec.table.named("table");
    let e = b.embedding(&[&user, &tags], &spec).unwrap();
    let e = b.reshape(&e, &[-1, 4]).unwrap();
    let logits = b.fc(&e, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    minimize(&b.finish(), &loss, optimizer, &Backward::default()).unwrap().programs
}

fn adagrad() -> Optimizer {
    Optimizer::new(Rule::Adagrad(Adagrad::default()), 0.1)
}

#[test]
fn updates_leave_and_what_is_exchanged_is_data() {
    let split = split_trainer(&click_model(&adagrad(), Some(0))).unwrap();
    expect![[r#"
        before the program
          table@PULLED, [user@LOCAL@table, tags@LOCAL@table] = pull_sparse(table, [user, tags]) {dim: 2, padding_idx: 0}
          [fc_0.w_0, fc_0.b_0] = recv()
        program trainer
        block 0
          data label: i64[-1, 1]
          var embedding_0.tmp_0: f32[-1, 2, 2]
          var reshape_0.tmp_0: f32[-1, 4]
          param fc_0.w_0: f32[4, 2]
          param fc_0.b_0: f32[2]
          var fc_0.tmp_0: f32[-1, 2]
          var softmax_with_cross_entropy_0.tmp_0: f32[-1, 1]
          var softmax_with_cross_entropy_0.tmp_1: f32[-1, 2]
          var mean_0.tmp_0: f32[1]
          var mean_0.tmp_0@GRAD: f32[1]
          var softmax_with_cross_entropy_0.tmp_0@GRAD: f32[-1, 1]
          var fc_0.tmp_0@GRAD: f32[-1, 2]
          var reshape_0.tmp_0@GRAD: f32[-1, 4]
          var fc_0.w_0@GRAD: f32[4, 2]
          var fc_0.b_0@GRAD: f32[2]
          var embedding_0.tmp_0@GRAD: f32[-1, 2, 2]
          var table@GRAD: rows f32[-2, 2]
          data table@PULLED: f32[-2, 2]
          data user@LOCAL@table: u64[-1, 1]
          data tags@LOCAL@table: ragged u64[-1]
          Out: embedding_0.tmp_0 = embedding(W: table@PULLED, Ids: [user@LOCAL@table, tags@LOCAL@table]) {hash: false, is_sparse: true, padding_idx: 0, pool: "sum"}
          Out: reshape_0.tmp_0 = reshape(X: embedding_0.tmp_0) {shape: [-1, 4]}
          Out: fc_0.tmp_0 = fc(X: reshape_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Loss: softmax_with_cross_entropy_0.tmp_0, Softmax: softmax_with_cross_entropy_0.tmp_1 = softmax_with_cross_entropy(Logits: fc_0.tmp_0, Label: label) {ignore_index: -100, soft_label: false}
          Out: mean_0.tmp_0 = mean(X: softmax_with_cross_entropy_0.tmp_0)
          Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
          dX: softmax_with_cross_entropy_0.tmp_0@GRAD = mean_grad(X: softmax_with_cross_entropy_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
          dLogits: fc_0.tmp_0@GRAD = softmax_with_cross_entropy_grad(Softmax: softmax_with_cross_entropy_0.tmp_1, Label: label, dLoss: softmax_with_cross_entropy_0.tmp_0@GRAD) {ignore_index: -100, soft_label: false} @backward
          dX: reshape_0.tmp_0@GRAD, dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: reshape_0.tmp_0, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
          Out: embedding_0.tmp_0@GRAD = reshape(X: reshape_0.tmp_0@GRAD) {shape: [-1, 2, 2]} @backward
          dW: table@GRAD = embedding_grad(W: table@PULLED, dOut: embedding_0.tmp_0@GRAD, Ids: [user@LOCAL@table, tags@LOCAL@table]) {hash: false, is_sparse: true, padding_idx: 0, pool: "sum"} @backward
        after the program
          push_sparse(table, table@GRAD)
          send([fc_0.w_0@GRAD, fc_0.b_0@GRAD])
    "#]].assert_eq(&split.to_string());
    let exchange = &split.exchange;
    assert_eq!(exchange.params, ["fc_0.w_0", "fc_0.b_0"]);
    assert_eq!(exchange.grads, ["fc_0.w_0@GRAD", "fc_0.b_0@GRAD"]);
    let [pull] = exchange.tables.as_slice() else { panic!("one table") };
    assert_eq!(
        (pull.name.as_str(), pull.dim, pull.padding, pull.modulo),
        ("table", 2, Some(0), None)
    );
    let fetches: Vec<&str> = exchange.fetches().collect();
    assert_eq!(fetches, ["fc_0.w_0@GRAD", "fc_0.b_0@GRAD", "table@GRAD"]);
    let [table] = split.tables.as_slice() else { panic!("one table") };
    assert_eq!((table.name.as_str(), table.dim, table.rows), ("table", 2, 100));
    assert_eq!(table.rule, adagrad().rule);
    let dense: Vec<_> = split.dense.iter().map(|d| (d.name.as_str(), d.shape.clone())).collect();
    assert_eq!(dense, [("fc_0.w_0", vec![4, 2]), ("fc_0.b_0", vec![2])]);
    assert_eq!((split.learning_rate, split.schedule), (0.1, Schedule::Constant));
}

#[test]
fn signed_ids_stay_signed_row_numbers() {
    let mut b = regatta_ops::builder(1);
    let user = b.data("user", DType::I64, &[-1]).unwrap();
    let mut spec = Embedding { padding_idx: Some(7), ..Embedding::new(100, 2) };
    spec.table = spec.table.named("table");
    let e = b.embedding(&[&user], &spec).unwrap();
    let loss = b.mean(&e).unwrap().name().to_string();
    let programs = minimize(&b.finish(), &loss, &adagrad(), &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    assert_eq!(split.exchange.tables[0].padding, Some(7));
    let text = split.to_string();
    for line in [
        "data user@LOCAL@table: i64[-1]",
        "var embedding_0.tmp_0: f32[-1, 2]",
        "embedding(W: table@PULLED, Ids: user@LOCAL@table) {",
        "is_sparse: true, padding_idx: 0, pool",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn ids_that_are_joined_become_row_numbers_that_are() {
    let mut b = regatta_ops::builder(1);
    let slots = ["a", "b"].map(|name| b.data(name, DType::I64, &[-1, 1]).unwrap());
    let all = b.concat(&[&slots[0], &slots[1]], 1).unwrap();
    let mut spec = Embedding::new(100, 2);
    spec.table = spec.table.named("table");
    let vectors = b.embedding(&[&all], &spec).unwrap();
    let user = b.reshape(&slots[0], &[-1]).unwrap();
    let user = b.embedding(&[&user], &spec).unwrap();
    let user = b.reshape(&user, &[-1, 1, 2]).unwrap();
    let x = b.elementwise_mul(&vectors, &user).unwrap();
    let loss = b.mean(&x).unwrap().name().to_string();
    let programs = minimize(&b.finish(), &loss, &adagrad(), &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    let inputs: Vec<&str> = split.exchange.tables[0].inputs.iter().map(|i| i.0.as_str()).collect();
    assert_eq!(inputs, ["a", "b"]);
    let text = split.trainer.to_string();
    for op in [
        "concat_0.tmp_0@LOCAL@table = concat(X: [a@LOCAL@table, b@LOCAL@table]) {axis: 1}",
        "reshape_0.tmp_0@LOCAL@table = reshape(X: a@LOCAL@table) {shape: [-1]}",
        "embedding(W: table@PULLED, Ids: concat_0.tmp_0@LOCAL@table)",
    ] {
        assert!(text.contains(op), "{op} in\n{text}");
    }
}

#[test]
fn a_schedule_goes_to_the_servers() {
    let schedule = Schedule::Exponential { decay_steps: 10, decay_rate: 0.5, staircase: false };
    let optimizer = Optimizer { schedule: schedule.clone(), ..adagrad() };
    let split = split_trainer(&click_model(&optimizer, None)).unwrap();
    assert_eq!((split.learning_rate, split.schedule), (0.1, schedule));
    assert!(!split.trainer.to_string().contains("lr_schedule"));
}

#[test]
fn updates_that_can_be_left_out_are_refused() {
    let text = "
program main
block 0
  param w: f32[2]
  persist lr: f32[1]
  persist flag: f32[1]
  var g: f32[2]
  Out: g = fill_constant() {shape: [2], value: 1.0} @backward
  ParamOut: w = sgd(Param: w, Grad: g, LearningRate: lr, Skip: flag) @optimize
";
    let mut main = regatta_ir::text::parse(text).unwrap();
    regatta_ir::complete(&mut main, &regatta_ops::OPS).unwrap();
    let programs = Programs { startup: Program::new("startup"), main };
    let error = split_trainer(&programs).unwrap_err().to_string();
    assert!(error.contains("'w'") && error.contains("'flag'"), "{error}");
}

#[test]
fn a_program_without_updates_is_refused() {
    let mut programs = click_model(&adagrad(), None);
    programs.main = regatta_passes::clone_for_test(&programs.main).unwrap();
    let e = split_trainer(&programs).unwrap_err().to_string();
    assert_eq!(e, "split_trainer: the program updates nothing; call minimize first");
}

#[test]
fn a_server_holds_pieces_and_tables() {
    let programs = click_model(&adagrad(), None);
    let split = split_trainer(&programs).unwrap();
    let pieces =
        [ServerPartition { name: "fc_0.w_0.block1".into(), param: "fc_0.w_0".into(), range: 5..8 }];
    let server = split_server(&split, &programs.startup, &pieces).unwrap();
    expect![[r#"
        program pserver
        block 0
          persist learning_rate_0: f32[1]
          param fc_0.w_0.block1: f32[3]
          data fc_0.w_0.block1@GRAD: f32[3]
          persist fc_0.w_0.block1_moment_0: f32[3]
          param table: f32[100, 2]
          data table@GRAD: rows f32[100, 2]
          persist table_moment_0: f32[100, 2]
          ParamOut: fc_0.w_0.block1, StatesOut: fc_0.w_0.block1_moment_0 = adagrad(Param: fc_0.w_0.block1, Grad: fc_0.w_0.block1@GRAD, LearningRate: learning_rate_0, States: fc_0.w_0.block1_moment_0) {epsilon: 1e-6, initial_accumulator: 0.0, lr_scale: 1.0} @optimize
          ParamOut: table, StatesOut: table_moment_0 = adagrad(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0, States: table_moment_0) {epsilon: 1e-6, initial_accumulator: 0.0, lr_scale: 1.0} @optimize
    "#]].assert_eq(&server.main.to_string());
    expect![[r#"
        program pserver_startup
        block 0
          persist learning_rate_0: f32[1]
          var fc_0.w_0: f32[4, 2]
          var fc_0.w_0.block1@FLAT: f32[8]
          param fc_0.w_0.block1: f32[3]
          persist fc_0.w_0.block1_moment_0: f32[3]
          param table: f32[100, 2]
          persist table_moment_0: f32[100, 2]
          Out: learning_rate_0 = fill_constant() {dtype: "f32", shape: [1], value: 0.1}
          Out: fc_0.w_0 = uniform_random() {high: 1.0, low: -1.0, seed: 1, shape: [4, 2]}
          Out: fc_0.w_0.block1@FLAT = reshape(X: fc_0.w_0) {shape: [8]}
          Out: fc_0.w_0.block1 = slice(X: fc_0.w_0.block1@FLAT) {axis: 0, end: 8, start: 5}
          Out: fc_0.w_0.block1_moment_0 = fill_constant() {dtype: "f32", shape: [3], value: 0.0}
          Out: table = uniform_random() {high: 0.24253562503633297, low: -0.24253562503633297, seed: 1, shape: [100, 2]}
          Out: table_moment_0 = fill_constant() {dtype: "f32", shape: [100, 2], value: 0.0}
    "#]].assert_eq(&server.startup.to_string());
}

/// Ids that are padded on the way: the inputs are pulled, and their row numbers are padded.
#[test]
fn padded_sequences_are_pulled_by_their_inputs() {
    let mut b = regatta_ops::builder(1);
    let history = b.sparse_data("history").unwrap();
    let label = b.data("label", DType::I64, &[-1, 1]).unwrap();
    let padded = b
        .emit_one(regatta_ir::Op::new("sequence_pad").input("X", "history").attr("len", 3i64))
        .unwrap();
    let mut spec = Embedding { padding_idx: Some(0), ..Embedding::new(100, 2) };
    spec.table = spec.table.named("table");
    let e = b.embedding(&[&padded, &history], &spec).unwrap();
    let e = b.reshape(&e, &[-1, 8]).unwrap();
    let logits = b.fc(&e, 2, Act::None).unwrap();
    let (cost, _) = b.softmax_with_cross_entropy(&logits, &label).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    let programs = minimize(&b.finish(), &loss, &adagrad(), &Backward::default()).unwrap().programs;
    let text = split_trainer(&programs).unwrap().to_string();
    for line in [
        "table@PULLED, [history@LOCAL@table] = pull_sparse(table, [history])",
        "Out: sequence_pad_0.tmp_0@LOCAL@table = sequence_pad(X: history@LOCAL@table)",
        "embedding(W: table@PULLED, Ids: [sequence_pad_0.tmp_0@LOCAL@table, history@LOCAL@table])",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_table_that_starts_with_given_values_is_refused() {
    let mut programs = click_model(&adagrad(), None);
    let ops = &mut programs.startup.block_mut().ops;
    let init = ops.iter_mut().find(|op| op.output_vars().any(|v| v == "table")).unwrap();
    *init = regatta_ir::Op::new("assign_value")
        .attr("shape", vec![100, 2])
        .attr("dtype", "f32")
        .attr("values", vec![0.5; 200])
        .output("Out", "table");
    let e = split_trainer(&programs).unwrap_err().to_string();
    assert!(e.starts_with("split_trainer: the table 'table' starts with given values"), "{e}");
}
