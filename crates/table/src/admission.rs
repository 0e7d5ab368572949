//! Which ids become rows: an id and its appearances go in, a decision comes out.
//!
//! An id that is not admitted pulls zeros, is not updated and costs one entry of the index.

use std::fmt;
use std::str::FromStr;

use regatta_tensor::Rng;
use serde::{Deserialize, Serialize};

use crate::TableId;

/// The policy; Paddle calls it the entry.
///
/// Written as Paddle's attribute strings: `none`, `count_filter_entry:10`, `probability_entry:0.1`,
/// `show_click_entry:show:click`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Admission {
    /// Every id at once.
    #[default]
    None,
    /// An id that was seen this often, the appearance that decides included.
    CountFilter(u32),
    /// Every appearance of an id that is not admitted yet admits it with this probability.
    Probability(f64),
    /// Every id at once; names the variables that fill the show and click statistics, so it goes
    /// with the CTR accessor only.
    ShowClick {
        /// The variable with impressions.
        show: String,
        /// The variable with clicks.
        click: String,
    },
}

impl Admission {
    /// Whether it depends on how often an id appears, so that pulls have to say it.
    pub fn counts_appearances(&self) -> bool {
        matches!(self, Admission::CountFilter(_) | Admission::Probability(_))
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admission::None => f.write_str("none"),
            Admission::CountFilter(n) => write!(f, "count_filter_entry:{n}"),
            Admission::Probability(p) => write!(f, "probability_entry:{p}"),
            Admission::ShowClick { show, click } => write!(f, "show_click_entry:{show}:{click}"),
        }
    }
}

impl From<Admission> for String {
    fn from(admission: Admission) -> String {
        admission.to_string()
    }
}

impl TryFrom<String> for Admission {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Admission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let admission = match parts[..] {
            ["none"] => Some(Admission::None),
            ["count_filter_entry", n] => n.parse().ok().map(Admission::CountFilter),
            ["probability_entry", p] => p.parse().ok().map(Admission::Probability),
            ["show_click_entry", show, click] => {
                Some(Admission::ShowClick { show: show.into(), click: click.into() })
            }
            _ => None,
        };
        admission.ok_or_else(|| {
            format!(
                "`{text}` is no entry policy: expected none, count_filter_entry:N, \
                 probability_entry:P or show_click_entry:SHOW:CLICK"
            )
        })
    }
}

impl Admission {
    /// What is wrong with the numbers, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Admission::Probability(p) if !(*p > 0.0 && *p <= 1.0) => {
                Some(format!("`admission` with probability {p}, expected 0 < p <= 1"))
            }
            _ => None,
        }
    }
}

/// Decides for one table.
#[derive(Debug, Clone)]
pub(crate) struct Admitter {
    policy: Admission,
    rng: Rng,
}

impl Admitter {
    pub(crate) fn new(policy: Admission, seed: u64, table: TableId) -> Self {
        // A stream of its own: admitting must not depend on how weights are drawn.
        let rng = Rng::new(Rng::named(seed, "admission").u64(u64::from(table.0)), 0);
        Admitter { policy, rng }
    }

    /// Whether an id that appeared `before` times without success is admitted by `more` further
    /// appearances.
    pub(crate) fn admits(&self, key: u64, before: u32, more: u32) -> bool {
        match self.policy {
            Admission::None | Admission::ShowClick { .. } => true,
            Admission::CountFilter(n) => before.saturating_add(more) >= n,
            Admission::Probability(p) => {
                let own = Rng::new(self.rng.u64(key), key);
                (before..before.saturating_add(more)).any(|i| own.unit_f64(u64::from(i)) < p)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_strings_round_trip() {
        for text in
            ["none", "count_filter_entry:10", "probability_entry:0.1", "show_click_entry:s:c"]
        {
            assert_eq!(text.parse::<Admission>().unwrap().to_string(), text);
        }
        for text in ["", "count_filter_entry", "count_filter_entry:-1", "probability_entry:x:y"] {
            let error = text.parse::<Admission>().unwrap_err();
            assert!(error.contains("count_filter_entry:N"), "{error}");
        }
    }

    #[test]
    fn the_count_includes_the_deciding_appearance() {
        let admitter = Admitter::new(Admission::CountFilter(3), 0, TableId(0));
        assert!(!admitter.admits(5, 0, 1));
        assert!(!admitter.admits(5, 1, 1));
        assert!(admitter.admits(5, 2, 1));
        assert!(admitter.admits(5, 0, 3));
        assert!(Admitter::new(Admission::CountFilter(0), 0, TableId(0)).admits(5, 0, 1));
    }

    #[test]
    fn the_probability_is_that_of_each_appearance() {
        let admitter = Admitter::new(Admission::Probability(0.2), 9, TableId(1));
        let admitted = (0..50_000).filter(|key| admitter.admits(*key, 0, 1)).count();
        assert!((admitted as f64 / 50_000.0 - 0.2).abs() < 0.01, "{admitted}");
        // Three tries at once are the same as three tries in turn: 1 - 0.8^3.
        let at_once = (0..50_000).filter(|key| admitter.admits(*key, 0, 3)).count();
        let in_turn = (0..50_000).filter(|k| (0..3).any(|i| admitter.admits(*k, i, 1))).count();
        assert_eq!(at_once, in_turn);
        assert!((at_once as f64 / 50_000.0 - 0.488).abs() < 0.01, "{at_once}");
    }

    #[test]
    fn impossible_probabilities_are_named() {
        assert!(Admission::Probability(0.0).problem().is_some());
        assert!(Admission::Probability(f64::NAN).problem().is_some());
        assert!(Admission::Probability(1.0).problem().is_none());
    }
}
