//! Values of ops on small inputs, computed by hand, and the errors of inputs that do not fit.

use regatta_ir::{Attr, Error, Op, VarType, grad_name};
use regatta_ops::interp::{Cell, Env, eval};
use regatta_ops::{Grad, GradCtx, OPS, StepCtx};
use regatta_tensor::{Tensor, Value};

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(shape, values.to_vec()).unwrap()
}

fn i64s(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_i64(shape, values.to_vec()).unwrap()
}

fn u64s(shape: &[usize], values: &[u64]) -> Tensor {
    Tensor::from_u64(shape, values.to_vec()).unwrap()
}

/// An op with its input values, one variable `<slot><n>` each.
struct Case {
    op: Op,
    env: Env,
}

fn case(kind: &str) -> Case {
    Case { op: Op::new(kind), env: Env::new() }
}

impl Case {
    fn input(self, slot: &str, value: Tensor) -> Case {
        self.inputs(slot, vec![value])
    }

    fn inputs(mut self, slot: &str, values: Vec<Tensor>) -> Case {
        let names: Vec<String> = (0..values.len()).map(|i| format!("{slot}{i}")).collect();
        for (name, value) in names.iter().zip(values) {
            self.env.insert(name.clone(), Cell::Value(value.into()));
        }
        self.op = self.op.inputs(slot, names.iter().map(String::as_str));
        self
    }

    fn attr(mut self, name: &str, value: impl Into<Attr>) -> Case {
        self.op = self.op.attr(name, value);
        self
    }

    fn output(mut self, slot: &str, var: &str) -> Case {
        self.op = self.op.output(slot, var);
        self
    }

    /// Runs with the outputs named so far, or `Out`.
    fn run(mut self) -> Result<Env, Error> {
        if self.op.outputs.is_empty() {
            self = self.output("Out", "Out");
        }
        eval(&self.op, &mut self.env, &mut StepCtx::default())?;
        Ok(self.env)
    }

    fn out(self) -> Tensor {
        tensor(&self.run().unwrap(), "Out")
    }

    fn error(self) -> String {
        self.run().unwrap_err().to_string()
    }
}

fn tensor(env: &Env, name: &str) -> Tensor {
    match &env[name] {
        Cell::Value(Value::Dense(t)) => t.clone(),
        other => panic!("{other:?}"),
    }
}

fn near(got: &Tensor, shape: &[usize], want: &[f32]) {
    assert_eq!(got.shape(), shape);
    for (i, (g, w)) in got.f32().iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-5 * (1.0 + w.abs()), "{i}: {:?} {want:?}", got.f32());
    }
}

/// The output types that an op has while the batch is not known.
fn symbolic(op: Op, ins: &[VarType]) -> Result<Vec<String>, String> {
    let mut op = op;
    OPS.def(&op.kind).unwrap().schema.complete(&mut op).map_err(|e| e.to_string())?;
    let outs = (OPS.def(&op.kind).unwrap().infer)(&regatta_ops::Infer { op: &op, ins });
    outs.map(|types| types.iter().map(ToString::to_string).collect()).map_err(|e| e.to_string())
}

fn matrix() -> Tensor {
    f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
}

#[test]
fn matmul_transposed_and_not() {
    let y = || f32s(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 2.0, 2.0]);
    let turned = || f32s(&[2, 3], &[1.0, 0.0, 2.0, 0.0, 1.0, 2.0]);
    let want = f32s(&[2, 2], &[7.0, 8.0, 16.0, 17.0]);
    assert_eq!(case("matmul").input("X", matrix()).input("Y", y()).out(), want);
    let got = case("matmul").input("X", matrix()).input("Y", turned()).attr("trans_y", true).out();
    assert_eq!(got, want);
    let x = f32s(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let got = case("matmul").input("X", x).input("Y", y()).attr("trans_x", true).out();
    assert_eq!(got, want);
}

