//! One declaration of a group of options gives its struct, its defaults, and both text forms.

use crate::yaml::{Kind, Node};

/// What is wrong with a written option.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem {
    pub(super) line: usize,
    pub(super) reason: String,
}

/// A value that an option can have.
pub(super) trait Setting: Sized {
    /// Reads what was written for the option `path`. Text forms that repeat a field give several
    /// nodes.
    fn read(path: &str, nodes: &[&Node]) -> Result<Self, Problem>;

    /// What to write; nothing for an option that has no value.
    fn write(&self) -> Option<Node>;

    /// Every option below this one with its value, as `path` and text.
    fn list(&self, path: &str, out: &mut Vec<(String, String)>) {
        if let Some(node) = self.write() {
            out.push((path.to_string(), show(&node)));
        }
    }
}

/// A group of options.
pub(super) trait Group: Default {
    /// Names of the options in order.
    const NAMES: &'static [&'static str];

    /// Reads one option.
    fn set(&mut self, name: &str, path: &str, nodes: &[&Node]) -> Result<(), Problem>;

    /// All options, as they are written.
    fn entries(&self) -> Vec<(String, Node)>;

    /// Every option with its value, as `path` and text.
    fn list_fields(&self, path: &str, out: &mut Vec<(String, String)>);
}

/// Declares a group of options with their defaults: a struct, [`Default`], [`Group`] and
/// [`Setting`]. `as "name"` is for options whose name Rust would not write like that.
macro_rules! options {
    ($(
        $(#[$about:meta])*
        $name:ident {
            $(
                $(#[$field_about:meta])*
                $field:ident $(as $text:literal)? : $type:ty = $default:expr,
            )*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[$field_about])* pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )* }
            }
        }

        impl $crate::strategy::setting::Group for $name {
            const NAMES: &'static [&'static str] =
                &[$( $crate::strategy::setting::options!(@name $field $($text)?) ),*];

            fn set(
                &mut self,
                name: &str,
                path: &str,
                nodes: &[&$crate::yaml::Node],
            ) -> Result<(), $crate::strategy::setting::Problem> {
                use $crate::strategy::setting::Setting;
                $(
                    if name == $crate::strategy::setting::options!(@name $field $($text)?) {
                        self.$field = <$type as Setting>::read(path, nodes)?;
                    }
                )*
                Ok(())
            }

            fn entries(&self) -> Vec<(String, $crate::yaml::Node)> {
                use $crate::strategy::setting::Setting;
                let mut entries = Vec::new();
                $(
                    if let Some(node) = self.$field.write() {
                        let name = $crate::strategy::setting::options!(@name $field $($text)?);
                        entries.push((name.to_string(), node));
                    }
                )*
                entries
            }

            fn list_fields(&self, path: &str, out: &mut Vec<(String, String)>) {
                use $crate::strategy::setting::{Setting, below};
                $(
                    let name = $crate::strategy::setting::options!(@name $field $($text)?);
                    self.$field.list(&below(path, name), out);
                )*
            }
        }

        impl $crate::strategy::setting::Setting for $name {
            fn read(
                path: &str,
                nodes: &[&$crate::yaml::Node],
            ) -> Result<Self, $crate::strategy::setting::Problem> {
                let node = $crate::strategy::setting::once(path, nodes)?;
                $crate::strategy::setting::read_group(path, node)
            }

            fn write(&self) -> Option<$crate::yaml::Node> {
                use $crate::strategy::setting::Group;
                let kind = $crate::yaml::Kind::Map(self.entries());
                Some($crate::yaml::Node { line: 0, kind })
            }

            fn list(&self, path: &str, out: &mut Vec<(String, String)>) {
                $crate::strategy::setting::Group::list_fields(self, path, out);
            }
        }
    )*};
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $text:literal) => { $text };
}
pub(super) use options;

/// Declares an option that takes one of several words.
macro_rules! choice {
    ($(
        $(#[$about:meta])*
        $name:ident { $( $(#[$word_about:meta])* $word:ident = $text:literal, )* }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$word_about])* $word, )*
        }

        impl $crate::strategy::setting::Setting for $name {
            fn read(
                path: &str,
                nodes: &[&$crate::yaml::Node],
            ) -> Result<Self, $crate::strategy::setting::Problem> {
                let node = $crate::strategy::setting::once(path, nodes)?;
                match node.scalar() {
                    $( Some($text) => Ok($name::$word), )*
                    _ => {
                        let words = format!("one of {}", [$($text),*].join(", "));
                        Err($crate::strategy::setting::wrong(path, node, &words))
                    }
                }
            }

            fn write(&self) -> Option<$crate::yaml::Node> {
                let text = match self { $( $name::$word => $text, )* };
                Some($crate::strategy::setting::bare(text))
            }
        }
    )*};
}
pub(super) use choice;

/// The path of an option in a group.
pub(super) fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// The only node of an option that is not a list.
pub(super) fn once<'a>(path: &str, nodes: &[&'a Node]) -> Result<&'a Node, Problem> {
    match nodes {
        [node] => Ok(node),
        _ => {
            let line = nodes.last().map_or(0, |n| n.line);
            Err(Problem { line, reason: format!("{path} is written {} times", nodes.len()) })
        }
    }
}

