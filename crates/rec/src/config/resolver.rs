//! Takes values out of what was written: defaults, kinds, and where each value comes from.

use std::path::{Path, PathBuf};

use super::keys::{self, IGNORED_SECTIONS, KEYS, Key, Used};
use super::optimizer::optimizer_keys;
use super::value::Kind;
use super::written::{Entry, Source, Text, Written};
use super::{Ignored, Setting};
use crate::HyperValue;
use crate::zoo::Model;

/// The source of a path in the folder of the run.
pub(super) const IN_RUN: &str = "in runner.run_dir";

/// Takes values out of what was written and collects settings and problems.
pub(super) struct Resolver {
    pub(super) dir: PathBuf,
    workspace: String,
    written: Written,
    pub(super) settings: Vec<Setting>,
    pub(super) ignored: Vec<Ignored>,
    pub(super) problems: Vec<String>,
}

impl Resolver {
    pub(super) fn new(dir: PathBuf, written: Written) -> Resolver {
        let workspace = dir.to_string_lossy().into_owned();
        let (settings, ignored, problems) = (Vec::new(), Vec::new(), Vec::new());
        let mut written = written;
        for (other, name) in super::paddle_readers::ALIASES {
            written.rename(other, name);
        }
        let mut r = Resolver { dir, workspace, written, settings, ignored, problems };
        if let Some(workspace) = r.text("workspace") {
            r.workspace = workspace;
        }
        r
    }

    /// What was written for a key, if it is a text, without taking it.
    pub(super) fn peek(&self, key: &str) -> Option<String> {
        let entry = self.written.entries.iter().find(|e| e.key == key)?;
        match &entry.value {
            Text::Node(node) => node.scalar().map(str::to_string),
            Text::Raw(text) => Some(text.clone()),
        }
    }

    /// Notes a mistake at the place where the key was written.
    pub(super) fn problem(&mut self, key: &str, reason: String) {
        let source = self.settings.iter().find(|s| s.key == key).map(|s| &s.source);
        let place = match source {
            Some(source @ Source::File { .. }) => format!("{source}: "),
            Some(Source::Override) => "-o ".to_string(),
            _ => String::new(),
        };
        self.problems.push(format!("{place}{key}: {reason}"));
    }

    /// Whether something is wrong with a section.
    pub(super) fn has_problem(&self, section: &str) -> bool {
        self.problems.iter().any(|problem| problem.contains(&format!("{section}.")))
    }

    /// Every key that was written and not taken yet.
    pub(super) fn written_keys(&self) -> impl Iterator<Item = &str> {
        self.written.entries.iter().map(|e| e.key.as_str())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.written.entries.iter().any(|e| e.key == key)
    }

    /// The value of a key of the list, or its default: also after a mistake, which is reported, so
    /// that it does not look like others. So a key with a default always has a value.
    pub(super) fn value(&mut self, key: &str) -> Option<HyperValue> {
        let key = keys::find(key).unwrap_or_else(|| panic!("'{key}' is not in the list of keys"));
        let found = match self.is_refused(key) {
            true => None,
            false => self.field(key.name, key.kind, key.default),
        };
        found.or_else(|| Some(self.read_default(key.kind, key.default?)))
    }

    fn read_default(&self, kind: Kind, text: &str) -> HyperValue {
        kind.read(&kind.node(text), &self.dir).expect("a default is of its kind")
    }

    /// Whether one of Paddle's words was written that cannot be honoured. It is then reported and
    /// taken out, so that the words that a message offers are those that can be honoured.
    fn is_refused(&mut self, key: &Key) -> bool {
        let Some(entry) = self.written.entries.iter().find(|e| e.key == key.name) else {
            return false;
        };
        let text = match &entry.value {
            Text::Node(node) => node.scalar().unwrap_or_default(),
            Text::Raw(text) => text,
        };
        let refused = key.refused.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        let Some((word, reason)) = refused else { return false };
        let (place, name) = (place(&entry.source), key.name);
        self.written.take(name);
        let instead = key.default.map(|d| format!("; use -o {name}={d}")).unwrap_or_default();
        self.problems.push(format!("{place}{name}: {word} cannot be honoured: {reason}{instead}"));
        true
    }

