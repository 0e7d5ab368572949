//! The naive model of a sparse table: maps, one key at a time, no shards, no slots.

use std::collections::{BTreeMap, HashMap};

use regatta_optim::RowRule;

use crate::admission::Admitter;
use crate::config::{Accessor, Create, CtrConfig, PlainConfig, SparseConfig};
use crate::init::{Initializer, RowInit};
use crate::{PullCounts, PullMode, PushCounts, Row, RowBody, SaveMode, ShrinkCounts};

/// What a table must do, written as plainly as possible.
#[derive(Debug)]
pub struct Model {
    config: SparseConfig,
    admitter: Admitter,
    rows: BTreeMap<u64, ModelRow>,
    /// Pushes so far.
    steps: u64,
    candidates: BTreeMap<u64, Candidate>,
}

#[derive(Debug, Clone, PartialEq)]
struct ModelRow {
    /// In the order of [`SparseTable::row_parts`](crate::SparseTable::row_parts).
    words: Vec<f32>,
    unseen_days: u32,
    changed: bool,
}

#[derive(Debug)]
struct Candidate {
    appearances: u32,
    unseen_days: u32,
}

impl Model {
    /// An empty model of a table.
    pub fn new(config: &SparseConfig) -> Self {
        let admitter = Admitter::new(config.admission.clone(), config.seed, config.table);
        let (rows, candidates) = (BTreeMap::new(), BTreeMap::new());
        Model { config: config.clone(), admitter, rows, candidates, steps: 0 }
    }

    fn pull_width(&self) -> usize {
        match &self.config.accessor {
            Accessor::Plain(plain) => plain.dim,
            Accessor::Ctr(ctr) => 3 + ctr.embedx_dim,
        }
    }

    /// As [`SparseTable::pull`](crate::SparseTable::pull).
    pub fn pull(&mut self, keys: &[u64], mode: PullMode<'_>) -> (Vec<f32>, PullCounts) {
        let mut counts = PullCounts::default();
        if mode != PullMode::Test && self.config.create == Create::OnPull {
            for (i, key) in keys.iter().enumerate() {
                let appearances = match mode {
                    PullMode::TrainCounted(counts) => counts[i],
                    _ => 1,
                };
                counts.created += usize::from(self.appear(*key, appearances));
            }
        }
        let mut out = Vec::new();
        for key in keys {
            match self.rows.get(key) {
                Some(row) => out.extend(self.visible(&row.words)),
                None => out.extend(std::iter::repeat_n(0.0, self.pull_width())),
            }
        }
        let present = keys.iter().filter(|key| self.rows.contains_key(key)).count();
        counts.hits = present - counts.created;
        counts.zeros = keys.len() - present;
        (out, counts)
    }

    fn visible(&self, words: &[f32]) -> Vec<f32> {
        match &self.config.accessor {
            Accessor::Plain(plain) => words[..plain.dim].to_vec(),
            Accessor::Ctr(ctr) => {
                let base = base_len(ctr);
                let mut out = vec![words[2], words[3], words[4]];
                out.extend(words[base..].iter().take(ctr.embedx_dim));
                out.resize(3 + ctr.embedx_dim, 0.0);
                out
            }
        }
    }

    /// Counts appearances of a key; whether that made it a row.
    fn appear(&mut self, key: u64, appearances: u32) -> bool {
        if self.rows.contains_key(&key) || Some(key) == self.config.padding_idx {
            return false;
        }
        let before = self.candidates.get(&key).map_or(0, |candidate| candidate.appearances);
        if !self.admitter.admits(key, before, appearances) {
            let candidate = Candidate { appearances: before + appearances, unseen_days: 0 };
            self.candidates.insert(key, candidate);
            return false;
        }
        self.candidates.remove(&key);
        let words = match &self.config.accessor {
            Accessor::Plain(plain) => self.new_plain(plain, key),
            Accessor::Ctr(ctr) => self.new_ctr(ctr, key),
        };
        self.rows.insert(key, ModelRow { words, unseen_days: 0, changed: true });
        true
    }

    fn draw(
        &self,
        initializer: Initializer,
        key: u64,
        width: usize,
        first: usize,
        n: usize,
    ) -> Vec<f32> {
        let SparseConfig { seed, table, stream, .. } = &self.config;
        let mut weights = vec![0.0; n];
        RowInit::new(*seed, *table, stream, initializer).fill(key, width, first, &mut weights);
        weights
    }

