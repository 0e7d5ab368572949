//! Values of configuration keys: their kinds, and how text becomes one.

use std::fmt;
use std::path::Path;

use super::keys::TAIL;
use super::yaml::{self, Kind as NodeKind, Node};
use crate::HyperValue;

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `True` or `False`; also `yes`, `no`, `on`, `off`, 1 and 0.
    Bool,
    /// As `Bool`, or `auto`.
    BoolOrAuto,
    /// An integer between these, both included.
    Int(i64, i64),
    /// A number.
    Float,
    /// Any text.
    Text,
    /// A path, relative to the configuration file.
    Path,
    /// A directory of data files, one that grows (`tail:`), or the URL of a synthetic source.
    Data,
    /// A directory, or the address of one in a remote store.
    Folder,
    /// One of these words; case does not matter.
    Choice(&'static [&'static str]),
    /// A list of such integers.
    Ints(i64, i64),
    /// A list of numbers.
    Floats,
    /// A list of texts.
    Texts,
    /// Anything, kept as text.
    Any,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bool => f.write_str("True or False"),
            Kind::BoolOrAuto => f.write_str("True, False or auto"),
            Kind::Int(min, i64::MAX) => write!(f, "an integer of at least {min}"),
            Kind::Int(min, max) => write!(f, "an integer from {min} to {max}"),
            Kind::Float => f.write_str("a number"),
            Kind::Text => f.write_str("a text"),
            Kind::Path => f.write_str("a path"),
            Kind::Data => {
                f.write_str("a directory, a synthetic:// URL or the address of a remote store")
            }
            Kind::Folder => f.write_str("a directory or the address of a remote store"),
            Kind::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Ints(min, max) => write!(f, "a list of integers from {min} to {max}"),
            Kind::Floats => f.write_str("a list of numbers"),
            Kind::Texts => f.write_str("a list of texts"),
            Kind::Any => f.write_str("anything"),
        }
    }
}

impl Kind {
    /// Reads a node as this kind. Paths are taken from `dir`.
    ///
    /// # Errors
    /// What was found instead.
    pub(crate) fn read(self, node: &Node, dir: &Path) -> Result<HyperValue, String> {
        let bad = || format!("should be {self}, but is {}", show(node));
        match (self, &node.kind) {
            (Kind::Any, _) => Ok(HyperValue::Str(show(node))),
            (Kind::Ints(min, max), NodeKind::List(items)) => {
                let one = |n: &Node| n.scalar().and_then(|text| integer(text, min, max));
                let ints: Option<Vec<i64>> = items.iter().map(one).collect();
                ints.map(HyperValue::Ints).ok_or_else(bad)
            }
            (Kind::Floats, NodeKind::List(items)) => {
                let floats: Option<Vec<f64>> =
                    items.iter().map(|n| n.scalar().and_then(float)).collect();
                floats.map(HyperValue::Floats).ok_or_else(bad)
            }
            (Kind::Texts, NodeKind::List(items)) => {
                let texts: Option<Vec<String>> =
                    items.iter().map(|n| n.scalar().map(str::to_string)).collect();
                texts.map(HyperValue::Strs).ok_or_else(bad)
            }
            // A list of directories, as PaddleRec's files for days have it.
            (Kind::Data, NodeKind::List(items)) if items.len() == 1 => self.read(&items[0], dir),
            (_, NodeKind::Scalar { text, .. }) => self.read_text(text, dir).ok_or_else(bad),
            _ => Err(bad()),
        }
    }

    fn read_text(self, text: &str, dir: &Path) -> Option<HyperValue> {
        Some(match self {
            Kind::Bool => HyperValue::Bool(truth(text)?),
            Kind::BoolOrAuto if text.eq_ignore_ascii_case("auto") => HyperValue::Str("auto".into()),
            Kind::BoolOrAuto => HyperValue::Bool(truth(text)?),
            Kind::Int(min, max) => HyperValue::Int(integer(text, min, max)?),
            Kind::Float => HyperValue::Float(float(text)?),
            Kind::Text | Kind::Any => HyperValue::Str(text.to_string()),
            Kind::Data if text.starts_with(TAIL) => HyperValue::Str(tail(dir, text)),
            Kind::Data if is_address(text) => HyperValue::Str(text.to_string()),
            Kind::Folder if regatta_data::is_remote(Path::new(text)) => {
                HyperValue::Str(text.to_string())
            }
            Kind::Path | Kind::Data | Kind::Folder => {
                HyperValue::Str(absolute(dir, text).to_string_lossy().into_owned())
            }
            Kind::Choice(words) => {
                let word = words.iter().find(|w| w.eq_ignore_ascii_case(text))?;
                HyperValue::Str(word.to_string())
            }
            Kind::Ints(min, max) => HyperValue::Ints(vec![integer(text, min, max)?]),
            Kind::Floats => HyperValue::Floats(vec![float(text)?]),
            Kind::Texts => HyperValue::Strs(vec![text.to_string()]),
        })
    }

    /// Reads the text of an override: as it stands where a text is wanted, as YAML otherwise.
    pub(crate) fn node(self, text: &str) -> Node {
        let plain = Node { line: 0, kind: NodeKind::Scalar { text: text.into(), quoted: false } };
        match self {
            Kind::Text | Kind::Path | Kind::Data | Kind::Folder | Kind::Choice(_) | Kind::Any => {
                plain
            }
            _ => yaml::parse(text).unwrap_or(plain),
        }
    }
}

