//! The programs of a rank, and after which steps the second one runs.

use std::collections::HashSet;

use regatta_ir::{Program, Programs, VarDef};
use regatta_passes::{is_merge_state, is_snapshot};

/// What a rank runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RankPlan {
    /// What runs at every step, and the startup program of everything.
    pub each: Programs,
    /// What runs after some of the steps.
    pub then: Option<Program>,
    /// After which.
    pub when: When,
    /// Whether ranks keep different optimizer states.
    pub sharded: bool,
    /// Whether ranks keep parts of gradients that they have not sent yet.
    pub keeps_unsent: bool,
}

/// After which steps the second program runs. At the end of a data pass it runs in any case, unless
/// it has run after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// There is no second program.
    Never,
    /// After every N steps: merged gradients.
    Every(u64),
    /// After every step up to `begin_step`, then after every `k_steps`.
    Local {
        /// Steps between two averages.
        k_steps: u64,
        /// Until then every step is followed by one.
        begin_step: u64,
    },
    /// As `Local`, with a number of steps that follows the loss.
    Adaptive {
        /// Steps between two averages at first.
        init_k_steps: u64,
        /// Until then every step is followed by an average.
        begin_step: u64,
    },
}

impl When {
    /// Whether ranks train apart: their steps do not exchange gradients.
    pub fn is_local(self) -> bool {
        matches!(self, When::Local { .. } | When::Adaptive { .. })
    }
}

impl RankPlan {
    /// What continues to the next step when ranks are together, each variable once: parameters and
    /// states, without what only ranks between two exchanges have (sums of merged gradients,
    /// snapshots).
    pub fn kept(&self) -> Vec<&VarDef> {
        let between = |name: &str| is_merge_state(name) || is_snapshot(name);
        let programs = std::iter::once(&self.each.main).chain(&self.then);
        let mut kept: Vec<&VarDef> = Vec::new();
        let mut seen = HashSet::new();
        for var in programs.flat_map(Program::persistables) {
            if !between(&var.name) && seen.insert(&var.name) {
                kept.push(var);
            }
        }
        kept
    }

    /// All programs as text, with their names.
    pub fn text(&self) -> String {
        let then = self.then.iter().map(Program::to_string);
        std::iter::once(self.each.main.to_string()).chain(then).collect::<Vec<_>>().join("\n")
    }
}
