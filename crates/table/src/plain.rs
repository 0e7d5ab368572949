//! Plain rows, `[weights | optimizer state]`: the loops behind pull and push.

use std::sync::{Mutex, MutexGuard};

use regatta_kernels::prefetch_row;
use regatta_kernels::rows::copy_floats;
use regatta_optim::{Kernel, Per, RowLoop, RowRule, RowUpdater, SharedState};

use crate::config::{AnyRule, PlainConfig, SparseConfig};
use crate::group::{Item, Stages, Work, pipeline, wide_pipeline};
use crate::index::Place;
use crate::init::RowInit;
use crate::shard::Shard;

/// Runs a block with the constant `D` set to the number of weights if that is a usual one, for
/// which the loops are compiled with their lengths known, and to 0 otherwise.
macro_rules! by_dim {
    ($dim:expr, $D:ident => $block:block) => {
        match $dim {
            8 => {
                const $D: usize = 8;
                $block
            }
            9 => {
                const $D: usize = 9;
                $block
            }
            16 => {
                const $D: usize = 16;
                $block
            }
            _ => {
                const $D: usize = 0;
                $block
            }
        }
    };
}
/// A plain row, resolved.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) dim: usize,
    pub(crate) delete_after_unseen_days: u32,
    rule: AnyRule,
    init: RowInit,
    /// Initial values of the optimizer state.
    first_state: Vec<f32>,
    /// What all rows share, such as the powers of Adam's betas, and the number of pushes that they
    /// count.
    shared: Mutex<(SharedState, u64)>,
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
            shared: Mutex::new((config.rule.shared_state(), 0)),
        }
    }

    fn shared(&self) -> MutexGuard<'_, (SharedState, u64)> {
        self.shared.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts a step, and gives what its rows share.
    pub(crate) fn next_step(&self) -> SharedState {
        let mut shared = self.shared();
        let now = shared.0;
        self.rule.advance(&mut shared.0);
        shared.1 += 1;
        now
    }

    pub(crate) fn set_steps(&self, steps: u64) {
        *self.shared() = (self.rule.shared_after(steps), steps);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.shared().1
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
        let own = states.iter().filter(|s| s.per != Per::Scalar);
        let states = own.map(|s| (s.name.to_string(), s.len_for(self.dim)));
        [("weight".to_string(), self.dim)].into_iter().chain(states).collect()
    }

    /// Copies the weights of rows to their positions in `out`; items without a row get zeros and
    /// are noted in `work.missing`.
    pub(crate) fn pull(&self, shard: &Shard, items: &[Item], out: &mut [f32], work: &mut Work) {
        work.start(items.len());
        let dim = if work.whole { self.row_len() } else { self.dim };
        let Work { places, missing, .. } = work;
        by_dim!(dim, D => {
            wide_pipeline(items.len(), &mut Pull::<D> { shard, items, out, places, missing, dim });
        });
    }

    /// Updates rows with the gradients at their positions in `values`; what is not a row changes
    /// nothing. Gives the number of rows updated. The index is not asked for places that are known.
    pub(crate) fn push(
        &self,
        shard: &mut Shard,
        (items, known): (&[Item], Option<&[Place]>),
        values: &[f32],
        (lr, shared): (f32, &SharedState),
        day: u32,
        work: &mut Work,
    ) -> usize {
        work.start(items.len());
        if work.whole {
            return self.overwrite(shard, items, values, day, &mut work.places);
        }
        if let Some(known) = known {
            work.places.copy_from_slice(known);
        }
        let (places, dim) = (work.places.as_mut_slice(), self.dim);
        by_dim!(dim, D => {
            let push = Push::<D> { shard, items, values, places, dim, day };
            match known {
                None => self.rule.run_rows(lr, shared, push),
                Some(_) => self.rule.run_rows(lr, shared, PushKnown(push)),
            }
        });
        work.places.iter().filter(|place| place.slot().is_some()).count()
    }
}

impl Plain {
    /// Writes whole rows at their positions in `rows` over those of items; gives how many there
    /// are.
    fn overwrite(
        &self,
        shard: &mut Shard,
        items: &[Item],
        rows: &[f32],
        day: u32,
        places: &mut [Place],
    ) -> usize {
        let len = self.row_len();
        let mut n = 0;
        for (Item { hash, pos }, noted) in items.iter().zip(places) {
            let place = shard.index.find(*hash);
            *noted = place;
            let Some(slot) = place.slot() else { continue };
            shard.index.touch(*hash, place, day);
            copy_floats(&rows[*pos as usize * len..][..len], shard.base.row_mut(slot));
            n += 1;
        }
        n
    }
}

/// Pulls rows of `D` weights, or of `dim` if `D` is 0.
struct Pull<'a, const D: usize> {
    shard: &'a Shard,
    items: &'a [Item],
    out: &'a mut [f32],
    places: &'a mut [Place],
    missing: &'a mut Vec<u32>,
    dim: usize,
}