/// An option of the wrong type.
pub(super) fn wrong(path: &str, node: &Node, wanted: &str) -> Problem {
    let reason = format!("{path} should be {wanted}, but is {}", show(node));
    Problem { line: node.line, reason }
}

/// A word as it stands.
pub(super) fn bare(text: &str) -> Node {
    Node { line: 0, kind: Kind::Scalar { text: text.to_string(), quoted: false } }
}

/// Reads all options of a group that are written; the others keep their defaults.
pub(super) fn read_group<G: Group>(path: &str, node: &Node) -> Result<G, Problem> {
    let Kind::Map(entries) = &node.kind else {
        return Err(wrong(path, node, "a group of options"));
    };
    let mut group = G::default();
    let mut done: Vec<&str> = Vec::new();
    for (name, first) in entries {
        if done.contains(&name.as_str()) {
            continue;
        }
        done.push(name);
        if !G::NAMES.contains(&name.as_str()) {
            let reason = super::renamed::unknown(path, name, G::NAMES);
            return Err(Problem { line: first.line, reason });
        }
        let all: Vec<&Node> = entries.iter().filter(|(n, _)| n == name).map(|(_, v)| v).collect();
        // `name:` without a value leaves the default.
        let written: Vec<&Node> = all.into_iter().filter(|node| !node.is_null()).collect();
        if !written.is_empty() {
            group.set(name, &below(path, name), &written)?;
        }
    }
    Ok(group)
}

fn show(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar { text, quoted: true } => format!("\"{text}\""),
        Kind::Scalar { text, .. } => text.clone(),
        Kind::List(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))
        }
        Kind::Map(_) => "a group of options".to_string(),
    }
}

impl Setting for bool {
    fn read(path: &str, nodes: &[&Node]) -> Result<Self, Problem> {
        let node = once(path, nodes)?;
        match &node.kind {
            Kind::Scalar { text, quoted: false } if matches!(text.as_str(), "true" | "True") => {
                Ok(true)
            }
            Kind::Scalar { text, quoted: false } if matches!(text.as_str(), "false" | "False") => {
                Ok(false)
            }
            _ => Err(wrong(path, node, "true or false")),
        }
    }

    fn write(&self) -> Option<Node> {
        Some(bare(&self.to_string()))
    }
}

/// Numbers are read as Rust reads them, from text without quotes.
macro_rules! number_setting {
    ($($type:ty: $wanted:literal),*) => {$(
        impl Setting for $type {
            fn read(path: &str, nodes: &[&Node]) -> Result<Self, Problem> {
                let node = once(path, nodes)?;
                let parsed = match &node.kind {
                    Kind::Scalar { text, quoted: false } => text.parse().ok(),
                    _ => None,
                };
                parsed.ok_or_else(|| wrong(path, node, $wanted))
            }

            fn write(&self) -> Option<Node> {
                Some(bare(&format!("{self:?}")))
            }
        }
    )*};
}
number_setting!(u64: "an integer of at least 0", i64: "an integer", f32: "a number");

impl Setting for String {
    fn read(path: &str, nodes: &[&Node]) -> Result<Self, Problem> {
        let node = once(path, nodes)?;
        node.scalar().map(str::to_string).ok_or_else(|| wrong(path, node, "a text"))
    }

    fn write(&self) -> Option<Node> {
        Some(Node { line: 0, kind: Kind::Scalar { text: self.clone(), quoted: true } })
    }
}

impl<T: Setting> Setting for Option<T> {
    fn read(path: &str, nodes: &[&Node]) -> Result<Self, Problem> {
        T::read(path, nodes).map(Some)
    }

    fn write(&self) -> Option<Node> {
        self.as_ref().and_then(Setting::write)
    }
}

impl<T: Setting> Setting for Vec<T> {
    /// A list, a single element, or the field written once per element.
    fn read(path: &str, nodes: &[&Node]) -> Result<Self, Problem> {
        let mut items = Vec::new();
        for node in nodes {
            match &node.kind {
                Kind::List(list) => {
                    for item in list {
                        items.push(T::read(path, &[item])?);
                    }
                }
                _ => items.push(T::read(path, &[node])?),
            }
        }
        Ok(items)
    }

    fn write(&self) -> Option<Node> {
        let items = self.iter().filter_map(Setting::write).collect();
        Some(Node { line: 0, kind: Kind::List(items) })
    }
}