/// What does not depend on the folder of the configuration.
/// A directory that grows, which may be in a remote store.
fn tail(dir: &Path, text: &str) -> String {
    let path = text.strip_prefix(TAIL).unwrap_or(text);
    let path = path.strip_prefix("//").unwrap_or(path);
    match is_address(path) {
        true => format!("{TAIL}{path}"),
        false => format!("{TAIL}{}", absolute(dir, path).display()),
    }
}

fn is_address(text: &str) -> bool {
    regatta_data::Synthetic::is_url(text) || regatta_data::is_remote(Path::new(text))
}

/// `dir/text` without `.` and, as far as the text goes, without `..`.
fn absolute(dir: &Path, text: &str) -> std::path::PathBuf {
    let mut path = dir.to_path_buf();
    for part in Path::new(text).components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path
}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

fn integer(text: &str, min: i64, max: i64) -> Option<i64> {
    text.replace('_', "").parse().ok().filter(|x| (min..=max).contains(x))
}

fn float(text: &str) -> Option<f64> {
    text.replace('_', "").parse().ok().filter(|x: &f64| x.is_finite())
}

/// A node as one line of YAML.
pub(crate) fn show(node: &Node) -> String {
    match &node.kind {
        NodeKind::Scalar { text, quoted: true } => format!("{text:?}"),
        NodeKind::Scalar { text, .. } => text.clone(),
        NodeKind::List(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))
        }
        NodeKind::Map(entries) => {
            let one = |(k, v): &(String, Node)| format!("{k}: {}", show(v));
            format!("{{{}}}", entries.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A value as YAML that [`Kind::read`] takes back.
impl fmt::Display for HyperValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T>(items: &[T], one: impl Fn(&T) -> String) -> String {
            format!("[{}]", items.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        // `{:?}` keeps the point of a whole number and all digits that tell a float from others.
        let number = |x: &f64| format!("{x:?}");
        match self {
            HyperValue::Int(x) => write!(f, "{x}"),
            HyperValue::Float(x) => f.write_str(&number(x)),
            HyperValue::Bool(x) => f.write_str(if *x { "True" } else { "False" }),
            HyperValue::Str(x) => f.write_str(&quoted(x)),
            HyperValue::Ints(x) => f.write_str(&list(x, i64::to_string)),
            HyperValue::Floats(x) => f.write_str(&list(x, number)),
            HyperValue::Strs(x) => f.write_str(&list(x, |t| quoted(t))),
        }
    }
}

/// Text as a double-quoted scalar, which JSON and YAML write alike.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl From<&HyperValue> for serde_json::Value {
    fn from(value: &HyperValue) -> serde_json::Value {
        match value {
            HyperValue::Int(x) => (*x).into(),
            HyperValue::Float(x) => (*x).into(),
            HyperValue::Bool(x) => (*x).into(),
            HyperValue::Str(x) => x.as_str().into(),
            HyperValue::Ints(x) => x.as_slice().into(),
            HyperValue::Floats(x) => x.as_slice().into(),
            HyperValue::Strs(x) => x.as_slice().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, text: &str) -> Result<String, String> {
        kind.read(&kind.node(text), Path::new("/cfg")).map(|v| v.to_string())
    }

    #[test]
    fn text_becomes_a_value_of_the_kind() {
        assert_eq!(read(Kind::Bool, "yes").unwrap(), "True");
        assert_eq!(read(Kind::BoolOrAuto, "no").unwrap(), "False");
        assert_eq!(read(Kind::BoolOrAuto, "Auto").unwrap(), "\"auto\"");
        assert_eq!(read(Kind::Int(1, 1000), "1_000").unwrap(), "1000");
        assert_eq!(read(Kind::Float, "1e-3").unwrap(), "0.001");
        assert_eq!(read(Kind::Float, "1").unwrap(), "1.0");
        assert_eq!(read(Kind::Ints(0, 9), "[4, 5]").unwrap(), "[4, 5]");
        assert_eq!(read(Kind::Ints(0, 9), "4").unwrap(), "[4]");
        assert_eq!(read(Kind::Texts, "[a, \"b\"]").unwrap(), r#"["a", "b"]"#);
        assert_eq!(read(Kind::Text, "a: [b").unwrap(), r#""a: [b""#);
        assert_eq!(read(Kind::Path, "../x/./y").unwrap(), r#""/x/y""#);
        assert_eq!(read(Kind::Data, "synthetic://ctr").unwrap(), r#""synthetic://ctr""#);
        assert_eq!(read(Kind::Choice(&["DataLoader"]), "dataloader").unwrap(), r#""DataLoader""#);
    }

    #[test]
    fn mistakes_say_what_was_wanted() {
        let error = read(Kind::Int(1, i64::MAX), "0").unwrap_err();
        assert_eq!(error, "should be an integer of at least 1, but is 0");
        let error = read(Kind::Int(1, 99), "100").unwrap_err();
        assert_eq!(error, "should be an integer from 1 to 99, but is 100");
        let error = read(Kind::Ints(1, 99), "[1, 100]").unwrap_err();
        assert_eq!(error, "should be a list of integers from 1 to 99, but is [1, 100]");
        let error = read(Kind::Choice(&["a", "b"]), "c").unwrap_err();
        assert_eq!(error, "should be one of a, b, but is c");
        assert!(read(Kind::Float, "nan").is_err());
        assert!(read(Kind::Ints(0, 9), "[1, x]").is_err());
        assert!(read(Kind::Bool, "2").is_err());
    }
}