#[test]
fn matmul_of_many_matrices() {
    let x = f32s(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = f32s(&[2, 2, 1], &[1.0, 1.0, 10.0, 1.0]);
    let got = case("matmul").input("X", x.clone()).input("Y", y.clone()).out();
    assert_eq!(got, f32s(&[2, 1, 1], &[3.0, 34.0]));
    let shared = f32s(&[2, 1], &[1.0, 1.0]);
    let got = case("matmul").input("X", x.clone()).input("Y", shared).out();
    assert_eq!(got, f32s(&[2, 1, 1], &[3.0, 7.0]));
    let got = case("matmul_sum").input("X", x).input("Y", y).out();
    assert_eq!(got, f32s(&[1, 1], &[37.0]));
}

#[test]
fn matmul_refuses_what_does_not_fit() {
    let e = case("matmul").input("X", matrix()).input("Y", matrix()).error();
    assert_eq!(
        e,
        "op matmul: Y 'Y0' should be f32 with 3 as its second to last dimension (X is f32[2, 3]), \
         but is f32[2, 3]"
    );
    let e = case("matmul").input("X", f32s(&[3], &[0.0; 3])).input("Y", matrix()).error();
    assert!(e.contains("with 3 as its second to last dimension"), "{e}");
    let e = case("matmul").input("X", f32s(&[], &[0.0])).input("Y", matrix()).error();
    assert!(e.contains("X 'X0' should be f32 with at least one dimension"), "{e}");
    let batched = || VarType::f32([-1, 4]);
    let product = || Op::new("matmul").input("X", "x").input("Y", "y").output("Out", "o");
    let e = symbolic(product().attr("trans_y", true), &[batched(), batched()]).unwrap_err();
    assert!(e.contains("'y' should be f32 with known rows"), "{e}");
    // Over the batch: a sum.
    let sum = symbolic(product().attr("trans_x", true), &[batched(), batched()]).unwrap();
    assert_eq!(sum, ["f32[4, 4]"]);
    let many = symbolic(product(), &[VarType::f32([-1, 3, 4]), VarType::f32([-1, 4, 2])]).unwrap();
    assert_eq!(many, ["f32[-1, 3, 2]"]);
}

#[test]
fn concat_along_each_dimension() {
    let (a, b) = (matrix(), f32s(&[2, 1], &[7.0, 8.0]));
    let got = case("concat").inputs("X", vec![a.clone(), b.clone()]).attr("axis", -1).out();
    assert_eq!(got, f32s(&[2, 4], &[1.0, 2.0, 3.0, 7.0, 4.0, 5.0, 6.0, 8.0]));
    let (i, j) = (i64s(&[1, 2], &[1, 2]), i64s(&[2, 2], &[3, 4, 5, 6]));
    let got = case("concat").inputs("X", vec![i, j]).attr("axis", 0).out();
    assert_eq!(got, i64s(&[3, 2], &[1, 2, 3, 4, 5, 6]));
    let e = case("concat").inputs("X", vec![a, b]).attr("axis", 0).error();
    let want = "op concat: X 'X1' should be f32[2, 3] (dimension 0 may differ), but is f32[2, 1]";
    assert_eq!(e, want);
    let batched = Op::new("concat").inputs("X", ["a", "b"]).output("Out", "o").attr("axis", -2);
    let e = symbolic(batched, &[VarType::f32([-1, 2]), VarType::f32([-1, 2])]).unwrap_err();
    assert_eq!(e, "op concat: attribute 'axis' is -2, which is the batch dimension; write 0");
}

#[test]
fn concat_of_unknown_sizes_has_a_gradient() {
    let op = Op::new("concat").inputs("X", ["a", "b"]).output("Out", "o").attr("axis", 0);
    let ty = |_: &str| VarType::f32([-1, 2]);
    let ops = gradient(&op, &|v| v != "a", &ty);
    assert_eq!((ops.len(), ops[0].kind.as_str()), (1, "concat_grad"));
    let mut env = Env::new();
    for (name, value) in [
        ("a", f32s(&[1, 2], &[1.0, 2.0])),
        ("b", f32s(&[2, 2], &[0.0; 4])),
        ("o@GRAD", f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
    ] {
        env.insert(name.into(), Cell::Value(value.into()));
    }
    eval(&ops[0], &mut env, &mut StepCtx::default()).unwrap();
    assert_eq!(tensor(&env, "b@GRAD"), f32s(&[2, 2], &[3.0, 4.0, 5.0, 6.0]));
}

fn gradient(op: &Op, has_grad: &dyn Fn(&str) -> bool, ty: &dyn Fn(&str) -> VarType) -> Vec<Op> {
    let mut op = op.clone();
    let def = OPS.def(&op.kind).unwrap();
    def.schema.complete(&mut op).unwrap();
    let Grad::Rule(rule) = def.grad else { panic!("{} has no gradient", op.kind) };
    rule(&GradCtx { op: &op, has_grad, ty }).unwrap()
}

fn split_in_two() -> Case {
    let case = case("split").input("X", matrix()).attr("axis", 1).attr("sections", vec![1, 2]);
    Case { op: case.op.outputs("Out", ["a", "b"]), ..case }
}

#[test]
fn split_is_the_opposite_of_concat() {
    let env = split_in_two().run().unwrap();
    assert_eq!(tensor(&env, "a"), f32s(&[2, 1], &[1.0, 4.0]));
    assert_eq!(tensor(&env, "b"), f32s(&[2, 2], &[2.0, 3.0, 5.0, 6.0]));
    let e = split_in_two().attr("sections", vec![1, 1]).error();
    let want =
        "op split: attribute 'sections' [1, 1] does not add up to 3, dimension 1 of f32[2, 3]";
    assert_eq!(e, want);
    let e = split_in_two().attr("sections", vec![3]).error();
    assert_eq!(e, "op split: attribute 'sections' has 1 sizes for 2 outputs (at most 64)");
}

#[test]
fn split_takes_zeros_for_parts_without_gradient() {
    let mut env = split_in_two().run().unwrap();
    let op = split_in_two().op;
    let ops = gradient(&op, &|v| v == "X0" || v == "b", &|_| VarType::f32([2, 3]));
    let grad = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    env.insert(grad_name("b"), Cell::Value(grad.into()));
    for op in &ops {
        eval(op, &mut env, &mut StepCtx::default()).unwrap();
    }
    assert_eq!(tensor(&env, "X0@GRAD"), f32s(&[2, 3], &[0.0, 1.0, 2.0, 0.0, 3.0, 4.0]));
}

fn slice(axis: i64, start: i64, end: i64) -> Case {
    let case = case("slice").input("X", matrix()).attr("axis", axis);
    case.attr("start", start).attr("end", end)
}

#[test]
fn slice_inside_a_dimension() {
    assert_eq!(slice(1, 1, 3).out(), f32s(&[2, 2], &[2.0, 3.0, 5.0, 6.0]));
    assert_eq!(slice(-1, -3, -2).out(), f32s(&[2, 1], &[1.0, 4.0]));
    assert_eq!(slice(0, 1, 2).out(), f32s(&[1, 3], &[4.0, 5.0, 6.0]));
    assert_eq!(slice(1, 1, 4).out(), f32s(&[2, 2], &[2.0, 3.0, 5.0, 6.0]), "to the end");
    assert!(slice(1, 3, 3).error().contains("'start' makes 3..3"));
    assert!(slice(1, -4, 3).error().contains("'start' makes -4..3"));
    assert!(slice(1, 2, 1).error().contains("'end' makes 2..1"));
    assert!(slice(2, 0, 1).error().contains("'axis' is 2, but there are 2 dimensions"));
}

#[test]
fn slices_of_unknown_sizes() {
    let op = |start: i64, end: i64| {
        let op = Op::new("slice").input("X", "x").output("Out", "o");
        op.attr("start", start).attr("end", end)
    };
    let ty = |start, end| symbolic(op(start, end), &[VarType::f32([-1, 2])]);
    assert_eq!(ty(0, 4).unwrap(), ["f32[-2, 2]"], "there may be fewer");
    assert_eq!(ty(-3, -1).unwrap(), ["f32[2, 2]"]);
    assert_eq!(ty(-1, i64::from(i32::MAX)).unwrap(), ["f32[1, 2]"]);
    let e = ty(3, 2).unwrap_err();
    assert!(e.contains("'x' should be a dense array with a known size of dimension 0"), "{e}");
}

#[test]
fn reshapes_keep_unknown_sizes() {
    let shape = |to: Vec<i64>| {
        let op = Op::new("reshape").input("X", "x").output("Out", "o").attr("shape", to);
        symbolic(op, &[VarType::f32([-1, -2, 12])])
    };
    assert_eq!(shape(vec![0, 0, 3, -1]).unwrap(), ["f32[-1, -2, 3, 4]"]);
    assert_eq!(shape(vec![0, -1, 4]).unwrap(), ["f32[-1, -2, 4]"]);
    let e = shape(vec![-1, 12]).unwrap_err();
    assert!(e.contains("does not keep all unknown sizes but one"), "{e}");
}

#[test]
fn reshape_with_open_and_kept_dimensions() {
    let to = |shape: Vec<i64>| case("reshape").input("X", matrix()).attr("shape", shape);
    assert_eq!(to(vec![3, -1]).out(), f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(to(vec![0, 1, -1]).out().shape(), [2, 1, 3]);
    assert_eq!(to(vec![-1]).out().shape(), [6]);
    for (shape, reason) in [
        (vec![4, -1], "does not hold the elements of X, which is f32[2, 3]"),
        (vec![5], "does not hold the elements"),
        (vec![-1, -1], "leaves more than one dimension open"),
        (vec![2, 3, 0], "keeps dimension 2, but X is f32[2, 3]"),
        (vec![-3, 2], "has the dimension -3"),
    ] {
        let e = to(shape).error();
        assert!(e.starts_with("op reshape: attribute 'shape' [") && e.contains(reason), "{e}");
    }
}

#[test]
fn reshape_keeps_the_batch_first() {
    let to = |from: &[i64], shape: Vec<i64>| {
        let op = Op::new("reshape").input("X", "x").output("Out", "o").attr("shape", shape);
        symbolic(op, &[VarType::f32(from)])
    };
    assert_eq!(to(&[-1, 26, 9], vec![-1, 234]).unwrap(), ["f32[-1, 234]"]);
    assert_eq!(to(&[-1, 26, 9], vec![0, -1]).unwrap(), ["f32[-1, 234]"]);
    assert_eq!(to(&[-1, 26, 9], vec![0, 0, 3, 3]).unwrap(), ["f32[-1, 26, 3, 3]"]);
    assert_eq!(to(&[-1, 26, 9], vec![-1, 0, 3]).unwrap(), ["f32[-1, 26, 3]"]);
    assert_eq!(to(&[-1, 5, 8], vec![-1, 8]).unwrap(), ["f32[-1, 8]"]);
    assert_eq!(to(&[-1, 8], vec![-1, 5, 8]).unwrap(), ["f32[-1, 5, 8]"]);
    assert!(to(&[-1, 8], vec![8, -1]).unwrap_err().contains("does not keep the batch first"));
    assert!(to(&[-1, 8], vec![4, 8]).unwrap_err().contains("does not keep the batch first"));
    assert!(to(&[-1, 8], vec![-1, 3]).unwrap_err().contains("does not hold the elements"));
    assert!(to(&[-1, 8], vec![0, 3]).unwrap_err().contains("does not hold the elements"));
    assert!(to(&[8, -1], vec![-1]).unwrap_err().contains("'x' should be a dense array whose only"));
}

#[test]
fn transpose_of_small_and_large_arrays() {
    let got = case("transpose").input("X", matrix()).attr("perm", vec![1, 0]).out();
    assert_eq!(got, f32s(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    // Larger than the squares it works in, against the definition.
    let dims = [3, 37, 41, 2];
    let n: usize = dims.iter().product();
    let x = i64s(&dims, &(0..n as i64).collect::<Vec<_>>());
    for perm in [[0, 2, 1, 3], [2, 1, 0, 3], [3, 2, 1, 0], [1, 3, 0, 2], [0, 1, 2, 3]] {
        let attr: Vec<i64> = perm.iter().map(|&p| p as i64).collect();
        let got = case("transpose").input("X", x.clone()).attr("perm", attr).out();
        let shape: Vec<usize> = perm.iter().map(|&p| dims[p]).collect();
        assert_eq!(got.shape(), shape);
        for (at, &value) in got.i64().iter().enumerate() {
            let (mut rest, mut index) = (at, [0; 4]);
            for d in (0..4).rev() {
                index[perm[d]] = rest % shape[d];
                rest /= shape[d];
            }
            let from = index.iter().zip(dims).fold(0, |at, (i, d)| at * d + i);
            assert_eq!(value, from as i64, "{perm:?} {at}");
        }
    }
    let e = case("transpose").input("X", matrix()).attr("perm", vec![0, 0]).error();
    let want = "op transpose: attribute 'perm' [0, 0] is no order of the dimensions of f32[2, 3]";
    assert_eq!(e, want);
}

#[test]
fn reductions() {
    let over = |kind: &str, dims: Vec<i64>, keep: bool| {
        case(kind).input("X", matrix()).attr("dims", dims).attr("keep_dim", keep).out()
    };
    assert_eq!(over("reduce_sum", vec![], false), f32s(&[1], &[21.0]));
    assert_eq!(over("reduce_sum", vec![0], false), f32s(&[3], &[5.0, 7.0, 9.0]));
    assert_eq!(over("reduce_sum", vec![-1], true), f32s(&[2, 1], &[6.0, 15.0]));
    assert_eq!(over("reduce_mean", vec![1], false), f32s(&[2], &[2.0, 5.0]));
    assert_eq!(over("reduce_mean", vec![0, 1], true), f32s(&[1, 1], &[3.5]));
    assert_eq!(over("reduce_max", vec![0], true), f32s(&[1, 3], &[4.0, 5.0, 6.0]));
    assert_eq!(over("reduce_max", vec![1], false), f32s(&[2], &[3.0, 6.0]));
    let e = case("reduce_sum").input("X", matrix()).attr("dims", vec![0, -2]).error();
    let want = "op reduce_sum: attribute 'dims' [0, -2] are not different dimensions of f32[2, 3]";
    assert_eq!(e, want);
    let e = case("reduce_mean").input("X", i64s(&[1], &[1])).error();
    assert_eq!(e, "op reduce_mean: X 'X0' should be dense f32, but is i64[1]");
    let nan = f32s(&[1, 3], &[1.0, f32::NAN, 2.0]);
    assert!(case("reduce_max").input("X", nan).out().f32()[0].is_nan());
    let op = Op::new("reduce_max").input("X", "x").output("Out", "o").attr("dims", vec![-2]);
    let e = symbolic(op, &[VarType::f32([-1, 2])]).unwrap_err();
    assert_eq!(e, "op reduce_max: attribute 'dims' is -2, which is the batch dimension; write 0");
}

#[test]
fn reductions_of_any_dimensions_against_the_definition() {
    let dims = [2usize, 3, 4, 5];
    let x: Vec<f32> = (0..120).map(|i| (i * 37 % 101) as f32).collect();
    for mask in 0..16usize {
        let reduced: Vec<i64> = (0..4).filter(|d| mask >> d & 1 == 1).collect();
        let mut want = vec![(0.0f64, f32::NEG_INFINITY, 0.0); 120];
        for (i, &v) in x.iter().enumerate() {
            let (mut rest, mut at, mut step) = (i, 0, 1);
            for d in (0..4).rev() {
                if mask != 0 && mask >> d & 1 == 0 {
                    at += rest % dims[d] * step;
                    step *= dims[d];
                }
                rest /= dims[d];
            }
            want[at] = (want[at].0 + f64::from(v), want[at].1.max(v), want[at].2 + 1.0);
        }
        let run =
            |kind: &str| case(kind).input("X", f32s(&dims, &x)).attr("dims", reduced.clone()).out();
        let (sum, mean, max) = (run("reduce_sum"), run("reduce_mean"), run("reduce_max"));
        for (i, want) in want.iter().enumerate().take(sum.numel()) {
            assert_eq!(f64::from(sum.f32()[i]), want.0, "{reduced:?}");
            assert!((f64::from(mean.f32()[i]) - want.0 / want.2).abs() < 1e-4, "{reduced:?}");
            assert_eq!(max.f32()[i], want.1, "{reduced:?}");
        }
    }
}

fn dropout(prob: f64) -> Case {
    let x = f32s(&[1000, 2], &[2.0; 2000]);
    let case = case("dropout").input("X", x).attr("prob", prob).attr("seed", 5);
    case.output("Out", "Out").output("Mask", "Mask")
}

#[test]
fn dropout_drops_a_share_and_scales_the_rest() {
    let env = dropout(0.25).run().unwrap();
    let (out, mask) = (tensor(&env, "Out"), tensor(&env, "Mask"));
    let keep = 1.0 / 0.75;
    assert!(mask.f32().iter().all(|&m| m == 0.0 || m == keep));
    assert!(out.f32().iter().zip(mask.f32()).all(|(&o, &m)| o == 2.0 * m));
    let dropped = mask.f32().iter().filter(|&&m| m == 0.0).count();
    assert!((450..550).contains(&dropped), "{dropped} of 2000");
    let mut case = dropout(0.25);
    let mut next = StepCtx { step: 1, ..StepCtx::default() };
    eval(&case.op, &mut case.env, &mut next).unwrap();
    assert_ne!(tensor(&case.env, "Mask"), mask, "another step drops others");
}

#[test]
fn dropout_for_test_is_a_copy() {
    let env = dropout(0.9).attr("is_test", true).run().unwrap();
    assert!(tensor(&env, "Out").f32().iter().all(|&x| x == 2.0));
    for prob in [1.0, -0.1, f64::NAN] {
        let e = dropout(prob).error();
        assert!(e.contains("op dropout: attribute 'prob' is") && e.contains("[0, 1)"), "{e}");
    }
}

fn batch_norm() -> Case {
    case("batch_norm")
        .input("X", f32s(&[2, 2], &[1.0, 10.0, 3.0, 30.0]))
        .input("Scale", f32s(&[2], &[1.0, 2.0]))
        .input("Bias", f32s(&[2], &[0.0, 5.0]))
        .input("Mean", f32s(&[2], &[0.0, 10.0]))
        .input("Variance", f32s(&[2], &[1.0, 4.0]))
        .attr("epsilon", 0.0)
        .output("Y", "Y")
}

#[test]
fn batch_norm_trains_on_the_batch_and_remembers() {
    let trained = batch_norm()
        .output("MeanOut", "Mean0")
        .output("VarianceOut", "Variance0")
        .output("SavedMean", "m")
        .output("SavedInvStd", "s");
    let env = trained.run().unwrap();
    near(&tensor(&env, "Y"), &[2, 2], &[-1.0, 3.0, 1.0, 7.0]);
    near(&tensor(&env, "Mean0"), &[2], &[0.2, 11.0]);
    near(&tensor(&env, "Variance0"), &[2], &[1.0, 13.6]);
    near(&tensor(&env, "m"), &[2], &[2.0, 20.0]);
    near(&tensor(&env, "s"), &[2], &[1.0, 0.1]);
}

#[test]
fn batch_norm_for_test_uses_what_it_remembers() {
    let want = [1.0, 5.0, 3.0, 25.0];
    let env = batch_norm().attr("is_test", true).run().unwrap();
    near(&tensor(&env, "Y"), &[2, 2], &want);
    let kept = batch_norm().output("MeanOut", "Mean0").output("VarianceOut", "Variance0");
    let env = kept.attr("is_test", true).run().unwrap();
    near(&tensor(&env, "Y"), &[2, 2], &want);
    near(&tensor(&env, "Mean0"), &[2], &[0.0, 10.0]);
    let e = batch_norm().error();
    assert_eq!(e, "op batch_norm: slot 'MeanOut' is needed for training");
    let e = batch_norm().input("Scale", f32s(&[3], &[0.0; 3])).error();
    assert!(e.starts_with("op batch_norm: slot 'Scale' holds 2 variables"), "{e}");
    let e = batch_norm().output("MeanOut", "m").attr("is_test", true).error();
    assert_eq!(e, "op batch_norm: slot 'MeanOut' is 'm', but should be the one in Mean");
}

#[test]
fn layer_norm_of_rows() {
    let case = case("layer_norm")
        .input("X", f32s(&[2, 2], &[1.0, 3.0, 10.0, 30.0]))
        .input("Scale", f32s(&[2], &[1.0, 2.0]))
        .input("Bias", f32s(&[2], &[0.0, 5.0]))
        .attr("epsilon", 0.0);
    let env = case.output("Y", "Y").output("Mean", "m").output("InvStd", "s").run().unwrap();
    near(&tensor(&env, "Y"), &[2, 2], &[-1.0, 7.0, -1.0, 7.0]);
    near(&tensor(&env, "m"), &[2, 1], &[2.0, 20.0]);
    near(&tensor(&env, "s"), &[2, 1], &[1.0, 0.1]);
}

#[test]
fn layer_norm_names_the_wrong_input() {
    let case = case("layer_norm")
        .input("X", matrix())
        .input("Scale", f32s(&[2], &[1.0; 2]))
        .input("Bias", f32s(&[3], &[0.0; 3]));
    let e = case.output("Y", "Y").output("Mean", "m").output("InvStd", "s").error();
    assert_eq!(e, "op layer_norm: Scale 'Scale0' should be f32[3], but is f32[2]");
}

fn column(values: &[f32]) -> Tensor {
    f32s(&[values.len(), 1], values)
}

#[test]
fn sigmoid_cross_entropy_is_stable() {
    let x = [0.0, 2.0, -2.0, 100.0, -100.0, 20.0];
    let labels = [1.0, 0.0, 0.5, 0.0, 0.0, 1.0];
    let got =
        case("sigmoid_cross_entropy").input("X", column(&x)).input("Label", column(&labels)).out();
    let want = [std::f32::consts::LN_2, 2.126_928, 1.126_928, 100.0, 0.0, 0.0];
    near(&got, &[6, 1], &want);
    // A tiny loss keeps its digits.
    assert!((got.f32()[5] / 2.061_153_6e-9 - 1.0).abs() < 1e-4, "{}", got.f32()[5]);
}

#[test]
fn losses_of_one_element() {
    let loss = |kind: &str, x: &[f32], label: &[f32]| {
        case(kind).input("X", column(x)).input("Label", column(label))
    };
    let got = loss("log_loss", &[0.8, 0.4], &[1.0, 0.0]).attr("epsilon", 0.0).out();
    near(&got, &[2, 1], &[-(0.8f32.ln()), -(0.6f32.ln())]);
    assert!(loss("log_loss", &[0.0], &[1.0]).out().f32()[0].is_finite());
    let got = loss("huber_loss", &[0.5, 3.0, -3.0], &[0.0; 3]).attr("delta", 1.0).out();
    near(&got, &[3, 1], &[0.125, 2.5, 2.5]);
    let got = loss("hinge_loss", &[0.25, 0.25, 2.0], &[1.0, 0.0, 1.0]).out();
    near(&got, &[3, 1], &[0.75, 1.25, 0.0]);
    let e = loss("huber_loss", &[0.0], &[0.0, 1.0]).error();
    assert_eq!(e, "op huber_loss: Label 'Label0' should be f32[1, 1], but is f32[2, 1]");
    let e = loss("huber_loss", &[0.0], &[0.0]).attr("delta", 0.0).error();
    assert_eq!(e, "op huber_loss: attribute 'delta' is 0, which is too small");
    let e = loss("sigmoid_cross_entropy", &[0.0], &[0.0, 1.0]).error();
    assert!(e.contains("Label 'Label0' should be f32[1, 1]"), "{e}");
}

#[test]
fn cos_sim_of_rows_and_of_nothing() {
    let x = f32s(&[3, 2], &[3.0, 4.0, 1.0, 0.0, 0.0, 0.0]);
    let y = f32s(&[3, 2], &[4.0, 3.0, 0.0, 2.0, 1.0, 1.0]);
    let got = case("cos_sim").input("X", x.clone()).input("Y", y.clone()).out();
    near(&got, &[3, 1], &[0.96, 0.0, 0.0]);
    let grad = case("cos_sim_grad").input("X", x).input("Y", y).input("dOut", column(&[1.0; 3]));
    let env = grad.output("dX", "dX").output("dY", "dY").run().unwrap();
    assert_eq!(tensor(&env, "dX").f32()[4..], [0.0, 0.0]);
    assert_eq!(tensor(&env, "dY").f32()[4..], [0.0, 0.0]);
}

fn accuracy(labels: &[i64]) -> Case {
    let scores = f32s(&[3, 2], &[0.2, 0.8, 0.5, 0.5, 0.9, 0.1]);
    case("accuracy").input("X", scores).input("Label", i64s(&[labels.len(), 1], labels))
}

#[test]
fn accuracy_counts_first_maxima() {
    assert_eq!(accuracy(&[1, 0, 1]).out(), f32s(&[1], &[2.0 / 3.0]));
    let e = accuracy(&[1, 2, 1]).error();
    assert_eq!(e, "running accuracy: label 2 of example 1 is not one of the 2 classes");
    let e = accuracy(&[1, 0]).error();
    assert_eq!(e, "op accuracy: Label 'Label0' should be i64[3, 1], but is i64[2, 1]");
}

fn auc(predict: Tensor, labels: &[i64], stats: [&[i64]; 2]) -> Case {
    case("auc")
        .input("Predict", predict)
        .input("Label", i64s(&[labels.len(), 1], labels))
        .input("StatPos", i64s(&[stats[0].len()], stats[0]))
        .input("StatNeg", i64s(&[stats[1].len()], stats[1]))
        .output("AUC", "Out")
        .output("StatPosOut", "StatPos0")
        .output("StatNegOut", "StatNeg0")
}

#[test]
fn auc_adds_to_what_was_counted() {
    let predict = f32s(&[3, 2], &[0.1, 0.9, 0.5, 0.5, 0.0, 1.0]);
    let env = auc(predict, &[1, 0, 1], [&[1, 0, 0, 0, 0], &[1, 0, 0, 0, 0]]).run().unwrap();
    assert_eq!(tensor(&env, "StatPos0").i64(), [1, 0, 0, 1, 1]);
    assert_eq!(tensor(&env, "StatNeg0").i64(), [1, 0, 1, 0, 0]);
    // Of six pairs, four are won, one is a tie and one is lost.
    near(&tensor(&env, "Out"), &[1], &[4.5 / 6.0]);
    let env = auc(column(&[0.5]), &[1], [&[0; 5], &[0; 5]]).run().unwrap();
    near(&tensor(&env, "Out"), &[1], &[0.5]);
    let e = auc(column(&[1.5]), &[1], [&[0; 5], &[0; 5]]).error();
    assert_eq!(e, "running auc: the prediction 1.5 of example 0 is no probability");
    let e = auc(column(&[0.5]), &[3], [&[0; 5], &[0; 5]]).error();
    assert_eq!(e, "running auc: label 3 of example 0 is not 0 or 1");
    let e = auc(column(&[0.5]), &[1], [&[0; 5], &[0; 4]]).error();
    assert_eq!(e, "op auc: StatNeg 'StatNeg0' should be i64[5], but is i64[4]");
}

#[test]
fn casts_between_all_types() {
    let cast = |x: Tensor, to: &str| case("cast").input("X", x).attr("dtype", to);
    let floats = || f32s(&[4], &[1.9, -1.9, -0.5, 3.0]);
    assert_eq!(cast(floats(), "i64").out(), i64s(&[4], &[1, -1, 0, 3]));
    assert_eq!(cast(f32s(&[2], &[0.5, 3.0]), "u64").out(), u64s(&[2], &[0, 3]));
    assert_eq!(cast(i64s(&[2], &[-4, 7]), "f32").out(), f32s(&[2], &[-4.0, 7.0]));
    assert_eq!(cast(u64s(&[1], &[7]), "i64").out(), i64s(&[1], &[7]));
    assert_eq!(cast(floats(), "f32").out(), floats());
    for (x, to, message) in [
        (floats(), "u64", "-1.9 has no counterpart in u64"),
        (f32s(&[1], &[f32::NAN]), "i64", "NaN has no counterpart in i64"),
        (f32s(&[1], &[1e30]), "i64", "1000000000000000000000000000000 has no counterpart in i64"),
        (i64s(&[1], &[-1]), "u64", "-1 has no counterpart in u64"),
        (u64s(&[1], &[u64::MAX]), "i64", "18446744073709551615 has no counterpart in i64"),
    ] {
        assert_eq!(cast(x, to).error(), format!("running cast: {message}"));
    }
    assert!(cast(floats(), "f8").error().contains("unknown dtype 'f8'"));
    // Only floats pass gradients on.
    let op = Op::new("cast").input("X", "x").output("Out", "o").attr("dtype", "i64");
    assert!(gradient(&op, &|_| true, &|_| VarType::f32([2])).is_empty());
}

#[test]
fn one_hot_of_both_integer_types() {
    let hot = |x: Tensor| case("one_hot").input("X", x).attr("depth", 3);
    let want = f32s(&[2, 3], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(hot(i64s(&[2, 1], &[2, 0])).out(), want);
    assert_eq!(hot(u64s(&[2, 1], &[2, 0])).out(), want);
    let e = hot(i64s(&[2, 1], &[2, 3])).error();
    assert_eq!(e, "running one_hot: id 3 in row 1 is not below the depth 3");
    assert!(hot(i64s(&[1, 1], &[-1])).error().contains("id -1 in row 0"));
    let e = hot(i64s(&[2, 2], &[0; 4])).error();
    let want =
        "op one_hot: X 'X0' should be i64 or u64 with a last dimension of 1, but is i64[2, 2]";
    assert_eq!(e, want);
}

#[test]
fn sequence_mask_has_ones_before_the_length() {
    let mask = |x: &[i64]| {
        case("sequence_mask").input("Lengths", i64s(&[x.len(), 1], x)).attr("maxlen", 3)
    };
    let want = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    assert_eq!(mask(&[2, 0, 3, 9]).out(), f32s(&[4, 3], &want));
    let e = mask(&[1, -1]).error();
    assert_eq!(e, "running sequence_mask: the length -1 of example 1 is negative");
}

#[test]
fn embedding_gives_ids_of_any_rank_one_more_dimension() {
    let table = || f32s(&[3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let look = |ids: Vec<Tensor>| case("embedding").input("W", table()).inputs("Ids", ids);
    near(&look(vec![i64s(&[2], &[2, 0])]).out(), &[2, 2], &[20.0, 21.0, 0.0, 1.0]);
    near(&look(vec![i64s(&[2, 1], &[2, 0])]).out(), &[2, 1, 2], &[20.0, 21.0, 0.0, 1.0]);
    near(&look(vec![i64s(&[1, 1, 2], &[1, 0])]).out(), &[1, 1, 2, 2], &[10.0, 11.0, 0.0, 1.0]);
    near(&look(vec![u64s(&[1, 1, 2], &[1, 0])]).out(), &[1, 1, 2, 2], &[10.0, 11.0, 0.0, 1.0]);
    // One unsigned column has a vector per example, as several inputs have.
    near(&look(vec![u64s(&[2], &[2, 0])]).out(), &[2, 1, 2], &[20.0, 21.0, 0.0, 1.0]);
    let several = vec![i64s(&[1, 1], &[2]), u64s(&[1], &[0]), i64s(&[1], &[1])];
    near(&look(several).out(), &[1, 3, 2], &[20.0, 21.0, 0.0, 1.0, 10.0, 11.0]);
    let padded = look(vec![i64s(&[2], &[2, 0])]).attr("padding_idx", 2);
    near(&padded.out(), &[2, 2], &[0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn embedding_names_what_is_no_id() {
    let look = |ids: Vec<Tensor>| {
        case("embedding").input("W", f32s(&[3, 1], &[0.0; 3])).inputs("Ids", ids)
    };
    for hash in [true, false] {
        let e = look(vec![i64s(&[2], &[1, -4])]).attr("hash", hash).error();
        assert_eq!(e, "running embedding: id -4 of 'Ids0' is negative; ids count from 0");
    }
    let e = look(vec![i64s(&[2], &[1, 3])]).error();
    assert_eq!(e, "running embedding: id 3 of 'Ids0' is beyond the table of 3 rows");
    let e = look(vec![i64s(&[2], &[1, 3])]).attr("padding_idx", -2).error();
    assert!(e.contains("'padding_idx' is -2, but should be an id, or -1 for none"), "{e}");
    let e = look(vec![f32s(&[2], &[1.0, 2.0])]).error();
    assert!(e.contains("'Ids0'") && e.contains("u64 or i64"), "{e}");
    let e = look(vec![i64s(&[1, 1, 1], &[1]), i64s(&[1], &[1])]).error();
    assert!(e.contains("'Ids0'") && e.contains("the same batch for all"), "{e}");
}

#[test]
fn integers_are_added_and_multiplied() {
    let (x, y) = (|| i64s(&[2, 2], &[1, -2, 3, 4]), || i64s(&[2], &[10, -1]));
    let of = |kind: &str| case(kind).input("X", x()).input("Y", y()).out();
    assert_eq!(of("elementwise_add"), i64s(&[2, 2], &[11, -3, 13, 3]));
    assert_eq!(of("elementwise_sub"), i64s(&[2, 2], &[-9, -1, -7, 5]));
    assert_eq!(of("elementwise_mul"), i64s(&[2, 2], &[10, 2, 30, -4]));
    let sum = case("sum").inputs("X", vec![x(), x(), i64s(&[2, 2], &[0, 0, i64::MAX, 1])]).out();
    assert_eq!(sum, i64s(&[2, 2], &[2, -4, i64::MIN + 5, 9]));
    let reduce = |dims: Vec<i64>| case("reduce_sum").input("X", x()).attr("dims", dims).out();
    assert_eq!(reduce(vec![]), i64s(&[1], &[6]));
    assert_eq!(reduce(vec![0]), i64s(&[2], &[4, 2]));
    assert_eq!(reduce(vec![-1]), i64s(&[2], &[-1, 7]));
}

#[test]
fn what_integers_cannot_do_is_refused() {
    let (i, u) = (|| i64s(&[1], &[2]), || u64s(&[1], &[2]));
    for (case, slot) in [
        (case("sum").inputs("X", vec![u(), u()]), "X0"),
        (case("sum").inputs("X", vec![i(), f32s(&[1], &[1.0])]), "X1"),
        (case("elementwise_add").input("X", i()).input("Y", f32s(&[1], &[1.0])), "Y0"),
        (case("elementwise_mul").input("X", u()).input("Y", u()), "X0"),
        (case("reduce_sum").input("X", u()), "X0"),
        (case("reduce_mean").input("X", i()), "X0"),
    ] {
        let e = case.run().unwrap_err();
        assert!(matches!(&e, Error::Type { var, .. } if var == slot), "{e}");
    }
}

#[test]
fn labels_are_flat_ignored_or_soft() {
    let x = || f32s(&[3, 2], &[0.0, 1.0, 2.0, 0.5, -1.0, 1.0]);
    let loss = |label: Tensor, soft: bool| {
        let case = case("softmax_with_cross_entropy").input("Logits", x()).input("Label", label);
        let case = case.attr("soft_label", soft).output("Loss", "Loss");
        tensor(&case.output("Softmax", "Softmax").run().unwrap(), "Loss")
    };
    let of = |row: usize, class: usize| {
        let row = &x().f32()[row * 2..row * 2 + 2].to_vec();
        (row[0].exp() + row[1].exp()).ln() - row[class]
    };
    let hard = [of(0, 1), 0.0, of(2, 0)];
    near(&loss(i64s(&[3, 1], &[1, -100, 0]), false), &[3, 1], &hard);
    near(&loss(i64s(&[3], &[1, -100, 0]), false), &[3, 1], &hard);
    let soft = f32s(&[3, 2], &[0.5, 0.5, 1.0, 0.0, 0.0, 2.0]);
    let want = [(of(0, 0) + of(0, 1)) / 2.0, of(1, 0), 2.0 * of(2, 1)];
    near(&loss(soft, true), &[3, 1], &want);

    let p = || f32s(&[2, 2], &[0.25, 0.75, 0.5, 0.5]);
    let loss = |label: Tensor, ignored: i64| {
        case("cross_entropy").input("X", p()).input("Label", label).attr("ignore_index", ignored)
    };
    let want = [-(0.75f32.ln()), -(0.5f32.ln())];
    near(&loss(i64s(&[2], &[1, 0]), -100).out(), &[2, 1], &want);
    near(&loss(i64s(&[2], &[1, 0]), 0).out(), &[2, 1], &[want[0], 0.0]);
    let e = loss(i64s(&[2], &[1, -100]), -1).error();
    assert!(e.contains("label -100 of example 1 is not one of the 2 classes"), "{e}");
    let e = loss(i64s(&[1, 2], &[1, 0]), -1).error();
    assert!(e.contains("'Label0'"), "{e}");
}

#[test]
fn softmax_over_any_dimension() {
    let x = || f32s(&[2, 2], &[0.0, 1.0, 2.0, 1.0]);
    let (a, b) = (1.0 / (1.0 + 2f32.exp()), 1.0 / (1.0 + 1f32.exp()));
    let over = |axis: i64| case("softmax").input("X", x()).attr("axis", axis);
    near(&over(0).out(), &[2, 2], &[a, 0.5, 1.0 - a, 0.5]);
    near(&over(1).out(), &[2, 2], &[b, 1.0 - b, 1.0 - b, b]);
    near(&over(-1).out(), &[2, 2], &[b, 1.0 - b, 1.0 - b, b]);
    // Numbers that are large together, side by side with small ones.
    let x = f32s(&[1, 2, 2], &[1000.0, -1000.0, 1000.0, -1001.0]);
    let out = case("softmax").input("X", x).attr("axis", 1).out();
    near(&out, &[1, 2, 2], &[0.5, 1.0 - b, 0.5, b]);
    let e = over(2).error();
    assert!(e.contains("'axis' is 2, but there are 2 dimensions"), "{e}");
    let op = Op::new("softmax").input("X", "x").attr("axis", -2).output("Out", "y");
    let e = symbolic(op, &[VarType::f32([-1, 3])]).unwrap_err();
    assert!(e.contains("which is the batch dimension; write 0"), "{e}");
}

#[test]
fn matmul_broadcasts_as_loops_over_matrices_do() {
    let numbers = |shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        f32s(shape, &(0..n).map(|i| ((i * 7 + seed) % 11) as f32 - 5.0).collect::<Vec<_>>())
    };
    for (x, y, out) in [
        (&[2, 3, 2, 4][..], &[2, 3, 4, 5][..], &[2, 3, 2, 5][..]),
        (&[2, 1, 2, 4], &[3, 4, 5], &[2, 3, 2, 5]),
        (&[3, 2, 4], &[4, 5], &[3, 2, 5]),
        (&[1, 2, 4], &[3, 4, 5], &[3, 2, 5]),
        (&[2, 3, 2, 4], &[4, 5], &[2, 3, 2, 5]),
    ] {
        let (a, b) = (numbers(x, 1), numbers(y, 2));
        let got = case("matmul").input("X", a.clone()).input("Y", b.clone()).out();
        assert_eq!(got.shape(), out);
        let at = |t: &Tensor, lead: &[usize], r: usize, c: usize| {
            let shape = t.shape();
            let own = &shape[..shape.len() - 2];
            let lead = &lead[lead.len() - own.len()..];
            let of = own.iter().zip(lead).fold(0, |of, (&d, &i)| of * d + i.min(d - 1));
            let [rows, cols] = shape[shape.len() - 2..] else { unreachable!() };
            t.f32()[of * rows * cols + r * cols + c]
        };
        let lead = &out[..out.len() - 2];
        for which in 0..lead.iter().product() {
            let mut rest = which;
            let mut index = vec![0; lead.len()];
            for (i, d) in index.iter_mut().zip(lead).rev() {
                (*i, rest) = (rest % d, rest / d);
            }
            for (r, c) in (0..2).flat_map(|r| (0..5).map(move |c| (r, c))) {
                let want: f32 = (0..4).map(|k| at(&a, &index, r, k) * at(&b, &index, k, c)).sum();
                assert_eq!(at(&got, &index, r, c), want, "{x:?} {y:?}");
            }
        }
    }
}

#[test]
fn matmul_of_vectors() {
    let v = || f32s(&[3], &[1.0, 2.0, -1.0]);
    let of = |x: Tensor, y: Tensor| case("matmul").input("X", x).input("Y", y);
    assert_eq!(of(matrix(), v()).out(), f32s(&[2], &[2.0, 8.0]));
    assert_eq!(of(v(), matrix()).attr("trans_y", true).out(), f32s(&[2], &[2.0, 8.0]));
    assert_eq!(of(v(), v()).out(), f32s(&[1], &[6.0]));
}

#[test]
fn matmul_knows_where_the_batch_is() {
    let product = || Op::new("matmul").input("X", "x").input("Y", "y").output("Out", "o");
    let of = |x: &[i64], y: &[i64]| symbolic(product(), &[VarType::f32(x), VarType::f32(y)]);
    assert_eq!(of(&[-1, 8, 2, 4], &[-1, 8, 4, 3]).unwrap(), ["f32[-1, 8, 2, 3]"]);
    assert_eq!(of(&[-1, 8, 2, 4], &[8, 4, 3]).unwrap(), ["f32[-1, 8, 2, 3]"]);
    assert_eq!(of(&[-1, 4], &[4]).unwrap(), ["f32[-1]"]);
    assert_eq!(of(&[4], &[-1, 4, 3]).unwrap(), ["f32[-1, 3]"]);
    assert_eq!(of(&[-1], &[-1, 3]).unwrap(), ["f32[3]"]);
    let turned = product().attr("trans_y", true);
    let column = symbolic(turned, &[VarType::f32([4]), VarType::f32([-1, 4])]).unwrap();
    assert_eq!(column, ["f32[-1]"]);
    for (x, y, of_which) in [
        (&[-1, 2, 4][..], &[5, 4, 3][..], "'y'"),
        (&[-1, 1, 2, 4], &[-1, 4, 3], "'y'"),
        (&[-1, 4], &[5, 4, 3], "'x'"),
        (&[5, 2, 4], &[4, -1], "'y'"),
    ] {
        let e = of(x, y).unwrap_err();
        assert!(e.contains(of_which), "{x:?} {y:?}: {e}");
    }
}

#[test]
fn auc_of_the_last_batches() {
    let batches: [(&[f32], &[i64]); 4] = [
        (&[0.9, 0.1], &[1, 0]),
        (&[0.9, 0.1], &[0, 1]),
        (&[0.4, 0.6, 0.6], &[0, 1, 0]),
        (&[0.2, 0.8], &[0, 1]),
    ];
    let exact = |from: usize, to: usize| {
        let (mut scores, mut labels) = (Vec::new(), Vec::new());
        for (s, l) in &batches[from..=to] {
            scores.extend_from_slice(s);
            labels.extend_from_slice(l);
        }
        regatta_ops::metrics::exact_auc(&scores, &labels) as f32
    };
    for steps in 0..=3usize {
        let mut counters = [0, 1].map(|_| i64s(&[steps + 1, 11], &vec![0; (steps + 1) * 11]));
        for (at, (scores, labels)) in batches.iter().enumerate() {
            let env = case("auc")
                .input("Predict", f32s(&[scores.len(), 1], scores))
                .input("Label", i64s(&[labels.len()], labels))
                .input("StatPos", counters[0].clone())
                .input("StatNeg", counters[1].clone())
                .attr("slide_steps", steps as i64)
                .output("AUC", "AUC")
                .output("StatPosOut", "StatPos0")
                .output("StatNegOut", "StatNeg0")
                .run()
                .unwrap();
            let from = if steps == 0 { 0 } else { (at + 1).saturating_sub(steps) };
            assert_eq!(tensor(&env, "AUC").f32(), [exact(from, at)], "{steps} steps, batch {at}");
            counters = ["StatPos0", "StatNeg0"].map(|name| tensor(&env, name));
        }
    }
    let flat = auc(f32s(&[1, 1], &[0.5]), &[1], [&[0; 5], &[0; 5]]).attr("slide_steps", 1).error();
    assert_eq!(flat, "op auc: StatPos 'StatPos0' should be i64[2, buckets + 1], but is i64[5]");
}

#[test]
fn assign_value_gives_what_is_written() {
    let of = |shape: Vec<i64>, values: Attr| {
        case("assign_value").attr("shape", shape).attr("values", values)
    };
    let floats = || Attr::Floats(vec![1.5, -2.0]);
    assert_eq!(of(vec![2, 1], floats()).out(), f32s(&[2, 1], &[1.5, -2.0]));
    let ints = || Attr::Ints(vec![3, i64::MAX]);
    assert_eq!(of(vec![2], Attr::Ints(vec![3, -4])).out(), f32s(&[2], &[3.0, -4.0]));
    assert_eq!(of(vec![2], ints()).attr("dtype", "i64").out(), i64s(&[2], &[3, i64::MAX]));
    assert_eq!(of(vec![2], ints()).attr("dtype", "u64").out(), u64s(&[2], &[3, i64::MAX as u64]));
    let e = of(vec![3], ints()).error();
    assert!(e.contains("'values' are 2, but f32[3] is to be filled"), "{e}");
    let e = of(vec![2], floats()).attr("dtype", "i64").error();
    assert!(e.contains("'values' have 1.5, which is no i64"), "{e}");
    let e = of(vec![2], Attr::Ints(vec![1, -2])).attr("dtype", "u64").error();
    assert!(e.contains("'values' have -2, which is no u64"), "{e}");
}

#[test]
fn the_larger_and_the_smaller_of_two() {
    let (x, y) = (f32s(&[2, 2], &[1.0, f32::NAN, 3.0, -1.0]), f32s(&[2], &[2.0, 0.0]));
    let of = |kind: &str| case(kind).input("X", x.clone()).input("Y", y.clone()).out();
    let (max, min) = (of("elementwise_max"), of("elementwise_min"));
    assert!(max.f32()[1].is_nan() && min.f32()[1].is_nan());
    assert_eq!([max.f32()[0], max.f32()[2], max.f32()[3]], [2.0, 3.0, 0.0]);
    assert_eq!([min.f32()[0], min.f32()[2], min.f32()[3]], [1.0, 2.0, -1.0]);
    let ints = case("elementwise_max").input("X", i64s(&[2], &[1, 5])).input("Y", i64s(&[1], &[3]));
    assert_eq!(ints.out(), i64s(&[2], &[3, 5]));
}

#[test]
fn functions_of_one_element() {
    let of = |kind: &str, x: f32| case(kind).input("X", f32s(&[1], &[x])).out().f32()[0];
    for (x, want) in [(2.5, 1.0), (-0.5, -1.0), (0.0, 0.0)] {
        assert_eq!(of("sign", x), want);
    }
    assert_eq!((of("floor", 1.75), of("floor", -1.25)), (1.0, -2.0));
    assert_eq!((of("softsign", 3.0), of("softsign", -1.0)), (0.75, -0.5));
    assert_eq!(of("rsqrt", 0.25), 2.0);
    assert_eq!(of("log1p", 1e-10), 1e-10);
}

#[test]
fn reshapes_that_other_front_ends_write() {
    let of = |from: &[i64], shape: &[i64]| {
        let op = Op::new("reshape").input("X", "x").output("Out", "o");
        let op = op.attr("shape", shape.to_vec());
        symbolic(op, &[VarType::dense(regatta_tensor::DType::I64, from)]).map(|mut ty| ty.remove(0))
    };
    for (from, shape, want) in [
        (&[-1, 26, 9][..], &[-1, 234][..], "i64[-1, 234]"),
        (&[-1, 26, 9], &[0, -1], "i64[-1, 234]"),
        (&[-1, 26, 9], &[0, 0, 3, 3], "i64[-1, 26, 3, 3]"),
        (&[-1, 26, 9], &[-1, 0, 9, 1], "i64[-1, 26, 9, 1]"),
        (&[-1, 26, 9], &[0, 9, -1], "i64[-1, 9, 26]"),
        (&[-1, 1], &[-1], "i64[-1]"),
        (&[-1], &[-1, 1], "i64[-1, 1]"),
        (&[-1], &[0, 1, -1], "i64[-1, 1, 1]"),
        (&[-1, 4, 2], &[-1, 2], "i64[-1, 2]"),
        (&[3, 4], &[0, 2, -1], "i64[3, 2, 2]"),
        (&[1], &[], "i64[]"),
    ] {
        assert_eq!(of(from, shape).as_deref(), Ok(want), "{from:?} to {shape:?}");
    }
    let e = of(&[-1, 6], &[6, -1]).unwrap_err();
    assert!(e.contains("does not keep the batch first"), "{e}");
    let part = case("slice").input("X", i64s(&[2, 3], &[1, 2, 3, 4, 5, 6])).attr("axis", 1);
    assert_eq!(part.attr("start", -2).attr("end", 3).out(), i64s(&[2, 2], &[2, 3, 5, 6]));
}
