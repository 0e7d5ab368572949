//! Click-through-rate rows: `[slot, delta_score, show, click, embed, embed state]`, extended by
//! `[embedx, embedx state]` when the score has earned it.
//!
//! The fields and rules of Paddle's `CtrCommonAccessor`; the days without a push stand in the
//! index.

use regatta_kernels::rows::copy_floats;
use regatta_optim::{Kernel, RowLoop, RowRule, RowUpdater};

use crate::Error;
use crate::config::{CtrConfig, SparseConfig};
use crate::group::{Columns, Item, Stages, Work, wide_pipeline};
use crate::index::Place;
use crate::init::{Initializer, RowInit};
use crate::row::Kind;
use crate::shard::Shard;

/// Positions in a row.
pub(crate) const SLOT: usize = 0;
pub(crate) const DELTA_SCORE: usize = 1;
pub(crate) const SHOW: usize = 2;
pub(crate) const CLICK: usize = 3;
pub(crate) const EMBED: usize = 4;
/// Values of a push before the gradients: slot, show, click.
const PUSH_HEAD: usize = 3;

/// A click-through-rate row, resolved.
#[derive(Debug)]
pub(crate) struct Ctr {
    pub(crate) config: CtrConfig,
    embed_init: RowInit,
    embedx_init: RowInit,
    embed_state: Vec<f32>,
    embedx_state: Vec<f32>,
}

impl Ctr {
    pub(crate) fn new(table: &SparseConfig, config: &CtrConfig) -> Self {
        let init = |zero: bool, range: f32| {
            let uniform = Initializer::Uniform { low: -range, high: range };
            let initializer = if zero { Initializer::Constant(0.0) } else { uniform };
            RowInit::new(table.seed, table.table, &table.stream, initializer)
        };
        let mut embed_state = vec![0.0; config.embed_rule.row_state_len(1)];
        config.embed_rule.init_row_state(1, &mut embed_state);
        let mut embedx_state = vec![0.0; config.embedx_rule.row_state_len(config.embedx_dim)];
        config.embedx_rule.init_row_state(config.embedx_dim, &mut embedx_state);
        Ctr {
            embed_init: init(config.zero_init, config.embed_rule.initial_range()),
            embedx_init: init(false, config.embedx_rule.initial_range()),
            embed_state,
            embedx_state,
            config: config.clone(),
        }
    }

    pub(crate) fn pull_width(&self) -> usize {
        3 + self.config.embedx_dim
    }

    pub(crate) fn push_columns(&self) -> Columns {
        let width = PUSH_HEAD + 1 + self.config.embedx_dim;
        Columns { width, labels: 1, unweighted: PUSH_HEAD }
    }

    pub(crate) fn base_len(&self) -> usize {
        EMBED + 1 + self.embed_state.len()
    }

    pub(crate) fn extended_len(&self) -> usize {
        self.base_len() + self.config.embedx_dim + self.embedx_state.len()
    }

    pub(crate) fn init_base(&self, key: u64, row: &mut [f32]) {
        row[..EMBED].copy_from_slice(&[-1.0, 0.0, 0.0, 0.0]);
        self.embed_init.fill(key, 1 + self.config.embedx_dim, 0, &mut row[EMBED..EMBED + 1]);
        row[EMBED + 1..].copy_from_slice(&self.embed_state);
    }

    pub(crate) fn init_extension(&self, key: u64, rest: &mut [f32]) {
        let (embedx, state) = rest.split_at_mut(self.config.embedx_dim);
        self.embedx_init.fill(key, 1 + self.config.embedx_dim, 1, embedx);
        state.copy_from_slice(&self.embedx_state);
    }

    pub(crate) fn parts(&self) -> Vec<(String, usize)> {
        let names = ["slot", "delta_score", "show", "click", "embed"];
        let mut parts: Vec<_> = names.map(|name| (name.to_string(), 1)).into();
        for s in self.config.embed_rule.states() {
            parts.push((format!("embed_{}", s.name), s.len_for(1)));
        }
        parts.push(("embedx".into(), self.config.embedx_dim));
        for s in self.config.embedx_rule.states() {
            parts.push((format!("embedx_{}", s.name), s.len_for(self.config.embedx_dim)));
        }
        parts
    }

