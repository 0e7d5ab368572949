//! Just enough of Rust's grammar to look at sources: where comments, strings, tests and functions
//! are.

use std::path::{Path, PathBuf};

/// The same text, as many lines and columns, with blanks for the contents of comments.
pub fn without_comments(text: &str) -> String {
    mask(text, false)
}

/// The same text with blanks for comments and for the contents of strings and characters.
pub fn code(text: &str) -> String {
    mask(text, true)
}

fn mask(text: &str, strings: bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = chars.clone();
    let mut at = 0;
    while at < chars.len() {
        let (end, blank) = match token(&chars, at) {
            Token::Comment(end) => (end, true),
            Token::Literal(end) => (end, strings),
            Token::Other(end) => (end, false),
        };
        for c in out[at..end].iter_mut().filter(|c| blank && **c != '\n') {
            *c = ' ';
        }
        at = end;
    }
    out.into_iter().collect()
}

/// A piece of a source, with its end.
enum Token {
    Comment(usize),
    Literal(usize),
    Other(usize),
}

fn token(chars: &[char], at: usize) -> Token {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => Token::Comment(find(chars, at, |c| c == '\n')),
        ('/', Some('*')) => Token::Comment(block_comment(chars, at)),
        ('"', _) => Token::Literal(string_end(chars, at + 1)),
        ('\'', Some('\\')) => Token::Literal(find(chars, at + 3, |c| c == '\'') + 1),
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => Token::Literal(at + 3),
        (c, _) if is_word(c) => {
            let end = find(chars, at, |c| !is_word(c));
            let prefix: String = chars[at..end].iter().collect();
            match raw_string(chars, &prefix, end) {
                Some(end) => Token::Literal(end),
                None => Token::Other(end),
            }
        }
        _ => Token::Other(at + 1),
    }
}

/// The end of a raw string such as `r#"..."#`, if one begins with this prefix.
fn raw_string(chars: &[char], prefix: &str, at: usize) -> Option<usize> {
    if !["r", "br", "cr"].contains(&prefix) {
        return None;
    }
    let quote = find(chars, at, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at;
    let closes = |i: &usize| {
        let mut after = chars[i + 1..].iter();
        chars[*i] == '"' && (0..hashes).all(|_| after.next() == Some(&'#'))
    };
    Some((quote + 1..chars.len()).find(closes).map_or(chars.len(), |i| i + 1 + hashes))
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Comments of this kind nest.
fn block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn find(chars: &[char], from: usize, is_it: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&i| is_it(chars[i])).unwrap_or(chars.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of `fn`, from 1.
    pub line: usize,
    /// From there to the closing brace.
    pub lines: usize,
    /// Whether it belongs to a test.
    pub for_tests: bool,
}

/// The functions of a source, in their order.
pub fn functions(text: &str) -> Vec<Function> {
    let code: Vec<char> = code(text).chars().collect();
    let tests = test_blocks(&code);
    let line_of = |at: usize| code[..at].iter().filter(|c| **c == '\n').count() + 1;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = next_word(&code, at, "fn") {
        at = start + 2;
        let name_at = find(&code, at, |c| c != ' ');
        let name: String = code[name_at..find(&code, name_at, |c| !is_word(c))].iter().collect();
        let Some(body) = body(&code, name_at).filter(|_| !name.is_empty()) else { continue };
        let (line, last) = (line_of(start), line_of(block_end(&code, body)));
        let for_tests = tests.iter().any(|block| block.contains(&start));
        found.push(Function { name, line, lines: last - line + 1, for_tests });
    }
    found
}

/// Where a word stands alone.
fn next_word(code: &[char], from: usize, word: &str) -> Option<usize> {
    let word: Vec<char> = word.chars().collect();
    let is_here = |&at: &usize| {
        code[at..].starts_with(&word)
            && (at == 0 || !is_word(code[at - 1]))
            && code.get(at + word.len()).is_none_or(|c| !is_word(*c))
    };
    (from..code.len()).find(is_here)
}

/// The opening brace of an item; none if it ends with a semicolon.
fn body(code: &[char], from: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in code.iter().enumerate().skip(from) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' | '}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The brace that closes the one at `open`.
fn block_end(code: &[char], open: usize) -> usize {
    let mut depth = 0;
    for (at, c) in code.iter().enumerate().skip(open) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// The items below `#[cfg(test)]` or `#[test]`.
fn test_blocks(code: &[char]) -> Vec<std::ops::Range<usize>> {
    let text: Vec<Vec<char>> =
        ["#[cfg(test)]", "#[test]"].iter().map(|a| a.chars().collect()).collect();
    let is_attribute = |at: &usize| text.iter().any(|a| code[*at..].starts_with(a));
    let starts = (0..code.len()).filter(is_attribute);
    starts.filter_map(|at| Some(at..block_end(code, body(code, at)?))).collect()
}

/// All Rust files of a folder and below, in order.
pub fn rust_files(dir: &Path) -> Vec<PathBuf> {
    files(dir, "rs")
}

/// All files of a folder and below with such an extension, in order; build output is left out.
pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // What cargo and the benchmark scripts make is nobody's text.
        let is_made = ["target", "work"].contains(&name.as_str()) || name.starts_with("venv");
        if path.is_dir() && !name.starts_with('.') && !is_made {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanks() {
        let text = "a /* { /* } */ */ b // {\n\"}\\\"\" r#\"{\"\"# '{' 'x 'a'\n";
        let expected = "a                 b     \n     "; // the string is blank with its quotes
        assert!(code(text).starts_with(expected), "{:?}", code(text));
        assert!(code(text).ends_with("'x    \n"), "{:?}", code(text));
        assert_eq!(without_comments("f(\"a // b\") // c"), "f(\"a // b\")     ");
        assert_eq!(code(text).chars().count(), text.chars().count());
    }

    #[test]
    fn functions_have_names_and_lengths() {
        let text = "fn one() { \"}\"; }\n\
                    type F = fn(u8);\n\
                    trait T {\n  fn none(&self, x: [u8; 4]);\n\
                    fn two<A>(a: [u8; 2]) -> impl Fn(u8)\n  where A: B {\n    if a {\n }\n  }\n}\n\
                    #[cfg(test)]\nmod tests {\n  fn three() {}\n}\nfn four() {}\n";
        let found: Vec<_> =
            functions(text).into_iter().map(|f| (f.name, f.line, f.lines, f.for_tests)).collect();
        let expected = [("one", 1, 1, false), ("two", 5, 5, false), ("three", 13, 1, true)];
        let expected = expected.into_iter().chain([("four", 15, 1, false)]);
        let expected: Vec<_> =
            expected.map(|(name, line, n, test)| (name.to_string(), line, n, test)).collect();
        assert_eq!(found, expected);
    }
}
