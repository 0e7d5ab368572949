//! What can be wrong with a program.

/// A mistake in a program, found while it is built, parsed, verified or rewritten.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input has a shape or type that the op cannot take.
    #[error("op {op}: {slot} '{var}' should be {expected}, but is {actual}")]
    Type {
        /// Kind of the op.
        op: String,
        /// Slot of the op.
        slot: String,
        /// Variable in that slot.
        var: String,
        /// What the op takes.
        expected: String,
        /// What it was given.
        actual: String,
    },
    /// An attribute is missing, unknown, or has an impossible value.
    #[error("op {op}: attribute '{attr}' {reason}")]
    Attr {
        /// Kind of the op.
        op: String,
        /// Name of the attribute.
        attr: String,
        /// What is wrong.
        reason: String,
    },
    /// A slot is missing, unknown, or holds the wrong number of variables.
    #[error("op {op}: slot '{slot}' {reason}")]
    Slot {
        /// Kind of the op.
        op: String,
        /// Name of the slot.
        slot: String,
        /// What is wrong.
        reason: String,
    },
    /// The op set has no such op.
    #[error("unknown op '{kind}'{}", suggestion(.nearest))]
    UnknownOp {
        /// What was written.
        kind: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// A variable is used but not declared.
    #[error("op {op}: variable '{var}' is not declared in this program")]
    UnknownVar {
        /// Kind of the op (or what looked it up).
        op: String,
        /// The name.
        var: String,
    },
    /// A variable is read before any op writes it.
    #[error("op {op}: variable '{var}' is read before anything writes it")]
    ReadBeforeWrite {
        /// Kind of the op.
        op: String,
        /// The name.
        var: String,
    },
    /// Two variables of one name.
    #[error("variable '{var}' is declared twice{reason}")]
    DuplicateVar {
        /// The name.
        var: String,
        /// More about it.
        reason: String,
    },
    /// Two temporaries that are in use at the same time were given the same memory.
    #[error(
        "variables '{var}' and '{other}' share buffer {buffer} but are in use at the same time"
    )]
    SharedBuffer {
        /// One of them.
        var: String,
        /// The other.
        other: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// A name with characters that the text form cannot carry.
    #[error("'{name}' cannot name a variable: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A variable with an impossible shape.
    #[error("variable '{var}': {reason}")]
    Shape {
        /// The name.
        var: String,
        /// What is wrong.
        reason: String,
    },
    /// A program text that cannot be read.
    #[error("line {line}: {reason}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// What was expected.
        reason: String,
    },
    /// A rewrite that does not apply to this program.
    #[error("{pass}: {reason}")]
    Pass {
        /// Name of the compiler pass.
        pass: String,
        /// Why not.
        reason: String,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|n| format!("; did you mean '{n}'?")).unwrap_or_default()
}

/// The known name nearest to `word`, if any is near enough to be a likely slip.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1) + 1;
    known
        .into_iter()
        .map(|k| (edit_distance(word, k), k))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn nearest_finds_slips_and_ignores_strangers() {
        assert_eq!(nearest("leraning_rate", ["learning_rate", "epochs"]), Some("learning_rate"));
        assert_eq!(nearest("banana", ["learning_rate", "epochs"]), None);
    }
}
