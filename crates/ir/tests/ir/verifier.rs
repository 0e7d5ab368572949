use regatta_ir::text::parse;
use regatta_ir::{complete, verify};

use crate::toy_ops::TOY;

/// Programs that are not right, and what the verifier says. The variables are declared in `VARS`.
const BAD: &[(&str, &str)] = &[
    ("Out: h = relu(X: z)", "op relu: variable 'z' is not declared in this program"),
    ("Out: z = relu(X: x)", "op relu: variable 'z' is not declared in this program"),
    ("Out: h = relu(X: g)", "op relu: variable 'g' is read before anything writes it"),
    ("Out: h = relu(X: x)", "op relu: Out 'h' should be f32[-1, 2], but is f32[-1, 3]"),
    ("Out: h = fc(X: x, W: v) {act: \"\"}", "op fc: W 'v' should be f32[2, ..], but is f32[3, 1]"),
    ("Out: h = rely(X: x)", "unknown op 'rely'; did you mean 'relu'?"),
    ("Out: h = transmogrify(X: x)", "unknown op 'transmogrify'"),
    (
        "Out: h = fc(X: x, W: w) {akt: \"relu\"}",
        "op fc: attribute 'akt' is not known; did you mean 'act'?",
    ),
    (
        "Out: h = fc(X: x, W: w) {act: 1}",
        "op fc: attribute 'act' should be a text, but is an integer",
    ),
    ("Out: o, Mask: m = dropout(X: x) {seed: 0}", "op dropout: attribute 'prob' is missing"),
    ("Out: h = fc(X: x) {act: \"\"}", "op fc: slot 'W' holds 0 variables, but takes one"),
    ("Out: h = sum()", "op sum: slot 'X' holds 0 variables, but takes many"),
    (
        "Out: h = fc(X: x, W: [w, w]) {act: \"\"}",
        "op fc: slot 'W' holds 2 variables, but takes one",
    ),
    (
        "Out: h = fc(X: x, Weight: w) {act: \"\"}",
        "op fc: slot 'Weight' is not known (known: X, W, Bias)",
    ),
    (
        "Out: h = fc(X: x, W: w)",
        "op fc: attribute 'act' is not written out; call `complete` on the program first",
    ),
    (
        "Out: h = fc(W: w, X: x) {act: \"\"}",
        "op fc: slot 'W' is empty, repeated or out of order; call `complete` on the program first",
    ),
    (
        "Out: h = fc(X: x, W: w, Bias: []) {act: \"\"}",
        "op fc: slot 'Bias' is empty, repeated or out of order; call `complete` on the program \
         first",
    ),
    (
        "Out: o, Mask: o = dropout(X: x) {prob: 0.5, seed: 0}",
        "op dropout: slot 'Mask' writes 'o' a second time",
    ),
    ("Out: x = relu(X: x)", "op relu: slot 'X' reads 'x', which 'Out' of the same op writes"),
    ("Out: x = relu(X: k)", "op relu: slot 'Out' writes 'x', which the caller feeds"),
    (
        "ParamOut: u = sgd(Param: w, Grad: u) {lr: 0.1}",
        "op sgd: slot 'ParamOut' must hold the variables of 'Param': it updates them",
    ),
    (
        "ParamOut: w = sgd(Param: w, Grad: w) {lr: 0.1}",
        "op sgd: slot 'Grad' reads 'w', which 'ParamOut' of the same op writes",
    ),
];

const VARS: &str = "program p
block 0
  data x: f32[-1, 2]
  param w: f32[2, 3]
  param u: f32[2, 3]
  param v: f32[3, 1]
  persist k: f32[-1, 2]
  var h: f32[-1, 3]
  var g: f32[-1, 3]
  var o: f32[-1, 2]
  var m: f32[-1, 2]
";

#[test]
fn mistakes_are_named() {
    let mut wrong = Vec::new();
    for (op, expected) in BAD {
        let program = parse(&format!("{VARS}  {op}")).unwrap();
        match verify(&program, &TOY) {
            Ok(()) => wrong.push(format!("{op} was accepted")),
            Err(e) if e.to_string() != *expected => {
                wrong.push(format!("{op}\n  should say: {expected}\n  but says:   {e}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_right_program_is_accepted() {
    let program = parse(&format!(
        "{VARS}  Out: h = fc(X: x, W: w) {{act: \"\"}}
  Out: g = sum(X: [h, h])
  Out: o, Mask: m = dropout(X: x) {{prob: 0.5, seed: 0}}
  ParamOut: w = sgd(Param: w, Grad: u) {{lr: 0.1}} @optimize
block 1
  var inner: f32[-1, 3]
  Out: inner = relu(X: g)"
    ));
    verify(&program.unwrap(), &TOY).unwrap();
}

#[test]
fn complete_writes_out_what_a_text_leaves_to_the_defaults() {
    let mut program = parse(&format!("{VARS}  Out: h = fc(W: w, X: x, Bias: [])")).unwrap();
    complete(&mut program, &TOY).unwrap();
    let last = program.block().ops[0].to_string();
    assert_eq!(last, "Out: h = fc(X: x, W: w) {act: \"\"}");
    verify(&program, &TOY).unwrap();
}

#[test]
fn variables_of_one_buffer_must_not_be_in_use_together() {
    let program = |second: &str| {
        parse(&format!(
            "program p
block 0
  data x: f32[-1, 2]
  var a: f32[-1, 2] buffer=b0
  var b: f32[-1, 2] buffer=b1
  var c: f32[-1, 2] buffer={second}
  Out: a = relu(X: x)
  Out: b = relu(X: a)
  Out: c = relu(X: b)"
        ))
        .unwrap()
    };
    verify(&program("b0"), &TOY).unwrap();
    assert_eq!(
        verify(&program("b1"), &TOY).unwrap_err().to_string(),
        "variables 'b' and 'c' share buffer b1 but are in use at the same time"
    );
}
