use regatta_ir::text::parse;

/// Texts that cannot be read, and what is said about them. `..` stands for a header and one block.
const BAD: &[(&str, &str)] = &[
    ("", "line 1: expected 'program NAME'"),
    ("\n\n", "line 1: expected 'program NAME'"),
    ("block 0", "line 1: expected 'program', found 'block'"),
    ("program", "line 1: expected a program name, found the end of the line"),
    ("program \"p\"", "line 1: expected a program name, found \"p\""),
    ("program a b", "line 1: expected the end of the line, found 'b'"),
    ("program p", "line 1: the program has no block"),
    ("program p\n\n", "line 2: the program has no block"),
    ("program p\nblock 1", "line 2: expected 'block 0'"),
    ("program p\nblock 0\nblock 2", "line 3: expected 'block 1'"),
    ("program p\n  var x: f32[1]", "line 2: expected 'block 0'"),
    ("..var x f32[1]", "line 3: expected ':', found 'f32'"),
    ("..var x: f33[1]", "line 3: unknown dtype 'f33' (f32, f16, bf16, i64 or u64)"),
    ("..var x: rows [1]", "line 3: expected an element type, found '['"),
    ("..var x: f32", "line 3: expected '[', found the end of the line"),
    ("..var x: f32[1", "line 3: expected an attribute value"),
    ("..var x: f32[1.5]", "line 3: expected a shape of integers"),
    ("..var x: f32[[1]]", "line 3: a list cannot hold lists"),
    (
        "..var x: f32[-3]",
        "line 3: variable 'x': f32[-3] has the dimension -3; only -1 and -2 stand for unknown \
         sizes",
    ),
    ("..var x: f32[1] lr=2", "line 3: unknown flag 'lr'"),
    ("..param x: f32[1] l2", "line 3: expected '=', found the end of the line"),
    ("..param x: f32[1] l2=much", "line 3: 'much' is not a number"),
    ("..var x: f32[1] buffer=", "line 3: expected a buffer name, found the end of the line"),
    (
        "..var x: f32[1]\n  data x: i64[2]",
        "line 4: variable 'x' is declared twice: as f32[1] and as i64[2]",
    ),
    ("..var a%b: f32[1]", "line 3: 'a%b' cannot name a variable: '%' is not allowed in a name"),
    ("..Out: y relu(X: x)", "line 3: expected ':', found '('"),
    ("..Out: y = relu(X x)", "line 3: expected ':', found 'x'"),
    ("..Out: y = relu(X: x", "line 3: expected a slot name, found the end of the line"),
    ("..Out: [y = relu(X: x)", "line 3: expected a variable, found '='"),
    ("..Out: y = relu(X: \"x\")", "line 3: expected a variable, found \"x\""),
    ("..Out: y = relu", "line 3: expected '(', found the end of the line"),
    ("..relu(X: x) {a 1}", "line 3: expected ':', found '1'"),
    ("..relu(X: x) {a: 1, a: 2}", "line 3: attribute 'a' is given twice"),
    ("..relu(X: x) {a: }", "line 3: expected an attribute value"),
    ("..relu(X: x) {a: maybe}", "line 3: 'maybe' is no attribute value"),
    ("..relu(X: x) {a: ints}", "line 3: expected '[', found '}'"),
    ("..relu(X: x) {a: [1, 2.0]}", "line 3: a list holds values of one kind"),
    (
        "..relu(X: x) {a: 9223372036854775808}",
        "line 3: '9223372036854775808' is no attribute value",
    ),
    ("..relu(X: x) {a: \"b}", "line 3: unclosed text"),
    ("..relu(X: x) {a: \"\\q\"}", "line 3: bad escape '\\q'"),
    ("..relu(X: x) {a: \"\\u{d800}\"}", "line 3: bad escape '\\u{d800}'"),
    ("..relu(X: x) {a: \"\\u41}\"}", "line 3: bad escape '\\u41}'"),
    ("..relu(X: x) @sometimes", "line 3: unknown role '@sometimes'"),
    ("..relu(X: x) @backward now", "line 3: expected the end of the line, found 'now'"),
];

#[test]
fn errors_say_where_and_what() {
    let mut wrong = Vec::new();
    for (text, expected) in BAD {
        let text = text.replace("..", "program p\nblock 0\n  ");
        match parse(&text) {
            Ok(_) => wrong.push(format!("{text:?} was read")),
            Err(e) if e.to_string() != *expected => {
                wrong.push(format!("{text:?}\n  should say: {expected}\n  but says:   {e}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
