use std::collections::HashMap;

use expect_test::expect;
use proptest::prelude::*;
use regatta_ir::{Act, Origin, Program, Var};
use regatta_ops::builder;
use regatta_optim::{Rule, Sgd};
use regatta_passes::{Backward, MemoryReport, MemoryReuse, Optimizer, memory_reuse, minimize};
use regatta_tensor::DType;

use crate::models::{parse, two_layers};

fn training_program() -> Program {
    let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
    minimize(&two_layers(), "mean_0.tmp_0", &sgd, &Backward::default()).unwrap().programs.main
}

/// The variables with their buffers.
fn buffers(program: &Program) -> String {
    let temps = program.block().vars.values().filter(|v| v.origin == Origin::Temp);
    temps.map(|v| format!("{v}\n")).collect()
}

#[test]
fn before_and_after() {
    let before = training_program();
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
    "#]].assert_eq(&before.to_string());
    let options = MemoryReuse { batch: 8, ..MemoryReuse::default() };
    let (after, report) = memory_reuse(&before, &options).unwrap();
    expect![[r#"
        program main
        block 0
          data x: f32[-1, 2]
          data y: f32[-1, 1]
          param w0: f32[2, 3]
          var fc_0.tmp_0: f32[-1, 3] buffer=b0
          var relu_0.tmp_0: f32[-1, 3] buffer=b1
          param w1: f32[3, 1]
          var fc_1.tmp_0: f32[-1, 1] buffer=b2
          var square_error_cost_0.tmp_0: f32[-1, 1] buffer=b3
          var mean_0.tmp_0: f32[1] buffer=b4
          var mean_0.tmp_0@GRAD: f32[1] buffer=b4
          var square_error_cost_0.tmp_0@GRAD: f32[-1, 1] buffer=b5
          var fc_1.tmp_0@GRAD: f32[-1, 1] buffer=b6
          var relu_0.tmp_0@GRAD: f32[-1, 3] buffer=b3
          var w1@GRAD: f32[3, 1] buffer=b4
          var fc_0.tmp_0@GRAD: f32[-1, 3] buffer=b2
          var w0@GRAD: f32[2, 3] buffer=b5
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
    "#]].assert_eq(&after.to_string());
    expect![[r#"
        MemoryReport {
            before: 556,
            after: 460,
        }
    "#]]
    .assert_debug_eq(&report);
    assert!(report.after < report.before);
}

#[test]
fn skipped_variables_and_gradients_keep_their_own_memory() {
    let before = training_program();
    let skip = vec!["mean_0.tmp_0".to_string(), "relu_0.tmp_0".to_string()];
    let options = MemoryReuse { skip, skip_grads: true, batch: 8 };
    let (after, report) = memory_reuse(&before, &options).unwrap();
    expect![[r#"
        var fc_0.tmp_0: f32[-1, 3] buffer=b0
        var relu_0.tmp_0: f32[-1, 3]
        var fc_1.tmp_0: f32[-1, 1] buffer=b1
        var square_error_cost_0.tmp_0: f32[-1, 1] buffer=b2
        var mean_0.tmp_0: f32[1]
        var mean_0.tmp_0@GRAD: f32[1]
        var square_error_cost_0.tmp_0@GRAD: f32[-1, 1]
        var fc_1.tmp_0@GRAD: f32[-1, 1]
        var relu_0.tmp_0@GRAD: f32[-1, 3]
        var w1@GRAD: f32[3, 1]
        var fc_0.tmp_0@GRAD: f32[-1, 3]
        var w0@GRAD: f32[2, 3]
    "#]]
    .assert_eq(&buffers(&after));
    let (_, all) = memory_reuse(&before, &MemoryReuse { batch: 8, ..Default::default() }).unwrap();
    assert!(all.after < report.after && report.after <= report.before);
}

#[test]
fn an_unknown_variable_to_skip_is_refused() {
    let options = MemoryReuse { skip: vec!["los".into()], ..MemoryReuse::default() };
    let error = memory_reuse(&training_program(), &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "op memory_reuse: variable 'los' is not declared in this program"
    );
}

/// The second write does not begin a new life: `a` is read after it, but also kept in between.
#[test]
fn a_variable_written_twice_lives_from_the_first_to_the_last_use() {
    let before = parse(
        "program main
block 0
  data x: f32[-1, 2]
  var a: f32[-1, 2]
  var b: f32[-1, 2]
  var c: f32[-1, 2]
  var d: f32[-1, 2]
  Out: a = relu(X: x)
  Out: b = tanh(X: a)
  Out: c = tanh(X: b)
  Out: a = tanh(X: c)
  Out: d = tanh(X: a)",
    );
    let (after, _) = memory_reuse(&before, &MemoryReuse::default()).unwrap();
    expect![[r#"
        var a: f32[-1, 2] buffer=b0
        var b: f32[-1, 2] buffer=b1
        var c: f32[-1, 2] buffer=b2
        var d: f32[-1, 2] buffer=b1
    "#]]
    .assert_eq(&buffers(&after));
}

#[test]
fn variables_that_another_block_uses_keep_their_own_memory() {
    let before = parse(
        "program main
block 0
  data x: f32[-1, 2]
  var a: f32[-1, 2]
  var b: f32[-1, 2]
  var c: f32[-1, 2]
  Out: a = relu(X: x)
  Out: b = tanh(X: a)
  Out: c = tanh(X: b)
block 1
  var d: f32[-1, 2]
  Out: d = tanh(X: a)",
    );
    let (after, _) = memory_reuse(&before, &MemoryReuse::default()).unwrap();
    expect![[r#"
        var a: f32[-1, 2]
        var b: f32[-1, 2] buffer=b0
        var c: f32[-1, 2] buffer=b1
    "#]]
    .assert_eq(&buffers(&after));
}

/// One op of a random program: which, and on which earlier variables.
type Step = (u8, usize, usize);

/// A chain of layers over two inputs, widths 2 and 3, with a loss over everything.
fn random_program(steps: &[Step]) -> (regatta_ir::Programs, String) {
    let mut b = builder(1);
    let x = b.data("x", DType::F32, &[-1, 2]).unwrap();
    let z = b.data("z", DType::F32, &[-1, 3]).unwrap();
    let first = b.fc(&x, 3, Act::Relu).unwrap();
    let mut made: Vec<Var> = vec![x, z, first];
    for &(kind, left, right) in steps {
        let (l, r) = (made[left % made.len()].clone(), made[right % made.len()].clone());
        let same = b.ty(&l).unwrap() == b.ty(&r).unwrap();
        let var = match kind % 6 {
            0 => b.tanh(&l),
            1 => b.fc(&l, 2, Act::Sigmoid),
            2 => b.fc(&l, 3, Act::None),
            3 if same => b.elementwise_mul(&l, &r),
            4 if same => b.elementwise_add(&l, &r),
            _ => b.scale(&l, 0.5, 0.0),
        };
        made.push(var.unwrap());
    }
    let mut losses: Vec<Var> = Vec::new();
    for var in &made[2..] {
        losses.push(b.mean(var).unwrap());
    }
    let total = b.sum(&losses.iter().collect::<Vec<_>>()).unwrap();
    let name = total.name().to_string();
    (b.finish(), name)
}

/// First and last op that touches each variable, counted here independently of the pass.
fn uses(program: &Program) -> HashMap<&str, (usize, usize)> {
    let mut uses: HashMap<&str, (usize, usize)> = HashMap::new();
    for (i, op) in program.block().ops.iter().enumerate() {
        for var in op.input_vars().chain(op.output_vars()) {
            let entry = uses.entry(var).or_insert((i, i));
            entry.1 = i;
        }
    }
    uses
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn variables_that_share_a_buffer_are_never_in_use_together(
        steps in prop::collection::vec((any::<u8>(), 0usize..64, 0usize..64), 0..24),
        skip_grads in any::<bool>(),
        batch in 1usize..100,
    ) {
        let (programs, loss) = random_program(&steps);
        let sgd = Optimizer::new(Rule::Sgd(Sgd {}), 0.1);
        let main = minimize(&programs, &loss, &sgd, &Backward::default()).unwrap().programs.main;
        let options = MemoryReuse { skip: vec![loss.clone()], skip_grads, batch };
        let (after, report) = memory_reuse(&main, &options).unwrap();
        prop_assert!(report.after <= report.before);
        prop_assert!(skip_grads || report.after < report.before);
        let uses = uses(&after);
        let placed: Vec<_> = after.block().vars.values().filter(|v| v.buffer.is_some()).collect();
        prop_assert!(!placed.iter().any(|v| v.name == loss || v.origin != Origin::Temp));
        for (i, a) in placed.iter().enumerate() {
            for b in &placed[i + 1..] {
                let (ua, ub) = (uses[a.name.as_str()], uses[b.name.as_str()]);
                let apart = ua.1 < ub.0 || ub.1 < ua.0;
                prop_assert!(a.buffer != b.buffer || apart, "{} and {}", a.name, b.name);
            }
        }
        prop_assert_eq!(report.after, bytes_by_buffer(&after, batch));
        let MemoryReport { before, .. } = report;
        prop_assert_eq!(before, bytes_by_buffer(&main, batch));
    }
}

/// The largest variable of every buffer, and the variables that have none.
fn bytes_by_buffer(program: &Program, batch: usize) -> usize {
    let mut buffers: HashMap<&str, usize> = HashMap::new();
    let mut own = 0;
    for var in program.block().vars.values().filter(|v| v.origin == Origin::Temp) {
        let dims = var.ty.shape.iter().map(|&d| usize::try_from(d).unwrap_or(batch));
        let size = dims.product::<usize>() * var.ty.dtype.size();
        match &var.buffer {
            Some(buffer) => {
                let largest = buffers.entry(buffer).or_default();
                *largest = size.max(*largest);
            }
            None => own += size,
        }
    }
    own + buffers.values().sum::<usize>()
}