    /// `(show - click) * nonclk_coeff + click * click_coeff`
    pub(crate) fn score(&self, show: f32, click: f32) -> f32 {
        (show - click) * self.config.nonclk_coeff + click * self.config.click_coeff
    }

    /// Copies statistics and weights of rows to their positions in `out`, zeros for what a row does
    /// not have; items without a row are noted in `work.missing`.
    pub(crate) fn pull(&self, shard: &Shard, items: &[Item], out: &mut [f32], work: &mut Work) {
        work.start(items.len());
        wide_pipeline(items.len(), &mut Pull { ctr: self, shard, items, out, work });
    }

    pub(crate) fn copy_out(&self, row: Option<&[f32]>, out: &mut [f32]) {
        let Some(row) = row else { return out.fill(0.0) };
        let (head, embedx) = out.split_at_mut(3);
        head.copy_from_slice(&[row[SHOW], row[CLICK], row[EMBED]]);
        match row.get(self.base_len()..self.base_len() + embedx.len()) {
            Some(values) => copy_floats(values, embedx),
            None => embedx.fill(0.0),
        }
    }

    /// Counts the impressions, updates the weights and extends rows whose score has earned it; what
    /// is not a row changes nothing. Gives the number of rows updated. `lr` is a factor of the
    /// learning rates of both rules.
    pub(crate) fn push(
        &self,
        kind: &Kind,
        shard: &mut Shard,
        items: &[Item],
        values: &[f32],
        lr: f32,
        day: u32,
        work: &mut Work,
    ) -> Result<usize, Error> {
        work.start(items.len());
        wide_pipeline(items.len(), &mut Count { ctr: self, shard, items, values, work, day });
        let (embed, embedx) = (&self.config.embed_rule, &self.config.embedx_rule);
        let x_len = self.config.embedx_dim + self.embedx_state.len();
        let part = |from: usize, len: usize, dim: usize, gradient: usize| Part {
            from,
            len,
            dim,
            gradient,
            width: self.push_columns().width,
            show_scale: self.config.show_scale,
        };
        let part_1 = part(EMBED, 1 + self.embed_state.len(), 1, PUSH_HEAD);
        let part_x = part(self.base_len(), x_len, self.config.embedx_dim, PUSH_HEAD + 1);
        let places = &work.places;
        let rows = PartRows { part: part_1, shard, items, values, places };
        embed.run_rows(lr * embed.learning_rate(), &embed.shared_state(), rows);
        let rows = PartRows { part: part_x, shard, items, values, places };
        embedx.run_rows(lr * embedx.learning_rate(), &embedx.shared_state(), rows);
        self.extend_rows(kind, shard, items, places)?;
        Ok(work.places.iter().filter(|place| place.slot().is_some()).count())
    }

    /// Extends rows that have earned it. The push that earned it does not change the new part.
    fn extend_rows(
        &self,
        kind: &Kind,
        shard: &mut Shard,
        items: &[Item],
        places: &[Place],
    ) -> Result<(), Error> {
        if self.config.embedx_dim == 0 {
            return Ok(());
        }
        for (item, place) in items.iter().zip(places) {
            let Some(row) = shard.row(*place) else { continue };
            let earned = self.score(row[SHOW], row[CLICK]) >= self.config.embedx_threshold;
            if earned && !place.has(Place::EXTENDED) {
                shard.extend(kind, item.hash, *place)?;
            }
        }
        Ok(())
    }
}

struct Pull<'a> {
    ctr: &'a Ctr,
    shard: &'a Shard,
    items: &'a [Item],
    out: &'a mut [f32],
    work: &'a mut Work,
}