    fn new_plain(&self, plain: &PlainConfig, key: u64) -> Vec<f32> {
        let mut words = self.draw(plain.initializer, key, plain.dim, 0, plain.dim);
        words.extend(first_state(&plain.rule, plain.dim));
        words
    }

    fn new_ctr(&self, ctr: &CtrConfig, key: u64) -> Vec<f32> {
        let range = ctr.embed_rule.initial_range();
        let uniform = Initializer::Uniform { low: -range, high: range };
        let initializer = if ctr.zero_init { Initializer::Constant(0.0) } else { uniform };
        let mut words = vec![-1.0, 0.0, 0.0, 0.0];
        words.extend(self.draw(initializer, key, 1 + ctr.embedx_dim, 0, 1));
        words.extend(first_state(&ctr.embed_rule, 1));
        words
    }

    /// As [`SparseTable::push`](crate::SparseTable::push).
    pub fn push(&mut self, keys: &[u64], values: &[f32], lr: f32) -> PushCounts {
        let mut counts = PushCounts::default();
        let (order, sums) = self.merged(keys, values);
        for key in order {
            if self.config.create == Create::OnPush {
                counts.created += usize::from(self.appear(key, 1));
            }
            let Some(mut row) = self.rows.remove(&key) else {
                counts.ignored += 1;
                continue;
            };
            (row.unseen_days, row.changed) = (0, true);
            match &self.config.accessor {
                Accessor::Plain(plain) => {
                    let (weights, state) = row.words.split_at_mut(plain.dim);
                    let shared = plain.rule.shared_after(self.steps);
                    plain.rule.update_row(lr, &shared, weights, &sums[&key], state);
                }
                Accessor::Ctr(ctr) => self.push_ctr(ctr, key, &mut row.words, &sums[&key], lr),
            }
            self.rows.insert(key, row);
            counts.updated += 1;
        }
        self.steps += 1;
        counts
    }

    /// Keys in order of first appearance, and the sum of each one's values.
    fn merged(&self, keys: &[u64], values: &[f32]) -> (Vec<u64>, HashMap<u64, Vec<f32>>) {
        let labels = usize::from(matches!(self.config.accessor, Accessor::Ctr(_)));
        let (mut order, mut sums) = (Vec::new(), HashMap::<u64, Vec<f32>>::new());
        let width = values.len() / keys.len().max(1);
        for (key, values) in keys.iter().zip(values.chunks(width.max(1))) {
            match sums.get_mut(key) {
                Some(sum) => {
                    sum.iter_mut().zip(values).skip(labels).for_each(|(sum, value)| *sum += value);
                }
                None => {
                    order.push(*key);
                    sums.insert(*key, values.to_vec());
                }
            }
        }
        (order, sums)
    }

    fn push_ctr(&self, ctr: &CtrConfig, key: u64, words: &mut Vec<f32>, push: &[f32], lr: f32) {
        let (show, click) = (push[1], push[2]);
        words[0] = push[0];
        words[1] += score(ctr, show, click);
        words[2] += show;
        words[3] += click;
        let scale = if ctr.show_scale { show } else { 1.0 };
        let base = base_len(ctr);
        let rule = &ctr.embed_rule;
        let (weight, state) = words[4..base].split_at_mut(1);
        let shared = rule.shared_state();
        let rate = lr * rule.learning_rate();
        rule.update_row_scaled(rate, scale, &shared, weight, &push[3..4], state);
        let rule = &ctr.embedx_rule;
        if words.len() > base {
            let (weights, state) = words[base..].split_at_mut(ctr.embedx_dim);
            let rate = lr * rule.learning_rate();
            rule.update_row_scaled(rate, scale, &shared, weights, &push[4..], state);
        } else if ctr.embedx_dim > 0 && score(ctr, words[2], words[3]) >= ctr.embedx_threshold {
            let range = rule.initial_range();
            let uniform = Initializer::Uniform { low: -range, high: range };
            words.extend(self.draw(uniform, key, 1 + ctr.embedx_dim, 1, ctr.embedx_dim));
            words.extend(first_state(rule, ctr.embedx_dim));
        }
    }

    /// As [`SparseTable::end_day`](crate::SparseTable::end_day).
    pub fn end_day(&mut self) {
        self.rows.values_mut().for_each(|row| row.unseen_days += 1);
        self.candidates.values_mut().for_each(|candidate| candidate.unseen_days += 1);
    }

