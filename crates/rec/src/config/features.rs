//! The section `features`: columns of the data, and what becomes of their values.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use regatta_features::{
    Bounds, Feature, Features, Kind, Learned, LearnedFeature, Moments, Pooling, Words,
};

use super::keys;
use super::resolver::Resolver;
use crate::HyperValue;

const SECTION: &str = "features";

/// Declared features, with what is known of the training data.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureSet {
    /// What is declared.
    pub features: Features,
    /// What was learned; vocabularies of files are here too.
    pub learned: Learned,
}

impl FeatureSet {
    /// Whether everything is known that training data say.
    pub fn is_learned(&self) -> bool {
        self.learned.check(&self.features).is_ok()
    }
}

/// Keys of a feature, and the kinds that they are for; none stands for all kinds of ids.
const KEYS: &[(&str, &[&str])] = &[
    ("kind", EVERY),
    ("column", EVERY),
    ("buckets", &["id", "hash", "cross"]),
    ("vocabulary", &["vocabulary"]),
    ("words", &["vocabulary"]),
    ("min_count", &["vocabulary"]),
    ("max_size", &["vocabulary"]),
    ("boundaries", &["bucketize"]),
    ("quantiles", &["bucketize"]),
    ("mean", &["standardize"]),
    ("std", &["standardize"]),
    ("threshold", &["label"]),
    ("of", &["sequence"]),
    ("split", &["id", "hash", "vocabulary", "bucketize", "sequence", "raw", "log", "standardize"]),
    ("weight", &["id", "hash", "vocabulary", "bucketize", "sequence"]),
    ("length", &["id", "hash", "vocabulary", "bucketize", "sequence", "raw", "log", "standardize"]),
    ("default", EVERY),
    ("table", &["id", "hash", "vocabulary", "bucketize", "cross"]),
    ("dim", IDS),
    ("pooling", &["id", "hash", "vocabulary", "bucketize", "sequence"]),
];

const EVERY: &[&str] = keys::FEATURE_KINDS;
const IDS: &[&str] = &["id", "hash", "vocabulary", "bucketize", "cross", "sequence"];

/// What the section says. `known` is what was learned before, of a configuration that was kept.
pub(super) fn resolve_features(r: &mut Resolver, known: &Learned) -> Option<Arc<FeatureSet>> {
    let prefix = format!("{SECTION}.");
    let name = |key: &str| Some(key.strip_prefix(&prefix)?.rsplit_once('.')?.0.to_string());
    let names: BTreeSet<String> = r.written_keys().filter_map(name).collect();
    if names.is_empty() {
        return None;
    }
    let before = r.problems.len();
    let (mut all, mut learned) = (Vec::new(), Learned::default());
    for name in names {
        if let Some(found) = known.features.get(&name) {
            learned.features.insert(name.clone(), found.clone());
        }
        all.extend(One { r: &mut *r, name: &name }.resolve(&mut learned));
    }
    if let Some(path) = r.path("runner.features_learned") {
        take_learned(r, Path::new(&path), &mut learned);
    }
    if r.problems.len() > before {
        return None;
    }
    match Features::new(all) {
        Ok(features) => {
            learned.features.retain(|name, _| features.find(name).is_some());
            Some(Arc::new(FeatureSet { features, learned }))
        }
        Err(e) => {
            r.problems.push(format!("{SECTION}: {e}"));
            None
        }
    }
}

/// Takes what a file of `regatta features --learn` says.
fn take_learned(r: &mut Resolver, path: &Path, learned: &mut Learned) {
    let read = || -> Result<Learned, String> {
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        serde_json::from_str(&text).map_err(|e| e.to_string())
    };
    match read() {
        Ok(found) => learned.features.extend(found.features),
        Err(reason) => {
            r.problem("runner.features_learned", format!("{}: {reason}", path.display()))
        }
    }
}

/// One feature that is being resolved.
struct One<'a> {
    r: &'a mut Resolver,
    name: &'a str,
}

