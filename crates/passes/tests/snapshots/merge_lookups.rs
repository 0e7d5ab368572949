use expect_test::expect;
use regatta_ir::{Act, Builder, Embedding, ParamAttr, Program, Var};
use regatta_ops::builder;
use regatta_optim::{Rule, Sgd};
use regatta_passes::{
    Backward, Optimizer, RecomputeConfig, fuse, merge_lookups, minimize, prune, split_trainer,
};
use regatta_tensor::DType;

fn table() -> Embedding {
    Embedding { table: ParamAttr::weight().named("table"), ..Embedding::new(100, 4) }
}

fn ids(b: &mut Builder, name: &str) -> Var {
    b.data(name, DType::I64, &[-1, 1]).unwrap()
}

/// Looks up an input and flattens its vector.
fn flat(b: &mut Builder, name: &str) -> Var {
    let ids = ids(b, name);
    let vectors = b.embedding(&[&ids], &table()).unwrap();
    b.reshape(&vectors, &[-1, 4]).unwrap()
}

/// The loss of a layer behind these.
fn loss(b: &mut Builder, x: &Var) -> String {
    let y = b.fc(x, 1, Act::None).unwrap();
    b.mean(&y).unwrap().name().to_string()
}

/// A lookup per input, flat and side by side with dense features.
fn one_by_one() -> (Builder, String) {
    let mut b = builder(1);
    let vectors = ["a", "b", "c"].map(|name| flat(&mut b, name));
    let dense = b.data("dense", DType::F32, &[-1, 2]).unwrap();
    let x = b.concat(&[&vectors[0], &vectors[1], &vectors[2], &dense], 1).unwrap();
    let loss = loss(&mut b, &x);
    (b, loss)
}

fn merged(b: Builder, loss: &str) -> Program {
    merge_lookups(&b.finish().main, loss, &Backward::default(), &[]).unwrap()
}

/// The ops alone.
fn ops(program: &Program) -> String {
    let text = program.to_string();
    let ops = text.lines().filter(|line| line.contains(" = "));
    ops.map(|line| line.trim_start().to_string() + "\n").collect()
}

fn sgd() -> Optimizer {
    Optimizer::new(Rule::Sgd(Sgd {}), 0.1)
}

