//! Print and parse are inverse, and no text makes the parser panic.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::num::f64;
use proptest::option;
use proptest::prelude::*;
use regatta_ir::text::parse;
use regatta_ir::{
    Attr, Block, Layout, Op, Origin, ParamInfo, Program, Regularizer, Role, VarDef, VarType,
};
use regatta_tensor::DType;

/// Everything but NaN, which equals nothing.
fn float() -> impl Strategy<Value = f64> {
    f64::POSITIVE | f64::NEGATIVE | f64::NORMAL | f64::SUBNORMAL | f64::ZERO | f64::INFINITE
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z_][a-zA-Z0-9_]{0,8}",
        // Words that also mean something at the beginning of a line or as a value.
        prop::sample::select(vec!["program", "block", "data", "param", "var", "true", "inf", "l2"])
            .prop_map(String::from),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![word(), "[a-zA-Z0-9_.@/#+-]{1,12}", "[äöüλ变量]{1,4}"]
}

fn attr() -> impl Strategy<Value = Attr> {
    prop_oneof![
        any::<i64>().prop_map(Attr::Int),
        float().prop_map(Attr::Float),
        any::<bool>().prop_map(Attr::Bool),
        any::<String>().prop_map(Attr::Str),
        "[\"'\\\\\n\r\t\0{}\\[\\],:= @#u]{0,12}".prop_map(Attr::Str),
        vec(any::<i64>(), 0..4).prop_map(Attr::Ints),
        vec(float(), 0..4).prop_map(Attr::Floats),
        vec(any::<String>(), 0..4).prop_map(Attr::Strs),
    ]
}

fn ty() -> impl Strategy<Value = VarType> {
    let dtype = prop::sample::select(vec![DType::F32, DType::I64, DType::U64]);
    let layout = prop::sample::select(vec![Layout::Dense, Layout::Ragged, Layout::Rows]);
    (dtype, layout, vec(-2i64..1000, 0..4)).prop_map(|(dtype, layout, shape)| VarType {
        dtype,
        layout,
        shape,
    })
}

fn param_info() -> impl Strategy<Value = ParamInfo> {
    let penalty = prop_oneof![float().prop_map(Regularizer::L1), float().prop_map(Regularizer::L2)];
    (any::<bool>(), prop_oneof![Just(1.0), float()], option::of(penalty), any::<bool>()).prop_map(
        |(trainable, lr_scale, regularizer, clip)| ParamInfo {
            trainable,
            lr_scale,
            regularizer,
            clip,
        },
    )
}

fn var() -> impl Strategy<Value = VarDef> {
    let origin =
        prop::sample::select(vec![Origin::Data, Origin::Param, Origin::Persist, Origin::Temp]);
    (name(), ty(), origin, any::<bool>(), param_info(), option::of(word())).prop_map(
        |(name, ty, origin, stop_gradient, param, buffer)| VarDef {
            name,
            ty,
            origin,
            stop_gradient,
            param,
            buffer,
        },
    )
}

fn slots() -> impl Strategy<Value = Vec<(String, Vec<String>)>> {
    vec((word(), vec(name(), 0..3)), 0..3)
}

fn op() -> impl Strategy<Value = Op> {
    let attrs = btree_map(word(), attr(), 0..4);
    let role = prop::sample::select(vec![Role::Forward, Role::Backward, Role::Optimize]);
    (word(), slots(), slots(), attrs, role).prop_map(
        |(kind, inputs, outputs, attrs, role): (_, _, _, BTreeMap<_, _>, _)| Op {
            kind,
            inputs,
            outputs,
            attrs,
            role,
        },
    )
}

fn block() -> impl Strategy<Value = Block> {
    (vec(var(), 0..5), vec(op(), 0..5)).prop_map(|(vars, ops)| Block {
        vars: vars.into_iter().map(|var| (var.name.clone(), var)).collect(),
        ops,
    })
}

fn program() -> impl Strategy<Value = Program> {
    (name(), vec(block(), 1..3)).prop_map(|(name, blocks)| Program { name, blocks })
}

/// Where to change a text, and what to put there.
fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, String)>> {
    let piece = prop_oneof![
        "[ \n\t,:=(){}\\[\\]\"\\\\@.0-9a-zäu-]{0,4}",
        any::<char>().prop_map(String::from),
        name(),
    ];
    vec((any::<prop::sample::Index>(), piece), 1..6)
}

/// What a text means must survive being printed.
fn check_reprint(text: &str) {
    if let Ok(program) = parse(text) {
        let printed = program.to_string();
        let again = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(again.to_string(), printed, "from {text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn printed_programs_parse_back(program in program()) {
        let text = program.to_string();
        let parsed = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(parsed, program, "{}", text);
    }

    #[test]
    fn any_text_is_a_program_or_an_error(text in any::<String>()) {
        check_reprint(&text);
        check_reprint(&format!("program p\nblock 0\n{text}"));
    }

    #[test]
    fn changed_programs_are_programs_or_errors(program in program(), edits in edits()) {
        let mut chars: Vec<char> = program.to_string().chars().collect();
        for (at, piece) in edits {
            let at = at.index(chars.len() + 1);
            let end = (at + piece.len() / 2).min(chars.len());
            chars.splice(at..end, piece.chars());
        }
        check_reprint(&chars.into_iter().collect::<String>());
    }
}

#[test]
fn not_a_number_and_infinities_can_be_written() {
    let floats = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e300, 5e-324];
    let mut program = Program::new("p");
    program.block_mut().ops.push(Op::new("k").attr("a", f64::NAN).attr("b", floats));
    let text = program.to_string();
    assert!(text.contains("{a: NaN, b: [NaN, inf, -inf, -0.0, 1e300, 5e-324]}"), "{text}");
    assert_eq!(parse(&text).unwrap().to_string(), text);
}

#[test]
fn deeply_nested_text_does_not_exhaust_the_stack() {
    let text = format!("program p\nblock 0\n  k() {{a: {}}}", "[".repeat(200_000));
    assert_eq!(parse(&text).unwrap_err().to_string(), "line 3: a list cannot hold lists");
}

#[test]
fn blank_lines_and_indentation_do_not_matter() {
    let text = "\n program p\r\n\nblock 0\n\n\t\tvar x :f32[ 2,3 ]\n Out:x=k( )\n\n";
    let printed = "program p\nblock 0\n  var x: f32[2, 3]\n  Out: x = k()\n";
    assert_eq!(parse(text).unwrap().to_string(), printed);
}
