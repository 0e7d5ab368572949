//! YAML text to a tree in which every node knows its line.
//!
//! Scalars stay text: what they mean depends on the key that they belong to.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

/// Nodes of one document, aliases counted as often as they are used.
const MAX_NODES: usize = 100_000;
const MAX_DEPTH: usize = 64;

/// A node of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Line, from 1.
    pub line: usize,
    pub kind: Kind,
}

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Scalar { text: String, quoted: bool },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// What is wrong with a document, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlError {
    pub line: usize,
    pub reason: String,
}

impl Node {
    /// Whether nothing was written: `key:`, `~` or `null`.
    pub fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { text, quoted } => {
                !quoted && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// The text of a scalar.
    pub fn scalar(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    fn size(&self) -> usize {
        1 + match &self.kind {
            Kind::Scalar { .. } => 0,
            Kind::List(items) => items.iter().map(Node::size).sum(),
            Kind::Map(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
        }
    }
}

/// Parses the one document of a text; an empty text is an empty map.
pub fn parse(text: &str) -> Result<Node, YamlError> {
    let mut reader =
        Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    let mut document = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => {
                if document.is_some() {
                    return Err(at(span, "a second document"));
                }
                document = Some(reader.node(event, span, 0)?);
            }
        }
    }
    let empty = Node { line: 1, kind: Kind::Map(Vec::new()) };
    Ok(document.filter(|node| !node.is_null()).unwrap_or(empty))
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

fn at(span: Span, reason: impl Into<String>) -> YamlError {
    YamlError { line: span.start.line(), reason: reason.into() }
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(e)) => {
                Err(YamlError { line: e.marker().line(), reason: e.info().to_string() })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, YamlError> {
        let line = span.start.line();
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(at(span, "the document is too large"));
        }
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let quoted = style != ScalarStyle::Plain;
                (Kind::Scalar { text: text.into_owned(), quoted }, anchor)
            }
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(depth)?, anchor),
            Event::Alias(id) => {
                let node = self.anchors.get(&id).cloned();
                let node = node.ok_or_else(|| at(span, "an alias inside its own anchor"))?;
                self.nodes += node.size();
                (node.kind, 0)
            }
            other => return Err(at(span, format!("unexpected {other:?}"))),
        };
        let node = Node { line, kind };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Kind, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Kind::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Kind, YamlError> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        loop {
            let (key, key_line) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Kind::Map(entries)),
                (Event::Scalar(key, ..), span) => (key.into_owned(), span.start.line()),
                (_, span) => return Err(at(span, "a key must be plain text")),
            };
            if let Some((_, first)) = entries.iter().find(|(k, _)| *k == key) {
                let reason = format!("'{key}' is written twice, first in line {}", first.line);
                return Err(YamlError { line: key_line, reason });
            }
            let (event, span) = self.next()?;
            let mut value = self.node(event, span, depth + 1)?;
            // Messages name the line of the key, which is where a reader looks.
            value.line = key_line;
            entries.push((key, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(node: &Node) -> String {
        match &node.kind {
            Kind::Scalar { text, quoted: true } => format!("{text:?}"),
            Kind::Scalar { text, .. } => text.clone(),
            Kind::List(items) => {
                format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))
            }
            Kind::Map(entries) => {
                let one = |(k, v): &(String, Node)| format!("{k}@{}: {}", v.line, show(v));
                format!("{{{}}}", entries.iter().map(one).collect::<Vec<_>>().join(", "))
            }
        }
    }

    #[test]
    fn nodes_know_their_lines() {
        let text = "# comment\na: 1\nb:\n  c: \"x\" # note\n  d: [1, 'y']\ne: &v {f: 2}\ng: *v\n";
        let tree = show(&parse(text).unwrap());
        assert_eq!(
            tree,
            r#"{a@2: 1, b@3: {c@4: "x", d@5: [1, "y"]}, e@6: {f@6: 2}, g@7: {f@6: 2}}"#
        );
        assert_eq!(show(&parse("").unwrap()), "{}");
    }

    #[test]
    fn mistakes_have_a_line() {
        let twice = parse("a: 1\nb: 2\na: 3\n").unwrap_err();
        assert_eq!(
            (twice.line, twice.reason.as_str()),
            (3, "'a' is written twice, first in line 1")
        );
        assert_eq!(parse("a: 1\n  b: [\n").unwrap_err().line, 2);
        assert!(parse("a: 1\n---\nb: 1\n").unwrap_err().reason.contains("second document"));
        let bomb = "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n\
             c: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\n\
             e: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n";
        assert!(parse(bomb).unwrap_err().reason.contains("too large"));
    }
}
