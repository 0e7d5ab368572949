//! Plain rows, `[weights | optimizer state]`: the loops behind pull and push.

use regatta_optim::{Kernel, RowLoop, RowRule, RowUpdater};

use crate::config::{AnyRule, PlainConfig, SparseConfig};
use crate::group::{Item, Stages, Work, pipeline};
use crate::init::RowInit;
use crate::shard::Shard;
use crate::slab::{copy_floats, prefetch_floats};

/// A plain row, resolved.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) dim: usize,
    pub(crate) delete_after_unseen_days: u32,
    rule: AnyRule,
    init: RowInit,
    /// First values of the optimizer state.
    first_state: Vec<f32>,
}

impl Plain {
    pub(crate) fn new(table: &SparseConfig, config: &PlainConfig) -> Self {
        let mut first_state = vec![0.0; config.rule.row_state_len(config.dim)];
        config.rule.init_row_state(config.dim, &mut first_state);
        Plain {
            dim: config.dim,
            delete_after_unseen_days: config.delete_after_unseen_days,
            rule: config.rule,
            init: RowInit::new(table.seed, table.table, &table.stream, config.initializer),
            first_state,
        }
    }

    pub(crate) fn row_len(&self) -> usize {
        self.dim + self.first_state.len()
    }

    pub(crate) fn init(&self, key: u64, row: &mut [f32]) {
        let (weights, state) = row.split_at_mut(self.dim);
        self.init.fill(key, self.dim, 0, weights);
        copy_floats(&self.first_state, state);
    }

    pub(crate) fn parts(&self) -> Vec<(String, usize)> {
        let states = self.rule.states();
        let states = states.iter().map(|s| (s.name.to_string(), s.len_for(self.dim)));
        [("weight".to_string(), self.dim)].into_iter().chain(states).collect()
    }

    /// Copies the weights of rows to their positions in `out`; items without a row get zeros and
    /// are noted in `work.missing`.
    pub(crate) fn pull(&self, shard: &Shard, items: &[Item], out: &mut [f32], work: &mut Work) {
        work.start(items.len());
        pipeline(items.len(), &mut Pull { shard, items, out, work, dim: self.dim });
    }

    /// Updates rows with the gradients at their positions in `values`; what is not a row changes
    /// nothing. Gives the number of rows updated.
    pub(crate) fn push(
        &self,
        shard: &mut Shard,
        items: &[Item],
        values: &[f32],
        lr: f32,
        day: u32,
        work: &mut Work,
    ) -> usize {
        work.start(items.len());
        let mut n_updated = 0;
        let push =
            Push { shard, items, values, work, dim: self.dim, day, n_updated: &mut n_updated };
        self.rule.run_rows(lr, push);
        n_updated
    }
}

struct Pull<'a> {
    shard: &'a Shard,
    items: &'a [Item],
    out: &'a mut [f32],
    work: &'a mut Work,
    dim: usize,
}

impl Stages for Pull<'_> {
    #[inline(always)]
    fn fetch_index(&mut self, i: usize) {
        self.shard.index.prefetch(self.items[i].hash);
    }

    #[inline(always)]
    fn fetch_row(&mut self, i: usize) {
        let Item { hash, pos } = self.items[i];
        let place = self.shard.index.find(hash);
        self.work.places[i] = place;
        if let Some(slot) = place.slot() {
            self.shard.base.prefetch(slot, self.dim);
        }
        prefetch_floats(self.out, pos as usize * self.dim, self.dim);
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        let at = self.items[i].pos as usize * self.dim;
        let out = &mut self.out[at..at + self.dim];
        match self.work.places[i].slot() {
            Some(slot) => copy_floats(&self.shard.base.row(slot)[..self.dim], out),
            None => {
                out.fill(0.0);
                self.work.missing.push(i as u32);
            }
        }
    }
}

struct Push<'a> {
    shard: &'a mut Shard,
    items: &'a [Item],
    values: &'a [f32],
    work: &'a mut Work,
    dim: usize,
    day: u32,
    n_updated: &'a mut usize,
}

impl RowLoop for Push<'_> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        pipeline(self.items.len(), &mut PushWith { push: self, update });
    }
}

/// [`Push`] with the rule that was chosen at run time.
struct PushWith<'a, 'b, K> {
    push: Push<'a>,
    update: RowUpdater<'b, K>,
}

impl<K: Kernel> Stages for PushWith<'_, '_, K> {
    #[inline(always)]
    fn fetch_index(&mut self, i: usize) {
        self.push.shard.index.prefetch(self.push.items[i].hash);
    }

    #[inline(always)]
    fn fetch_row(&mut self, i: usize) {
        let push = &mut self.push;
        let Item { hash, pos } = push.items[i];
        let place = push.shard.index.touch(hash, push.day);
        push.work.places[i] = place;
        if let Some(slot) = place.slot() {
            push.shard.base.prefetch(slot, push.shard.base.stride());
            prefetch_floats(push.values, pos as usize * push.dim, push.dim);
        }
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        let push = &mut self.push;
        let Some(slot) = push.work.places[i].slot() else { return };
        let at = push.items[i].pos as usize * push.dim;
        let (weights, state) = push.shard.base.row_mut(slot).split_at_mut(push.dim);
        self.update.row(weights, &push.values[at..at + push.dim], state);
        *push.n_updated += 1;
    }
}
