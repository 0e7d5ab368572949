//! A configuration for people (a table) and for files (YAML, JSON).

use std::fmt;

use serde_json::{Map, Value};

use super::{Config, Ignored};

impl Config {
    /// The configuration as YAML that gives the same one again.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        let mut open: Vec<&str> = Vec::new();
        for setting in self.in_order() {
            let parts: Vec<&str> = setting.key.split('.').collect();
            let (name, sections) = parts.split_last().expect("a key has a name");
            let same = open.iter().zip(sections).take_while(|(a, b)| a == b).count();
            for (depth, section) in sections.iter().enumerate().skip(same) {
                text += &format!("{}{section}:\n", "  ".repeat(depth));
            }
            open = sections.to_vec();
            text += &format!("{}{name}: {}\n", "  ".repeat(sections.len()), setting.value);
        }
        text
    }

    /// The configuration as nested JSON objects.
    pub fn to_json(&self) -> Value {
        let mut root = Map::new();
        // What the file held is kept, not where it was.
        let is_kept = |setting: &&&super::Setting| setting.key != "runner.features_learned";
        for setting in self.in_order().iter().filter(is_kept) {
            let parts: Vec<&str> = setting.key.split('.').collect();
            let (name, sections) = parts.split_last().expect("a key has a name");
            let mut at = &mut root;
            for section in sections {
                let entry = at.entry(section.to_string()).or_insert_with(|| Map::new().into());
                at = entry.as_object_mut().expect("a section is not a value too");
            }
            at.insert(name.to_string(), (&setting.value).into());
        }
        let learned = self.features.as_ref().map(|set| &set.learned);
        if let Some(learned) = learned.filter(|learned| !learned.features.is_empty()) {
            let learned = serde_json::to_value(learned).unwrap_or_default();
            root.insert(super::LEARNED.to_string(), learned);
        }
        Value::Object(root)
    }

    /// Settings by section: names without one, `runner`, `hyper_parameters`; plain names of a
    /// section before those of its parts.
    fn in_order(&self) -> Vec<&super::Setting> {
        let mut settings: Vec<_> = self.settings.iter().collect();
        let section = |key: &str| match key.rsplit_once('.') {
            None => (0, String::new()),
            Some((section, _)) if section.starts_with("runner") => (1, section.to_string()),
            Some((section, _)) => (2, section.to_string()),
        };
        // Stable: within a section the order is that of resolving, which follows meaning.
        settings.sort_by_key(|s| section(&s.key));
        settings
    }
}

impl fmt::Display for Config {
    /// A table of keys, values and sources, and below it what was written without effect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<(String, String, String)> = self
            .in_order()
            .into_iter()
            .map(|s| (s.key.clone(), s.value.to_string(), s.source.to_string()))
            .collect();
        const LONGEST: usize = 60;
        let width = |n: usize| n.min(LONGEST);
        let keys = rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0);
        let values = rows.iter().map(|r| width(r.1.chars().count())).max().unwrap_or(0);
        writeln!(f, "{:keys$}  {:values$}  source", "key", "value")?;
        for (key, value, source) in &rows {
            let short: String = if value.chars().count() > LONGEST {
                value.chars().take(LONGEST - 3).chain("...".chars()).collect()
            } else {
                value.clone()
            };
            writeln!(f, "{key:keys$}  {short:values$}  {source}")?;
        }
        for ignored in &self.ignored {
            writeln!(f, "{ignored}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ignored: {} ({}): {}", self.key, self.source, self.reason)
    }
}