    /// As [`SparseTable::shrink`](crate::SparseTable::shrink).
    pub fn shrink(&mut self, unseen_days: Option<u32>) -> ShrinkCounts {
        let (rows, candidates) = (self.rows.len(), self.candidates.len());
        let limit = unseen_days.unwrap_or(match &self.config.accessor {
            Accessor::Plain(plain) => plain.delete_after_unseen_days,
            Accessor::Ctr(ctr) => ctr.delete_after_unseen_days,
        });
        let accessor = &self.config.accessor;
        self.rows.retain(|_, row| {
            let mut worth_keeping = true;
            if let Accessor::Ctr(ctr) = accessor {
                row.words[2] *= ctr.show_click_decay_rate;
                row.words[3] *= ctr.show_click_decay_rate;
                worth_keeping = score(ctr, row.words[2], row.words[3]) >= ctr.delete_threshold;
            }
            worth_keeping && row.unseen_days <= limit
        });
        self.candidates.retain(|_, candidate| candidate.unseen_days <= limit);
        ShrinkCounts {
            rows: rows - self.rows.len(),
            kept: self.rows.len(),
            candidates: candidates - self.candidates.len(),
        }
    }

    /// What [`SparseTable::export`](crate::SparseTable::export) gives of all shards, in order of
    /// ids.
    pub fn export(&self, mode: SaveMode) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for (&key, row) in self.rows.iter().filter(|(_, row)| self.selects(mode, row)) {
            let base = match &self.config.accessor {
                Accessor::Plain(_) => row.words.len(),
                Accessor::Ctr(ctr) => base_len(ctr),
            };
            let body = if row.words.len() > base {
                RowBody::Extended(&row.words)
            } else {
                RowBody::Base(&row.words)
            };
            rows.push(Row { key, unseen_days: row.unseen_days, changed: row.changed, body });
        }
        if matches!(mode, SaveMode::All | SaveMode::Day) {
            for (&key, candidate) in &self.candidates {
                let body = RowBody::Candidate { appearances: candidate.appearances };
                let unseen_days = candidate.unseen_days;
                rows.push(Row { key, unseen_days, changed: false, body });
            }
        }
        rows.sort_by_key(|row| row.key);
        rows
    }

    fn selects(&self, mode: SaveMode, row: &ModelRow) -> bool {
        let Accessor::Ctr(ctr) = &self.config.accessor else {
            return !matches!(mode, SaveMode::Delta | SaveMode::Patch) || row.changed;
        };
        let serves = score(ctr, row.words[2], row.words[3]) >= ctr.base_threshold
            && row.unseen_days <= ctr.delta_keep_days;
        match mode {
            SaveMode::All | SaveMode::Day => true,
            SaveMode::Patch => row.changed,
            SaveMode::Base => serves,
            SaveMode::Delta => serves && row.words[1] >= ctr.delta_threshold,
        }
    }

    /// What [`SparseTable::saved`](crate::SparseTable::saved) does right after an export.
    pub fn saved(&mut self, mode: SaveMode) {
        if matches!(mode, SaveMode::All | SaveMode::Day) {
            return;
        }
        let exported: Vec<u64> = self.export(mode).iter().map(|row| row.key).collect();
        let by_score = matches!(self.config.accessor, Accessor::Ctr(_)) && mode != SaveMode::Patch;
        for key in exported {
            if let Some(row) = self.rows.get_mut(&key) {
                if by_score {
                    row.words[1] = 0.0;
                } else {
                    row.changed = false;
                }
            }
        }
    }

    /// How many rows and candidates there are.
    pub fn len(&self) -> (usize, usize) {
        (self.rows.len(), self.candidates.len())
    }

    /// Whether there are neither rows nor candidates.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.candidates.clear();
    }
}

fn score(ctr: &CtrConfig, show: f32, click: f32) -> f32 {
    (show - click) * ctr.nonclk_coeff + click * ctr.click_coeff
}

/// Slot, delta score, show, click, embed and its state.
fn base_len(ctr: &CtrConfig) -> usize {
    5 + ctr.embed_rule.row_state_len(1)
}

fn first_state(rule: &impl RowRule, n: usize) -> Vec<f32> {
    let mut state = vec![0.0; rule.row_state_len(n)];
    rule.init_row_state(n, &mut state);
    state
}