#[test]
fn before_and_after() {
    let (b, loss) = one_by_one();
    expect![[r#"
        program main
        block 0
          data a: i64[-1, 1]
          param table: f32[100, 4]
          var embedding_0.tmp_0: f32[-1, 1, 4]
          var reshape_0.tmp_0: f32[-1, 4]
          data b: i64[-1, 1]
          var embedding_1.tmp_0: f32[-1, 1, 4]
          var reshape_1.tmp_0: f32[-1, 4]
          data c: i64[-1, 1]
          var embedding_2.tmp_0: f32[-1, 1, 4]
          var reshape_2.tmp_0: f32[-1, 4]
          data dense: f32[-1, 2]
          var concat_0.tmp_0: f32[-1, 14]
          param fc_0.w_0: f32[14, 1]
          param fc_0.b_0: f32[1]
          var fc_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          Out: embedding_0.tmp_0 = embedding(W: table, Ids: a) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: reshape_0.tmp_0 = reshape(X: embedding_0.tmp_0) {shape: [-1, 4]}
          Out: embedding_1.tmp_0 = embedding(W: table, Ids: b) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: reshape_1.tmp_0 = reshape(X: embedding_1.tmp_0) {shape: [-1, 4]}
          Out: embedding_2.tmp_0 = embedding(W: table, Ids: c) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: reshape_2.tmp_0 = reshape(X: embedding_2.tmp_0) {shape: [-1, 4]}
          Out: concat_0.tmp_0 = concat(X: [reshape_0.tmp_0, reshape_1.tmp_0, reshape_2.tmp_0, dense]) {axis: 1}
          Out: fc_0.tmp_0 = fc(X: concat_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Out: mean_0.tmp_0 = mean(X: fc_0.tmp_0)
    "#]].assert_eq(&b.main().to_string());
    let after = merged(b, &loss);
    expect![[r#"
        program main
        block 0
          data a: i64[-1, 1]
          param table: f32[100, 4]
          var embedding_0.tmp_0: f32[-1, 1, 4]
          var reshape_0.tmp_0: f32[-1, 4]
          data b: i64[-1, 1]
          var embedding_1.tmp_0: f32[-1, 1, 4]
          var reshape_1.tmp_0: f32[-1, 4]
          data c: i64[-1, 1]
          var embedding_2.tmp_0: f32[-1, 1, 4]
          var reshape_2.tmp_0: f32[-1, 4]
          data dense: f32[-1, 2]
          var concat_0.tmp_0: f32[-1, 14]
          param fc_0.w_0: f32[14, 1]
          param fc_0.b_0: f32[1]
          var fc_0.tmp_0: f32[-1, 1]
          var mean_0.tmp_0: f32[1]
          var embedding_0.tmp_0@LOOKUPS: f32[-1, 3, 4]
          var embedding_0.tmp_0@ROW: f32[-1, 12]
          Out: embedding_0.tmp_0@LOOKUPS = embedding(W: table, Ids: [a, b, c]) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
          Out: embedding_0.tmp_0@ROW = reshape(X: embedding_0.tmp_0@LOOKUPS) {shape: [-1, 12]}
          Out: [embedding_0.tmp_0, embedding_1.tmp_0, embedding_2.tmp_0] = split(X: embedding_0.tmp_0@LOOKUPS) {axis: 1, sections: [1, 1, 1]}
          Out: reshape_0.tmp_0 = reshape(X: embedding_0.tmp_0) {shape: [-1, 4]}
          Out: reshape_1.tmp_0 = reshape(X: embedding_1.tmp_0) {shape: [-1, 4]}
          Out: reshape_2.tmp_0 = reshape(X: embedding_2.tmp_0) {shape: [-1, 4]}
          Out: concat_0.tmp_0 = concat(X: [embedding_0.tmp_0@ROW, dense]) {axis: 1}
          Out: fc_0.tmp_0 = fc(X: concat_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
          Out: mean_0.tmp_0 = mean(X: fc_0.tmp_0)
    "#]].assert_eq(&after.to_string());
    // Nothing is left to merge.
    assert_eq!(merge_lookups(&after, &loss, &Backward::default(), &[]).unwrap(), after);
}

#[test]
fn the_executor_runs_one_op_for_all() {
    let (b, loss) = one_by_one();
    let program = minimize(&b.finish(), &loss, &sgd(), &Backward::default()).unwrap().programs.main;
    expect![[r#"
        Out: concat_0.tmp_0 = embedding_row(W: table, Ids: [a, b, c], Beside: dense) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
        Out: fc_0.tmp_0 = fc(X: concat_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
        Out: mean_0.tmp_0 = mean(X: fc_0.tmp_0)
        Out: mean_0.tmp_0@GRAD = fill_constant() {dtype: "f32", shape: [1], value: 1.0} @backward
        dX: fc_0.tmp_0@GRAD = mean_grad(X: fc_0.tmp_0, dOut: mean_0.tmp_0@GRAD) @backward
        dX: concat_0.tmp_0@GRAD, dW: fc_0.w_0@GRAD, dBias: fc_0.b_0@GRAD = fc_grad(X: concat_0.tmp_0, W: fc_0.w_0, Out: fc_0.tmp_0, dOut: fc_0.tmp_0@GRAD) {act: ""} @backward
        dW: table@GRAD = embedding_row_grad(W: table, dOut: concat_0.tmp_0@GRAD, Ids: [a, b, c]) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"} @backward
        ParamOut: table = sgd(Param: table, Grad: table@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
        ParamOut: fc_0.w_0 = sgd(Param: fc_0.w_0, Grad: fc_0.w_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
        ParamOut: fc_0.b_0 = sgd(Param: fc_0.b_0, Grad: fc_0.b_0@GRAD, LearningRate: learning_rate_0) {lr_scale: 1.0} @optimize
    "#]].assert_eq(&ops(&fuse(&program, &[]).unwrap()));
    // What is fetched is made under its name.
    let fetched = fuse(&program, &["reshape_1.tmp_0"]).unwrap();
    let made = |var: &str| fetched.block().ops.iter().any(|op| op.output_vars().any(|v| v == var));
    assert!(made("reshape_1.tmp_0") && !made("reshape_0.tmp_0"), "{fetched}");
}

#[test]
fn vectors_below_each_other() {
    let mut b = builder(1);
    let vectors = ["a", "b"].map(|name| {
        let ids = ids(&mut b, name);
        b.embedding(&[&ids], &table()).unwrap()
    });
    let x = b.concat(&[&vectors[0], &vectors[1]], 1).unwrap();
    let x = b.reduce_sum(&x, &[1], false).unwrap();
    let loss = loss(&mut b, &x);
    expect![[r#"
        Out: embedding_0.tmp_0@LOOKUPS = embedding(W: table, Ids: [a, b]) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
        Out: [embedding_0.tmp_0, embedding_1.tmp_0] = split(X: embedding_0.tmp_0@LOOKUPS) {axis: 1, sections: [1, 1]}
        Out: concat_0.tmp_0 = concat(X: embedding_0.tmp_0@LOOKUPS) {axis: 1}
        Out: reduce_sum_0.tmp_0 = reduce_sum(X: concat_0.tmp_0) {dims: [1], keep_dim: false}
        Out: fc_0.tmp_0 = fc(X: reduce_sum_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
        Out: mean_0.tmp_0 = mean(X: fc_0.tmp_0)
    "#]].assert_eq(&ops(&merged(b, &loss)));
}

#[test]
fn what_does_not_meet_is_split() {
    let mut b = builder(1);
    let user = b.data("user", DType::I64, &[-1]).unwrap();
    let tags = b.sparse_data("tags").unwrap();
    let user = b.embedding(&[&user], &table()).unwrap();
    let tags = b.embedding(&[&tags], &table()).unwrap();
    let tags = b.reshape(&tags, &[-1, 4]).unwrap();
    let x = b.elementwise_mul(&user, &tags).unwrap();
    let loss = loss(&mut b, &x);
    expect![[r#"
        Out: embedding_0.tmp_0@LOOKUPS = embedding(W: table, Ids: [user, tags]) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
        Out: [embedding_0.tmp_0@VECTORS, embedding_1.tmp_0] = split(X: embedding_0.tmp_0@LOOKUPS) {axis: 1, sections: [1, 1]}
        Out: embedding_0.tmp_0 = reshape(X: embedding_0.tmp_0@VECTORS) {shape: [-1, 4]}
        Out: reshape_0.tmp_0 = reshape(X: embedding_1.tmp_0) {shape: [-1, 4]}
        Out: elementwise_mul_0.tmp_0 = elementwise_mul(X: embedding_0.tmp_0, Y: reshape_0.tmp_0)
        Out: fc_0.tmp_0 = fc(X: elementwise_mul_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
        Out: mean_0.tmp_0 = mean(X: fc_0.tmp_0)
    "#]].assert_eq(&ops(&merged(b, &loss)));
}

#[test]
fn many_inputs_are_split_in_two_steps() {
    let mut b = builder(1);
    let vectors: Vec<Var> = (0..150).map(|i| flat(&mut b, &format!("s{i}"))).collect();
    let all: Vec<&Var> = vectors.iter().collect();
    let x = b.concat(&all, 1).unwrap();
    let sum = b.sum(&[&vectors[3], &vectors[140]]).unwrap();
    let x = b.concat(&[&x, &sum], 1).unwrap();
    let loss = loss(&mut b, &x);
    let programs = b.finish();
    let made = minimize(&programs, &loss, &sgd(), &Backward::default()).unwrap().programs.main;
    let count = |kind: &str| made.block().ops.iter().filter(|op| op.kind == kind).count();
    assert_eq!((count("embedding"), count("split"), count("embedding_grad")), (1, 4, 1));
    // Other readers of one lookup get it under its name.
    assert!(ops(&made).contains("sum(X: [reshape_3.tmp_0, reshape_140.tmp_0])"));
}

#[test]
fn lookups_that_differ_or_carry_no_gradient_stay() {
    let counts = |change: &dyn Fn(&mut Builder, [&Var; 3]) -> Var| {
        let mut b = builder(1);
        let vectors = ["a", "b", "c"].map(|name| flat(&mut b, name));
        let x = change(&mut b, [&vectors[0], &vectors[1], &vectors[2]]);
        let loss = loss(&mut b, &x);
        let program = merged(b, &loss);
        let ops = program.block().ops.iter().filter(|op| op.kind == "embedding");
        ops.map(|op| op.ins("Ids").len()).collect::<Vec<_>>()
    };
    let all = |b: &mut Builder, [x, y, z]: [&Var; 3]| b.concat(&[x, y, z], 1).unwrap();
    assert_eq!(counts(&all), [3]);
    let stopped = |b: &mut Builder, v: [&Var; 3]| {
        b.stop_gradient(v[1]).unwrap();
        all(b, v)
    };
    // The second one takes no part in training.
    assert_eq!(counts(&stopped), [2, 1]);
    let unused = |b: &mut Builder, [x, _, z]: [&Var; 3]| b.concat(&[z, x], 1).unwrap();
    assert_eq!(counts(&unused), [2, 1]);
    let twice = |b: &mut Builder, [x, y, _]: [&Var; 3]| b.concat(&[x, y, x, y], 1).unwrap();
    assert_eq!(counts(&twice), [2, 1]);
    let padded = |b: &mut Builder, [x, _, _]: [&Var; 3]| {
        let d = ids(b, "d");
        let other = Embedding { padding_idx: Some(0), ..table() };
        let d = b.embedding(&[&d], &other).unwrap();
        let d = b.reshape(&d, &[-1, 4]).unwrap();
        b.concat(&[x, &d], 1).unwrap()
    };
    assert_eq!(counts(&padded), [1, 1, 1, 1]);
}

#[test]
fn named_variables_stay_in_the_network() {
    let (b, loss) = one_by_one();
    let programs = b.finish();
    let what = Backward { no_grad_set: vec!["reshape_0.tmp_0".into()], ..Backward::default() };
    let made = minimize(&programs, &loss, &sgd(), &what).unwrap().programs.main;
    assert!(ops(&made).contains("concat(X: [reshape_0.tmp_0, embedding_1.tmp_0@ROW, dense])"));
    let checkpoints = vec!["reshape_2.tmp_0".to_string()];
    let recompute = Some(RecomputeConfig { checkpoints, ..RecomputeConfig::default() });
    let optimizer = Optimizer { recompute, ..sgd() };
    let made = minimize(&programs, &loss, &optimizer, &Backward::default()).unwrap().programs.main;
    assert!(ops(&made).contains("concat(X: [embedding_0.tmp_0@ROW, reshape_2.tmp_0, dense])"));
}

#[test]
fn servers_get_the_keys_of_all_inputs() {
    let (b, loss) = one_by_one();
    let programs = minimize(&b.finish(), &loss, &sgd(), &Backward::default()).unwrap().programs;
    let split = split_trainer(&programs).unwrap();
    let [table] = split.exchange.tables.as_slice() else { panic!("one table") };
    let inputs: Vec<&str> = table.inputs.iter().map(|(ids, _)| ids.as_str()).collect();
    assert_eq!(inputs, ["a", "b", "c"]);
    let text = ops(&split.trainer);
    let ids = "Ids: [a@LOCAL@table, b@LOCAL@table, c@LOCAL@table]";
    assert_eq!(text.matches(ids).count(), 2, "{text}");
}

#[test]
fn programs_that_predict_ask_for_their_own_inputs() {
    let mut b = builder(1);
    let user = b.data("user", DType::I64, &[-1]).unwrap();
    let user = b.embedding(&[&user], &table()).unwrap();
    let item = flat(&mut b, "item");
    let x = b.elementwise_mul(&user, &item).unwrap();
    let loss = loss(&mut b, &x);
    let main = minimize(&b.finish(), &loss, &sgd(), &Backward::default()).unwrap().programs.main;
    let inputs = |program: &Program| {
        let vars = program.block().vars.values();
        let inputs = vars.filter(|v| v.origin == regatta_ir::Origin::Data);
        inputs.map(|v| v.name.clone()).collect::<Vec<_>>()
    };
    let of_user = prune(&main, &[user.name()]).unwrap();
    assert_eq!(inputs(&of_user), ["user"]);
    expect![[r#"
        Out: embedding_0.tmp_0@VECTORS@FLAT = embedding(W: table, Ids: user) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
        Out: embedding_0.tmp_0@VECTORS = reshape(X: embedding_0.tmp_0@VECTORS@FLAT) {shape: [-1, 1, 4]}
        Out: embedding_0.tmp_0 = reshape(X: embedding_0.tmp_0@VECTORS) {shape: [-1, 4]}
    "#]].assert_eq(&ops(&of_user));
    let of_item = prune(&main, &[item.name()]).unwrap();
    assert_eq!(inputs(&of_item), ["item"]);
    expect![[r#"
        Out: embedding_1.tmp_0 = embedding(W: table, Ids: item) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
        Out: reshape_0.tmp_0 = reshape(X: embedding_1.tmp_0) {shape: [-1, 4]}
    "#]].assert_eq(&ops(&of_item));
    // What joins all of them looks them up together.
    let (b, loss) = one_by_one();
    let main = minimize(&b.finish(), &loss, &sgd(), &Backward::default()).unwrap().programs.main;
    expect![[r#"
        Out: embedding_0.tmp_0@LOOKUPS = embedding(W: table, Ids: [a, b, c]) {hash: false, is_sparse: true, padding_idx: -1, pool: "sum"}
        Out: embedding_0.tmp_0@ROW = reshape(X: embedding_0.tmp_0@LOOKUPS) {shape: [-1, 12]}
        Out: concat_0.tmp_0 = concat(X: [embedding_0.tmp_0@ROW, dense]) {axis: 1}
        Out: fc_0.tmp_0 = fc(X: concat_0.tmp_0, W: fc_0.w_0, Bias: fc_0.b_0) {act: ""}
    "#]].assert_eq(&ops(&prune(&main, &["fc_0.tmp_0"]).unwrap()));
}

#[test]
fn one_of_many_lookups_can_be_predicted() {
    let mut b = builder(1);
    let vectors: Vec<Var> = (0..150).map(|i| flat(&mut b, &format!("s{i}"))).collect();
    let x = b.sum(&vectors.iter().collect::<Vec<_>>()).unwrap();
    let loss = loss(&mut b, &x);
    let main = minimize(&b.finish(), &loss, &sgd(), &Backward::default()).unwrap().programs.main;
    let one = prune(&main, &[vectors[140].name()]).unwrap();
    assert_eq!(one.block().vars.keys().filter(|name| name.starts_with('s')).count(), 1, "{one}");
}