    /// The value of a key, or its default.
    pub(super) fn field(
        &mut self,
        key: &str,
        kind: Kind,
        default: Option<&str>,
    ) -> Option<HyperValue> {
        // `-o key=` takes back what the file says.
        let written = self.written.take(key).filter(|e| e.value != Text::Raw(String::new()));
        let (value, source) = match written {
            Some(entry) => (self.read(&entry, kind)?, entry.source),
            None => (self.read_default(kind, default?), Source::Default),
        };
        self.settings.push(Setting { key: key.to_string(), value: value.clone(), source });
        Some(value)
    }

    fn read(&mut self, entry: &Entry, kind: Kind) -> Option<HyperValue> {
        let node = match &entry.value {
            Text::Node(node) => node.clone(),
            Text::Raw(text) => kind.node(text),
        };
        let node = replace_workspace(node, &self.workspace);
        match kind.read(&node, &self.dir) {
            Ok(value) => Some(value),
            Err(reason) => {
                let place = place(&entry.source);
                self.problems.push(format!("{place}{}: {reason}", entry.key));
                None
            }
        }
    }

    /// Records a value that follows from something else.
    pub(super) fn derive(&mut self, key: &str, value: &str) -> String {
        self.derive_value(key, HyperValue::Str(value.to_string()));
        value.to_string()
    }

