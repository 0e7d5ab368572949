//! Options as YAML.

use super::text::scalar;
use crate::yaml::{Kind, Node};

/// Writes a map, in blocks.
pub(super) fn write(entries: &[(String, Node)]) -> String {
    let mut out = String::new();
    write_entries(&mut out, entries, "", "");
    out
}

/// `first` goes before the first entry, `indent` before the others.
fn write_entries(out: &mut String, entries: &[(String, Node)], first: &str, indent: &str) {
    for (i, (name, node)) in entries.iter().enumerate() {
        let space = if i == 0 { first } else { indent };
        out.push_str(&format!("{space}{name}:"));
        write_value(out, node, indent);
    }
}

fn write_value(out: &mut String, node: &Node, indent: &str) {
    match &node.kind {
        Kind::Scalar { .. } => out.push_str(&format!(" {}\n", scalar(node))),
        Kind::Map(entries) if entries.is_empty() => out.push_str(" {}\n"),
        Kind::Map(entries) => {
            out.push('\n');
            let deeper = format!("{indent}  ");
            write_entries(out, entries, &deeper, &deeper);
        }
        Kind::List(items) => write_list(out, items, indent),
    }
}

/// Groups one below the other, anything else on one line.
fn write_list(out: &mut String, items: &[Node], indent: &str) {
    let is_group = |item: &Node| matches!(item.kind, Kind::Map(_));
    if !items.iter().any(is_group) {
        let items: Vec<String> = items.iter().map(scalar).collect();
        out.push_str(&format!(" [{}]\n", items.join(", ")));
        return;
    }
    out.push('\n');
    for item in items {
        if let Kind::Map(entries) = &item.kind {
            write_entries(out, entries, &format!("{indent}  - "), &format!("{indent}    "));
        }
    }
}
