//! How much memory the rows of a table may take, and where the others are.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::row::Kind;

/// The most words of a row with a tier: a row must fit into a page of a file.
const MAX_WORDS: usize = 1020;

/// A budget of memory, and a directory for what does not fit.
///
/// The directory is memory, not storage: it belongs to one table of one process, is emptied at the
/// start and removed at the end. A checkpoint is the only durable copy of the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// Bytes of rows in memory; the index of the rows comes on top.
    pub memory_bytes: u64,
    /// A directory of this table alone, on a fast disk.
    pub dir: PathBuf,
    /// How many batches ahead of their use rows should be asked for. The table keeps no batches:
    /// this is for whoever calls [`prefetch`](crate::SparseTable::prefetch).
    pub lookahead: usize,
}

impl TierConfig {
    /// What is wrong with it, if anything.
    pub(crate) fn problem(&self, kind: &Kind) -> Option<String> {
        if self.memory_bytes == 0 {
            return Some("`tier.memory_bytes` is 0: some rows must be in memory".into());
        }
        if self.dir.as_os_str().is_empty() {
            return Some("`tier.dir` is empty: rows need a directory".into());
        }
        let words = kind.base_len().max(kind.extended_len());
        (words > MAX_WORDS).then(|| {
            format!("`tier` with rows of {words} numbers: up to {MAX_WORDS} fit into a page")
        })
    }
}

#[cfg(test)]
mod tests {
    use regatta_optim::{Rule, Sgd};

    use super::*;
    use crate::{Accessor, PlainConfig, SparseConfig, TableId};

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let refusal = |dim: usize, memory_bytes: u64, dir: &str| {
            let accessor = Accessor::Plain(PlainConfig::new(dim, Rule::Sgd(Sgd::default())));
            let tier = TierConfig { memory_bytes, dir: dir.into(), lookahead: 8 };
            let config = SparseConfig::new(TableId(4), 1, accessor);
            let config = SparseConfig { tier: Some(tier), ..config };
            config.validate().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(8, 1, "cold"), "");
        assert!(refusal(8, 0, "cold").starts_with("table 4: `tier.memory_bytes` is 0"));
        assert!(refusal(8, 1, "").contains("`tier.dir` is empty"));
        assert!(refusal(1021, 1, "cold").contains("rows of 1021 numbers"));
    }
}
