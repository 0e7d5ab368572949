use regatta_ir::{Act, Error, Fc, Op, ParamAttr, Var};
use regatta_tensor::DType;

use crate::toy_ops::builder;

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn errors_name_op_variable_expected_and_actual_shape() {
    let mut b = builder();
    let x = b.data("x", DType::F32, &[-1, 2]).unwrap();
    let ids = b.data("ids", DType::U64, &[-1, 2]).unwrap();
    let wide = b.data("wide", DType::F32, &[-1, -1]).unwrap();
    let shared = Fc { weight: ParamAttr::weight().named("w"), ..Fc::new(3) };
    let h = b.fc_with(&x, &shared).unwrap();
    assert_eq!(
        said(b.fc(&ids, 4, Act::None)),
        "op fc: X 'ids' should be f32[.., width] with a known width, but is u64[-1, 2]"
    );
    assert_eq!(
        said(b.fc(&wide, 4, Act::None)),
        "op fc: X 'wide' should be f32[.., width] with a known width, but is f32[-1, -1]"
    );
    assert_eq!(
        said(b.fc_with(&h, &shared)),
        "variable 'w' is declared twice: as f32[2, 3] and as f32[3, 3]"
    );
    let op = Op::new("fc").input("X", "wide").input("W", "w");
    assert_eq!(said(b.emit_one(op)), "op fc: W 'w' should be f32[-1, ..], but is f32[2, 3]");
}

#[test]
fn unknown_ops_slots_attributes_and_variables_are_refused_at_once() {
    let mut b = builder();
    b.data("x", DType::F32, &[-1, 2]).unwrap();
    let relu = || Op::new("relu").input("X", "x");
    assert_eq!(
        said(b.emit_one(Op::new("rleu").input("X", "x"))),
        "unknown op 'rleu'; did you mean 'relu'?"
    );
    assert_eq!(
        said(b.emit_one(Op::new("relu").input("Y", "x"))),
        "op relu: slot 'Y' is not known (known: X)"
    );
    assert_eq!(
        said(b.emit_one(relu().attr("alpha", 1.0))),
        "op relu: attribute 'alpha' is not known"
    );
    assert_eq!(
        said(b.emit_one(Op::new("relu").input("X", "z"))),
        "op relu: variable 'z' is not declared in this program"
    );
    assert_eq!(said(b.var("z")), "op builder: variable 'z' is not declared in this program");
    // What was refused left nothing behind.
    assert_eq!(b.main().block().ops.len(), 0);
    assert_eq!(b.main().block().vars.len(), 1);
}

#[test]
fn names_and_shapes_are_checked() {
    let mut b = builder();
    let x = b.data("x", DType::F32, &[-1, 2]).unwrap();
    assert_eq!(
        said(b.data("x", DType::I64, &[-1, 1])),
        "variable 'x' is declared twice: as f32[-1, 2] and as i64[-1, 1]"
    );
    assert_eq!(
        said(b.data("a b", DType::F32, &[-1])),
        "'a b' cannot name a variable: ' ' is not allowed in a name"
    );
    assert_eq!(said(b.data("", DType::F32, &[-1])), "'' cannot name a variable: it is empty");
    assert_eq!(
        said(b.data("y", DType::F32, &[-1, -3])),
        "variable 'y': f32[-1, -3] has the dimension -3; only -1 and -2 stand for unknown sizes"
    );
    assert_eq!(
        said(b.fc(&x, 0, Act::None)),
        "variable 'fc_0.w_0': a parameter cannot be f32[2, 0]: every dimension must be at least 1"
    );
}

#[test]
fn generated_names_avoid_names_that_are_taken() {
    let mut b = builder();
    let x = b.data("x", DType::F32, &[-1, 2]).unwrap();
    b.data("relu_0.tmp_0", DType::F32, &[-1, 2]).unwrap();
    assert_eq!(b.relu(&x).unwrap().name(), "relu_1.tmp_0");
    // A layer must not share a parameter that only happens to have the name it would generate.
    let first = Fc { weight: ParamAttr::weight().named("fc_1.w_0"), ..Fc::new(2) };
    b.fc_with(&x, &first).unwrap();
    let second = b.fc(&x, 2, Act::None).unwrap();
    assert_eq!(second.name(), "fc_2.tmp_0");
}

#[test]
fn layers_that_name_the_same_parameter_share_it() {
    let mut b = builder();
    let x = b.data("x", DType::F32, &[-1, 2]).unwrap();
    let spec = Fc { weight: ParamAttr::weight().named("w"), bias: None, ..Fc::new(2) };
    let outs: Vec<Var> = (0..2).map(|_| b.fc_with(&x, &spec).unwrap()).collect();
    assert_ne!(outs[0], outs[1]);
    let programs = b.finish();
    assert_eq!(programs.main.param_names(), ["w"]);
    assert_eq!(programs.startup.block().ops.len(), 1);
}
