//! What was written: the file and the overrides, flat, each value with its place.

use std::fmt;
use std::path::{Path, PathBuf};

use super::yaml::{self, Kind, Node};
use crate::Error;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A line of the configuration file.
    File {
        /// The file as the user named it.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An override of the command line.
    Override,
    /// Nobody said anything.
    Default,
    /// It follows from another value or from the place of the file.
    Derived(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Override => f.write_str("-o"),
            Source::Default => f.write_str("default"),
            Source::Derived(from) => f.write_str(from),
        }
    }
}

/// One value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Sections and name, joined by dots.
    pub(crate) key: String,
    pub(crate) value: Text,
    pub(crate) source: Source,
}

/// A value that is not yet read as the kind that its key wants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Text {
    /// From the file.
    Node(Node),
    /// From an override, where quotes and brackets depend on the kind.
    Raw(String),
}

/// Everything that was written, overrides in the place of what they override.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) entries: Vec<Entry>,
}

impl Written {
    /// Reads a file and puts overrides (`key=value`) on top.
    pub(crate) fn load(path: &Path, overrides: &[String]) -> Result<Written, Error> {
        let bytes = std::fs::read(path)
            .map_err(|e| Error::Config(vec![format!("cannot read {}: {e}", path.display())]))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::Config(vec![format!("{}: not UTF-8 text", path.display())]))?;
        let tree = yaml::parse(&text).map_err(|e| {
            Error::Config(vec![format!("{}:{}: {}", path.display(), e.line, e.reason)])
        })?;
        let mut written = Written::default();
        match tree.kind {
            Kind::Map(_) => written.flatten("", &tree, path),
            _ => {
                let what = format!("{}:{}: expected sections", path.display(), tree.line);
                return Err(Error::Config(vec![what]));
            }
        }
        for text in overrides {
            written.put_override(text)?;
        }
        Ok(written)
    }

    /// Takes what a resolved configuration was kept as, and puts overrides on top.
    pub(crate) fn from_json(
        tree: &serde_json::Value,
        overrides: &[String],
    ) -> Result<Written, Error> {
        let mut written = Written::default();
        written.flatten_json("", tree);
        overrides.iter().try_for_each(|text| written.put_override(text))?;
        Ok(written)
    }

    fn flatten_json(&mut self, prefix: &str, tree: &serde_json::Value) {
        let text = match tree {
            serde_json::Value::Object(entries) => {
                // What was learned about features is no setting.
                let is_setting = |name: &str| !prefix.is_empty() || name != super::LEARNED;
                for (name, tree) in entries.iter().filter(|(name, _)| is_setting(name)) {
                    let key =
                        if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    self.flatten_json(&key, tree);
                }
                return;
            }
            serde_json::Value::Null => return,
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let source = Source::Derived("what the model was trained with");
        self.entries.push(Entry { key: prefix.to_string(), value: Text::Raw(text), source });
    }

    fn flatten(&mut self, prefix: &str, node: &Node, path: &Path) {
        match &node.kind {
            Kind::Map(entries) => {
                for (name, node) in entries {
                    let key =
                        if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    self.flatten(&key, node, path);
                }
            }
            _ if node.is_null() => {}
            _ => {
                let source = Source::File { path: path.to_path_buf(), line: node.line };
                let (key, value) = (prefix.to_string(), Text::Node(node.clone()));
                self.entries.push(Entry { key, value, source });
            }
        }
    }

    fn put_override(&mut self, text: &str) -> Result<(), Error> {
        let Some((key, value)) = text.split_once('=') else {
            let what = format!("-o {text}: expected section.key=value");
            return Err(Error::Config(vec![what]));
        };
        let key = key.trim().to_string();
        self.entries.retain(|e| e.key != key);
        let value = Text::Raw(value.to_string());
        self.entries.push(Entry { key, value, source: Source::Override });
        Ok(())
    }

    /// Gives a value the other name of its key, unless that is written too.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if self.entries.iter().all(|e| e.key != to)
            && let Some(entry) = self.entries.iter_mut().find(|e| e.key == from)
        {
            entry.key = to.to_string();
        }
    }

    /// Takes a value out.
    pub(crate) fn take(&mut self, key: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|e| e.key == key)?;
        Some(self.entries.remove(at))
    }
}