    pub(super) fn derive_value(&mut self, key: &str, value: HyperValue) {
        self.settings.push(Setting { key: key.to_string(), value, source: Source::Default });
    }

    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        match self.value(key)? {
            HyperValue::Str(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn path(&mut self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    /// A path that is in the folder of the run, if there is one, unless something else is written.
    pub(super) fn path_in_run(
        &mut self,
        key: &str,
        run: Option<&Path>,
        name: &str,
    ) -> Option<PathBuf> {
        let written = self.path(key);
        let (None, Some(run)) = (&written, run) else { return written };
        let path = run.join(name);
        let value = HyperValue::Str(path.to_string_lossy().into_owned());
        let source = Source::Derived(IN_RUN);
        self.settings.push(Setting { key: key.to_string(), value, source });
        Some(path)
    }

    pub(super) fn ints(&mut self, key: &str) -> Option<Vec<i64>> {
        match self.value(key)? {
            HyperValue::Ints(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        match self.value(key)? {
            HyperValue::Strs(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn bool(&mut self, key: &str) -> Option<bool> {
        match self.value(key)? {
            HyperValue::Bool(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn int(&mut self, key: &str) -> Option<u64> {
        match self.value(key)? {
            HyperValue::Int(x) => Some(x as u64),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    pub(super) fn float(&mut self, key: &str) -> Option<f64> {
        match self.value(key)? {
            HyperValue::Float(x) => Some(x),
            other => unreachable!("'{key}' is {other:?}"),
        }
    }

    fn ignore(&mut self, key: &str, source: Source, reason: impl Into<String>) {
        self.ignored.push(Ignored { key: key.to_string(), source, reason: reason.into() });
    }

    /// Replaces the value of a setting by one that means the same wherever it is read again.
    pub(super) fn restate(&mut self, key: &str, value: HyperValue) {
        if let Some(setting) = self.settings.iter_mut().find(|s| s.key == key) {
            setting.value = value;
        }
    }

    /// Whether somebody set the key, rather than its default.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.settings.iter().any(|s| s.key == key && s.source != Source::Default)
    }

    /// Takes back a setting that turned out to have no effect.
    pub(super) fn unused(&mut self, key: &str, reason: &str) {
        if let Some(at) = self.settings.iter().position(|s| s.key == key) {
            let setting = self.settings.remove(at);
            if setting.source != Source::Default {
                self.ignore(key, setting.source, reason);
            }
        }
    }

    /// Sorts what nobody has asked for into ignored, impossible and unknown.
    pub(super) fn pass_over_the_rest(&mut self, model: &Model) {
        for entry in std::mem::take(&mut self.written.entries) {
            let section = entry.key.split('.').next().unwrap_or_default();
            if let Some((_, reason)) = IGNORED_SECTIONS.iter().find(|(name, _)| *name == section) {
                if !self.ignored.iter().any(|i| i.key == section) {
                    self.ignore(section, entry.source, *reason);
                }
                continue;
            }
            match keys::find(&entry.key) {
                Some(key) => self.pass_over(key, &entry),
                None => self.unknown(model, &entry),
            }
        }
    }

    fn pass_over(&mut self, key: &Key, entry: &Entry) {
        let Used::Only(allowed) = key.used else {
            self.ignore(key.name, entry.source.clone(), key.doc);
            return;
        };
        let Some(value) = self.read(entry, key.kind) else { return };
        let text = match &value {
            HyperValue::Str(text) => text.clone(),
            other => other.to_string(),
        };
        if allowed.contains(&text.as_str()) {
            self.ignore(key.name, entry.source.clone(), key.doc);
            return;
        }
        let place = place(&entry.source);
        self.problems.push(format!(
            "{place}{}: {text} cannot be honoured: {}; use -o {}={}",
            key.name, key.doc, key.name, allowed[0]
        ));
    }

    fn unknown(&mut self, model: &Model, entry: &Entry) {
        let (key, place) = (&entry.key, place(&entry.source));
        if let Some(name) = key.strip_prefix("hyper_parameters.")
            && model.ignored_keys.contains(&name)
        {
            self.ignore(key, entry.source.clone(), "has no meaning here");
            return;
        }
        let hyper = model.keys.iter().map(|k| format!("hyper_parameters.{}", k.name));
        let optimizer = optimizer_keys();
        if optimizer.contains(key) {
            let reason = "does not belong to this optimizer or schedule";
            self.problems.push(format!("{place}{key}: {reason}"));
            return;
        }
        let known: Vec<String> =
            KEYS.iter().map(|k| k.name.to_string()).chain(hyper).chain(optimizer).collect();
        let hint = match nearest_key(key, &known) {
            Some(near) => format!("; did you mean '{near}'?"),
            None if key.starts_with("hyper_parameters.") => {
                let names: Vec<&str> = model.keys.iter().map(|k| k.name).collect();
                format!("; model {} knows {}", model.name, names.join(", "))
            }
            None => String::new(),
        };
        self.problems.push(format!("{place}unknown key '{key}'{hint}"));
    }
}

/// The key that was probably meant: a like name in the same section, or the same name in another.
fn nearest_key<'a>(key: &str, known: &'a [String]) -> Option<&'a String> {
    let split = |key: &'a str| key.rsplit_once('.').unwrap_or(("", key));
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mates = known.iter().filter(|k| split(k).0 == section);
    let near = regatta_ir::nearest(name, mates.map(|k| split(k).1));
    let in_section = |near: &str| known.iter().find(|k| split(k) == (section, near));
    let same_name = || known.iter().find(|k| split(k).1 == name);
    near.and_then(in_section).or_else(same_name)
}

/// The place of a value at the head of a message.
fn place(source: &Source) -> String {
    match source {
        Source::Override => "-o ".to_string(),
        other => format!("{other}: "),
    }
}

fn replace_workspace(mut node: super::yaml::Node, workspace: &str) -> super::yaml::Node {
    use super::yaml::Kind as NodeKind;
    match &mut node.kind {
        NodeKind::Scalar { text, .. } => {
            if text.contains("{workspace}") {
                *text = text.replace("{workspace}", workspace);
            }
        }
        NodeKind::List(items) => {
            for item in items {
                *item = replace_workspace(item.clone(), workspace);
            }
        }
        NodeKind::Map(_) => {}
    }
    node
}
