//! Small programs that the tests rewrite, and how they are shown.

use regatta_ir::{Act, Builder, Embedding, Fc, ParamAttr, Pool, Program, Programs, Var};
use regatta_ops::builder;
use regatta_passes::{Backward, ParamGrad, backward};
use regatta_tensor::DType;

/// Inputs `x` and `y` of the given width and one column.
pub(crate) fn inputs(b: &mut Builder, width: i64) -> (Var, Var) {
    let x = b.data("x", DType::F32, &[-1, width]).unwrap();
    let y = b.data("y", DType::F32, &[-1, 1]).unwrap();
    (x, y)
}

/// The mean of squared errors, called `loss` in the tests by its generated name.
pub(crate) fn squared_loss(b: &mut Builder, predicted: &Var, y: &Var) -> Var {
    let cost = b.square_error_cost(predicted, y).unwrap();
    b.mean(&cost).unwrap()
}

/// A fully connected layer with a named weight and no bias.
pub(crate) fn fc_named(b: &mut Builder, x: &Var, size: i64, name: &str) -> Var {
    let weight = ParamAttr::weight().named(name);
    b.fc_with(x, &Fc { weight, bias: None, ..Fc::new(size) }).unwrap()
}

/// `y ~ x w + b`; the loss is `mean_0.tmp_0`.
pub(crate) fn fit_a_line() -> Programs {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let predicted = b.fc(&x, 1, Act::None).unwrap();
    squared_loss(&mut b, &predicted, &y);
    b.finish()
}

/// Two layers without biases, `w0` and `w1`; the loss is `mean_0.tmp_0`.
pub(crate) fn two_layers() -> Programs {
    let mut b = builder(1);
    let (x, y) = inputs(&mut b, 2);
    let hidden = fc_named(&mut b, &x, 3, "w0");
    let hidden = b.relu(&hidden).unwrap();
    let predicted = fc_named(&mut b, &hidden, 1, "w1");
    squared_loss(&mut b, &predicted, &y);
    b.finish()
}

/// One table looked up for the slots `user` and `item`, each by an op of its own, since they differ
/// in how they pool.
pub(crate) fn shared_table() -> Programs {
    let mut b = builder(1);
    let user = b.sparse_data("user").unwrap();
    let item = b.sparse_data("item").unwrap();
    let spec = Embedding { table: ParamAttr::weight().named("table"), ..Embedding::new(100, 4) };
    let u = b.embedding(&[&user], &spec).unwrap();
    let i = b.embedding(&[&item], &Embedding { pool: Pool::Mean, ..spec }).unwrap();
    let product = b.elementwise_mul(&u, &i).unwrap();
    b.mean(&product).unwrap();
    b.finish()
}

/// A program from its text; what is left out in the text takes its default.
pub(crate) fn parse(text: &str) -> Program {
    let mut program = regatta_ir::text::parse(text).unwrap();
    regatta_ir::complete(&mut program, &regatta_ops::OPS).unwrap();
    regatta_ir::verify(&program, &regatta_ops::OPS).unwrap();
    program
}

/// The gradients of `mean_0.tmp_0`.
pub(crate) fn differentiated(programs: &Programs) -> (Program, Vec<ParamGrad>) {
    backward(&programs.main, "mean_0.tmp_0", &Backward::default()).unwrap()
}

/// The lines that `after` has and `before` has not.
pub(crate) fn added(before: &Program, after: &Program) -> String {
    let before = before.to_string();
    let known: Vec<&str> = before.lines().collect();
    let after = after.to_string();
    after.lines().filter(|line| !known.contains(line)).map(|l| format!("{}\n", l.trim())).collect()
}

/// `w -> w@GRAD` per line.
pub(crate) fn pairs(grads: &[ParamGrad]) -> String {
    grads.iter().map(|g| format!("{} -> {}\n", g.param, g.grad)).collect()
}