impl Pull<'_> {
    #[inline(always)]
    fn found(&mut self, i: usize, place: Place) {
        self.work.places[i] = place;
        if let Some(slot) = place.slot() {
            let dim = if place.has(Place::EXTENDED) { self.ctr.config.embedx_dim } else { 0 };
            self.shard.slab(place).prefetch(slot, self.ctr.base_len() + dim);
        }
    }
}

impl Stages for Pull<'_> {
    #[inline(always)]
    fn fetch_index(&mut self, i: usize) {
        self.shard.index.prefetch(self.items[i].hash);
    }

    #[inline(always)]
    fn locate(&mut self, i: usize) {
        self.found(i, self.shard.index.find_or_prefetch(self.items[i].hash));
    }

    #[inline(always)]
    fn locate_further(&mut self, i: usize) {
        if self.work.places[i] == Place::FURTHER_ON {
            self.found(i, self.shard.index.find(self.items[i].hash));
        }
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        let width = self.ctr.pull_width();
        let at = self.items[i].pos as usize * width;
        let row = self.shard.row(self.work.places[i]);
        self.ctr.copy_out(row, &mut self.out[at..at + width]);
        if row.is_none() {
            self.work.missing.push(i as u32);
        }
    }
}

/// The first loop of a push: finds the rows and adds to their statistics.
struct Count<'a> {
    ctr: &'a Ctr,
    shard: &'a mut Shard,
    items: &'a [Item],
    values: &'a [f32],
    work: &'a mut Work,
    day: u32,
}

impl Count<'_> {
    #[inline(always)]
    fn found(&mut self, i: usize, place: Place) {
        self.work.places[i] = place;
        if let Some(slot) = place.slot() {
            let slab = self.shard.slab(place);
            slab.prefetch(slot, slab.stride());
            let touched = self.shard.index.touch(self.items[i].hash, place, self.day);
            self.work.places[i] = touched;
        }
    }
}

impl Stages for Count<'_> {
    #[inline(always)]
    fn fetch_index(&mut self, i: usize) {
        self.shard.index.prefetch(self.items[i].hash);
    }

    #[inline(always)]
    fn locate(&mut self, i: usize) {
        self.found(i, self.shard.index.find_or_prefetch(self.items[i].hash));
    }

    #[inline(always)]
    fn locate_further(&mut self, i: usize) {
        if self.work.places[i] == Place::FURTHER_ON {
            self.found(i, self.shard.index.find(self.items[i].hash));
        }
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        let at = self.items[i].pos as usize * self.ctr.push_columns().width;
        let Some(row) = self.shard.row_mut(self.work.places[i]) else { return };
        let (slot, show, click) = (self.values[at], self.values[at + 1], self.values[at + 2]);
        row[SLOT] = slot;
        row[SHOW] += show;
        row[CLICK] += click;
        row[DELTA_SCORE] += self.ctr.score(show, click);
    }
}

/// One of the two vectors of a row, and its gradient in a push.
struct Part {
    /// Where weights and state are in a row.
    from: usize,
    len: usize,
    dim: usize,
    /// Where the gradient is in a push of `width` values.
    gradient: usize,
    width: usize,
    show_scale: bool,
}

/// The other loops of a push: one rule over one part of all rows that have it.
struct PartRows<'a> {
    part: Part,
    shard: &'a mut Shard,
    items: &'a [Item],
    values: &'a [f32],
    places: &'a [Place],
}

impl RowLoop for PartRows<'_> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        let Part { from, len, dim, gradient, width, show_scale } = self.part;
        for (item, place) in self.items.iter().zip(self.places) {
            let Some(row) = self.shard.row_mut(*place) else { continue };
            let Some(part) = row.get_mut(from..from + len) else { continue };
            let values = &self.values[item.pos as usize * width..][..width];
            let (weights, state) = part.split_at_mut(dim);
            let scale = if show_scale { values[1] } else { 1.0 };
            update.row_scaled(scale, weights, &values[gradient..gradient + dim], state);
        }
    }
}