impl<const D: usize> Pull<'_, D> {
    #[inline(always)]
    fn dim(&self) -> usize {
        if D == 0 { self.dim } else { D }
    }

    #[inline(always)]
    fn found(&mut self, i: usize, place: Place) {
        self.places[i] = place;
        if let Some(slot) = place.slot() {
            self.shard.base.prefetch(slot, self.dim());
            // The items of a shard stand far apart in a request.
            prefetch_row(self.out, self.items[i].pos as usize * self.dim(), self.dim());
        }
    }
}

impl<const D: usize> Stages for Pull<'_, D> {
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
        if self.places[i] == Place::FURTHER_ON {
            self.found(i, self.shard.index.find(self.items[i].hash));
        }
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        let dim = self.dim();
        let out = &mut self.out[self.items[i].pos as usize * dim..][..dim];
        match self.places[i].slot() {
            Some(slot) => copy_floats(&self.shard.base.row(slot)[..dim], out),
            None => {
                out.fill(0.0);
                self.missing.push(i as u32);
            }
        }
    }
}

/// Pushes to rows of `D` weights, or of `dim` if `D` is 0.
struct Push<'a, const D: usize> {
    shard: &'a mut Shard,
    items: &'a [Item],
    values: &'a [f32],
    places: &'a mut [Place],
    dim: usize,
    day: u32,
}

impl<const D: usize> RowLoop for Push<'_, D> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        pipeline(self.items.len(), &mut PushWith { push: self, update });
    }
}

/// A push to rows whose places are those of an earlier pull. What was no row then may be one now,
/// and the first push after that or of a day is noted in the index: such items are looked up.
struct PushKnown<'a, const D: usize>(Push<'a, D>);

impl<const D: usize> RowLoop for PushKnown<'_, D> {
    #[inline(always)]
    fn run<K: Kernel>(self, update: RowUpdater<'_, K>) {
        pipeline(self.0.items.len(), &mut PushKnownWith(PushWith { push: self.0, update }));
    }
}

/// [`PushKnown`] with the rule that was chosen at run time.
struct PushKnownWith<'a, 'b, K, const D: usize>(PushWith<'a, 'b, K, D>);

impl<K: Kernel, const D: usize> PushKnownWith<'_, '_, K, D> {
    #[inline(always)]
    fn is_settled(&self, i: usize) -> bool {
        let push = &self.0.push;
        push.shard.index.is_touched(push.places[i], push.day)
    }
}

impl<K: Kernel, const D: usize> Stages for PushKnownWith<'_, '_, K, D> {
    #[inline(always)]
    fn fetch_index(&mut self, i: usize) {
        if !self.is_settled(i) {
            self.0.fetch_index(i);
        }
    }

    #[inline(always)]
    fn locate(&mut self, i: usize) {
        if self.is_settled(i) {
            self.0.ask_for_row(i);
        } else {
            self.0.locate(i);
        }
    }

    #[inline(always)]
    fn locate_further(&mut self, i: usize) {
        self.0.locate_further(i);
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        self.0.visit(i);
    }
}

/// [`Push`] with the rule that was chosen at run time.
struct PushWith<'a, 'b, K, const D: usize> {
    push: Push<'a, D>,
    update: RowUpdater<'b, K>,
}

impl<K: Kernel, const D: usize> PushWith<'_, '_, K, D> {
    #[inline(always)]
    fn found(&mut self, i: usize, place: Place) {
        self.push.places[i] = place;
        if place.slot().is_some() {
            self.ask_for_row(i);
            let push = &mut self.push;
            push.shard.index.touch(push.items[i].hash, place, push.day);
        }
    }

    #[inline(always)]
    fn ask_for_row(&mut self, i: usize) {
        let push = &mut self.push;
        if let Some(slot) = push.places[i].slot() {
            push.shard.base.prefetch(slot, push.shard.base.stride());
            let dim = if D == 0 { push.dim } else { D };
            prefetch_row(push.values, push.items[i].pos as usize * dim, dim);
        }
    }
}

impl<K: Kernel, const D: usize> Stages for PushWith<'_, '_, K, D> {
    #[inline(always)]
    fn fetch_index(&mut self, i: usize) {
        self.push.shard.index.prefetch(self.push.items[i].hash);
    }

    #[inline(always)]
    fn locate(&mut self, i: usize) {
        self.found(i, self.push.shard.index.find_or_prefetch(self.push.items[i].hash));
    }

    #[inline(always)]
    fn locate_further(&mut self, i: usize) {
        if self.push.places[i] == Place::FURTHER_ON {
            self.found(i, self.push.shard.index.find(self.push.items[i].hash));
        }
    }

    #[inline(always)]
    fn visit(&mut self, i: usize) {
        let push = &mut self.push;
        let Some(slot) = push.places[i].slot() else { return };
        let dim = if D == 0 { push.dim } else { D };
        let gradient = &push.values[push.items[i].pos as usize * dim..][..dim];
        let (weights, state) = push.shard.base.row_mut(slot).split_at_mut(dim);
        self.update.row(weights, gradient, state);
    }
}
