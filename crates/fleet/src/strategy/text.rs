//! The text form of protocol buffers, as `save_to_prototxt` writes it: `name: value` and
//! `name { ... }`.

use super::setting::Problem;
use crate::yaml::{Kind, Node};

/// Groups in groups; a strategy needs four.
const MAX_DEPTH: usize = 32;

/// Parses a text into a map; a field may occur several times.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let mut reader = Reader { rest: text, line: 1 };
    let entries = reader.fields(None, 0)?;
    Ok(Node { line: 1, kind: Kind::Map(entries) })
}

/// Writes a map.
pub(super) fn write(entries: &[(String, Node)]) -> String {
    let mut out = String::new();
    entries.iter().for_each(|(name, node)| write_field(&mut out, name, node, 0));
    out
}

fn write_field(out: &mut String, name: &str, node: &Node, indent: usize) {
    let space = "  ".repeat(indent);
    match &node.kind {
        Kind::Scalar { .. } => out.push_str(&format!("{space}{name}: {}\n", scalar(node))),
        Kind::List(items) => items.iter().for_each(|item| write_field(out, name, item, indent)),
        Kind::Map(entries) => {
            out.push_str(&format!("{space}{name} {{\n"));
            entries.iter().for_each(|(name, node)| write_field(out, name, node, indent + 1));
            out.push_str(&format!("{space}}}\n"));
        }
    }
}

/// A scalar as both text forms write it.
pub(super) fn scalar(node: &Node) -> String {
    let Kind::Scalar { text, quoted } = &node.kind else { return String::new() };
    if !quoted {
        return text.clone();
    }
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Reader<'a> {
    fn problem(&self, reason: impl Into<String>) -> Problem {
        Problem { line: self.line, reason: reason.into() }
    }

    /// Fields up to `close`, or to the end.
    fn fields(
        &mut self,
        close: Option<char>,
        depth: usize,
    ) -> Result<Vec<(String, Node)>, Problem> {
        if depth > MAX_DEPTH {
            return Err(self.problem("groups are nested too deeply"));
        }
        let mut entries = Vec::new();
        loop {
            self.skip_space();
            match (self.peek(), close) {
                (None, None) => return Ok(entries),
                (None, Some(close)) => {
                    return Err(self.problem(format!("a '{close}' is missing at the end")));
                }
                (Some(c), Some(close)) if c == close => {
                    self.take(1);
                    return Ok(entries);
                }
                (Some(',' | ';'), _) => self.take(1),
                _ => entries.push(self.field(depth)?),
            }
        }
    }

    fn field(&mut self, depth: usize) -> Result<(String, Node), Problem> {
        let line = self.line;
        let name = self.word();
        if name.is_empty() {
            let found = self.peek().unwrap_or(' ');
            return Err(self.problem(format!("a name was expected, but found '{found}'")));
        }
        self.skip_space();
        let colon = self.peek() == Some(':');
        if colon {
            self.take(1);
            self.skip_space();
        }
        let node = match self.peek() {
            Some('{' | '<') => self.group(depth)?,
            Some('[') if colon => self.list(depth)?,
            _ if colon => self.scalar()?,
            _ => return Err(self.problem(format!("'{name}' needs a ':' or a '{{' after it"))),
        };
        // Messages name the line of the field, which is where a reader looks.
        Ok((name.to_string(), Node { line, ..node }))
    }

    fn group(&mut self, depth: usize) -> Result<Node, Problem> {
        let line = self.line;
        let close = if self.peek() == Some('<') { '>' } else { '}' };
        self.take(1);
        let entries = self.fields(Some(close), depth + 1)?;
        Ok(Node { line, kind: Kind::Map(entries) })
    }

    fn list(&mut self, depth: usize) -> Result<Node, Problem> {
        let line = self.line;
        self.take(1);
        let mut items = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some(']') => {
                    self.take(1);
                    return Ok(Node { line, kind: Kind::List(items) });
                }
                Some(',') => self.take(1),
                Some('{' | '<') => items.push(self.group(depth)?),
                None => return Err(self.problem("a ']' is missing at the end")),
                _ => items.push(self.scalar()?),
            }
        }
    }

    fn scalar(&mut self) -> Result<Node, Problem> {
        let line = self.line;
        let kind = match self.peek() {
            Some(quote @ ('"' | '\'')) => Kind::Scalar { text: self.quoted(quote)?, quoted: true },
            _ => {
                let text = self.word();
                if text.is_empty() {
                    return Err(self.problem("a value is missing"));
                }
                Kind::Scalar { text: text.to_string(), quoted: false }
            }
        };
        Ok(Node { line, kind })
    }

    fn quoted(&mut self, quote: char) -> Result<String, Problem> {
        self.take(1);
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.take(at + 1);
                    return Ok(text);
                }
                '\n' => break,
                '\\' => text.push(escape(&mut chars).ok_or_else(|| {
                    self.problem("a text holds a '\\' that stands for nothing known")
                })?),
                c => text.push(c),
            }
        }
        Err(self.problem(format!("a text is not closed by {quote}")))
    }

    fn word(&mut self) -> &'a str {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        self.take(end);
        word
    }

    fn skip_space(&mut self) {
        loop {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.take(space);
            if self.peek() != Some('#') {
                return;
            }
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, bytes: usize) {
        self.line += self.rest[..bytes].matches('\n').count();
        self.rest = &self.rest[bytes..];
    }
}

fn escape(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    Some(match chars.next()?.1 {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        c @ ('"' | '\'' | '\\') => c,
        'u' => {
            let digits: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_groups_lists_and_comments() {
        let text = "# head\namp: true, mode: PS\nrecompute_configs {\n  checkpoints: \"a\\n\"\n  \
                    checkpoints: 'b' }\ndgc_configs: < sparsity: [0.75, 0.9] >\n";
        let Kind::Map(entries) = parse(text).unwrap().kind else { panic!("a map") };
        let names: Vec<(&str, usize)> =
            entries.iter().map(|(n, node)| (n.as_str(), node.line)).collect();
        assert_eq!(names, [("amp", 2), ("mode", 2), ("recompute_configs", 3), ("dgc_configs", 6)]);
        let again = "amp: true\nmode: PS\nrecompute_configs {\n  checkpoints: \"a\\n\"\n  \
                     checkpoints: \"b\"\n}\ndgc_configs {\n  sparsity: 0.75\n  sparsity: 0.9\n}\n";
        assert_eq!(write(&entries), again);
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, line, reason) in [
            ("a: 1\nb {\n  c: 2\n", 4, "a '}' is missing at the end"),
            ("a: 1\n: 2", 2, "a name was expected, but found ':'"),
            ("a 1", 1, "'a' needs a ':' or a '{' after it"),
            ("\na: \"x\n", 2, "a text is not closed by \""),
            ("a: \"\\q\"", 1, "a text holds a '\\' that stands for nothing known"),
            ("a:\n", 2, "a value is missing"),
            ("a: [1,\n", 2, "a ']' is missing at the end"),
        ] {
            let want = Problem { line, reason: reason.to_string() };
            assert_eq!(parse(text).unwrap_err(), want, "{text}");
        }
        assert!(parse(&"a {".repeat(1000)).is_err());
    }
}