impl One<'_> {
    fn key(&self, name: &str) -> String {
        format!("{SECTION}.{}.{name}", self.name)
    }

    fn problem(&mut self, name: &str, reason: impl Into<String>) {
        let key = self.key(name);
        self.r.problem(&key, reason.into());
    }

    /// The value of a key as the list of keys describes it.
    fn value(&mut self, name: &str) -> Option<HyperValue> {
        let known = keys::find(&format!("{SECTION}.<feature>.{name}"))?;
        self.r.field(&self.key(name), known.kind, known.default)
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.value(name)? {
            HyperValue::Str(text) => Some(text),
            other => Some(other.to_string()),
        }
    }

    fn int(&mut self, name: &str) -> Option<u64> {
        match self.value(name)? {
            HyperValue::Int(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    fn float(&mut self, name: &str) -> Option<f64> {
        match self.value(name)? {
            HyperValue::Float(x) => Some(x),
            _ => None,
        }
    }

    fn floats(&mut self, name: &str) -> Option<Vec<f64>> {
        match self.value(name)? {
            HyperValue::Floats(x) => Some(x),
            _ => None,
        }
    }

    fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        match self.value(name)? {
            HyperValue::Strs(x) => Some(x),
            _ => None,
        }
    }

    /// A number that must be there.
    fn needed(&mut self, name: &str) -> Option<u64> {
        let found = self.int(name);
        if found.is_none() && !self.r.problems.iter().any(|p| p.contains(&self.key(name))) {
            self.problem(name, "must be set");
        }
        found
    }

    /// A byte between values.
    fn separator(&mut self, name: &str) -> Option<u8> {
        let text = self.text(name)?;
        let byte = match text.as_str() {
            "\\t" | "tab" => Some(b'\t'),
            text if text.len() == 1 => text.bytes().next(),
            _ => None,
        };
        if byte.is_none() {
            self.problem(name, format!("should be one byte or \\t, but is {text:?}"));
        }
        byte
    }

    fn resolve(&mut self, learned: &mut Learned) -> Option<Feature> {
        let Some(kind) = self.text("kind") else {
            if !self.r.problems.iter().any(|p| p.contains(&self.key("kind"))) {
                let kinds = keys::FEATURE_KINDS.join(", ");
                self.problem("kind", format!("must be one of {kinds}"));
            }
            // Whatever else is written cannot be judged without it.
            KEYS.iter().for_each(|(name, _)| drop(self.value(name)));
            return None;
        };
        self.refuse_others(&kind);
        let rule = self.rule(&kind, learned)?;
        let pooling = match IDS.contains(&kind.as_str()) && kind != "cross" {
            true => self.text("pooling").unwrap_or_default(),
            false => String::new(),
        };
        let pooling = Pooling::ALL.iter().find(|(name, _)| *name == pooling);
        Some(Feature {
            name: self.name.to_string(),
            columns: self.texts("column").unwrap_or_default(),
            kind: rule,
            split: self.separator("split"),
            weight: self.separator("weight"),
            length: self.int("length").map(|n| n as usize),
            default: self.text("default"),
            table: self.text("table"),
            dim: self.int("dim"),
            pooling: pooling.map(|(_, pooling)| *pooling).unwrap_or_default(),
        })
    }

    /// Names what was written that has no meaning for a kind.
    fn refuse_others(&mut self, kind: &str) {
        for (name, kinds) in KEYS {
            let key = self.key(name);
            if self.r.has(&key) && !kinds.contains(&kind) {
                let value = self.value(name);
                drop(value);
                self.problem(name, format!("has no meaning for kind {kind}"));
            }
        }
    }

    fn rule(&mut self, kind: &str, learned: &mut Learned) -> Option<Kind> {
        Some(match kind {
            "label" => Kind::Label { threshold: self.float("threshold") },
            "id" => Kind::Id { buckets: self.needed("buckets")? },
            "hash" => Kind::Hash { buckets: self.needed("buckets")? },
            "cross" => Kind::Cross { buckets: self.needed("buckets")? },
            "vocabulary" => Kind::Vocabulary(self.words(learned)?),
            "bucketize" => {
                Kind::Bucketize(match (self.floats("boundaries"), self.int("quantiles")) {
                    (Some(bounds), None) => Bounds::Given(bounds.into()),
                    (None, Some(quantiles)) => Bounds::Learned { quantiles },
                    _ => {
                        self.problem("boundaries", "one of boundaries and quantiles must be set");
                        return None;
                    }
                })
            }
            "sequence" => match self.text("of") {
                Some(of) => Kind::Sequence { of },
                None => {
                    self.problem("of", "must be set: the feature whose values these are");
                    return None;
                }
            },
            "raw" => Kind::Raw,
            "log" => Kind::Log,
            _ => Kind::Standardize(match (self.float("mean"), self.float("std")) {
                (Some(mean), Some(std)) => Moments::Given { mean, std },
                (None, None) => Moments::Learned,
                _ => {
                    self.problem("mean", "mean and std are set both, or are both learned");
                    return None;
                }
            }),
        })
    }

    /// Words of the configuration, of a file, or of the training data. What a file held is kept
    /// with the model, which may be used where the file is not.
    fn words(&mut self, learned: &mut Learned) -> Option<Words> {
        if let Some(words) = self.texts("words") {
            for other in ["vocabulary", "min_count", "max_size"] {
                if self.r.has(&self.key(other)) {
                    self.problem(other, "has no meaning beside words");
                }
            }
            return Some(Words::Given(words.into()));
        }
        let (min_count, max_size) = (self.int("min_count"), self.int("max_size"));
        let Some(path) = self.text("vocabulary") else {
            let (min_count, max_size) = (min_count.unwrap_or(1), max_size.unwrap_or(1));
            return Some(Words::Learned { min_count, max_size });
        };
        ["min_count", "max_size"].into_iter().for_each(|other| {
            let key = self.key(other);
            self.r.unused(&key, "the vocabulary is that of a file");
        });
        if let Some(LearnedFeature::Words(words)) = learned.features.get(self.name) {
            return Some(Words::Given(words.as_slice().into()));
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
                let words: Vec<String> =
                    lines.filter(|line| !line.is_empty()).map(str::to_string).collect();
                let kept = LearnedFeature::Words(words.clone());
                learned.features.insert(self.name.to_string(), kept);
                Some(Words::Given(words.into()))
            }
            Err(e) => {
                self.problem("vocabulary", format!("cannot read {path}: {e}"));
                None
            }
        }
    }
}
