//! What can go wrong with a tensor.

/// Why an op, a gradient or an update could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The op does not exist, or its inputs or attributes do not fit.
    #[error("{}", unnamed(&.0.to_string()))]
    Op(#[from] regatta_ir::Error),
    /// Elements and shape do not fit.
    #[error(transparent)]
    Value(#[from] regatta_tensor::Error),
    /// A kernel met a bad value.
    #[error("{op}: {}", unnamed(.reason))]
    Kernel {
        /// Kind of the op.
        op: String,
        /// What it met.
        reason: String,
    },
    /// The graph was freed by an earlier backward.
    #[error(
        "the graph of this tensor was freed by an earlier backward (at op '{op}'): pass \
         retain_graph=True to the first backward, or compute the value again"
    )]
    Freed {
        /// Kind of the op whose values are gone.
        op: String,
    },
    /// Nothing was recorded for a tensor.
    #[error("{0}")]
    NoGraph(String),
    /// Types or shapes do not fit.
    #[error("{0}")]
    Mismatch(String),
    /// An op whose result has no gradient was recorded.
    #[error("'{op}' has no gradient: {reason}")]
    NoGradient {
        /// Kind of the op.
        op: String,
        /// Why there is none.
        reason: String,
    },
    /// Parameters of a reducer got no gradient.
    #[error(
        "no gradient in this backward for {names}: use them in the loss, freeze them \
         (stop_gradient=True), or pass find_unused_parameters=True"
    )]
    Unused {
        /// Their names, quoted.
        names: String,
    },
    /// A parameter is not the same on all ranks.
    #[error(
        "parameter '{name}' of rank {rank} is not that of rank 0: something has changed it on some \
         ranks only, such as values that were loaded or updates outside of the wrapped model"
    )]
    Diverged {
        /// The first such parameter.
        name: String,
        /// The first rank where it is another.
        rank: usize,
    },
    /// A hook of the caller failed.
    #[error("a hook failed: {0}")]
    Hook(Box<dyn std::error::Error + Send + Sync>),
}

/// What functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A message without the positional names of variables: tensors have none, slots say enough.
fn unnamed(message: &str) -> String {
    let is_name = |word: &str| {
        let word = word.trim_end_matches([',', ';', ':']);
        let inner = word.strip_prefix("'i").and_then(|rest| rest.strip_suffix('\''));
        inner.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut words: Vec<&str> = Vec::new();
    for word in message.split(' ') {
        if !is_name(word) {
            words.push(word);
        } else if words.last() == Some(&"of") {
            words.pop();
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_name_positions() {
        let of = |text| unnamed(text);
        assert_eq!(of("op fc: W 'i1' should be f32[5, 3]"), "op fc: W should be f32[5, 3]");
        assert_eq!(of("id 7 of 'i1' is beyond the table"), "id 7 is beyond the table");
        assert_eq!(of("attribute 'index' is missing"), "attribute 'index' is missing");
    }
}
