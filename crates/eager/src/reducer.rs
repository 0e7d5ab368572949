//! Gradients of several ranks become their mean, while backward still runs.
//!
//! Parameters are divided into buckets. When the gradients of a bucket are complete, their exchange
//! starts in the background, and backward continues with the layers before. At its end it waits for
//! all exchanges and puts the means in the places of the gradients. Ranks start buckets in the same
//! order, whatever the order of their gradients is, and sums have the same bits on all ranks.

use std::sync::{Arc, Mutex};

use regatta_ops::comm::{Exchange, Reply};

use crate::bucket::{Bucket, Replica, divide};
use crate::finish::after_backward;
use crate::global::lock;
use crate::{Error, Result, no_grad};

/// The way of gradients to other ranks and back. All ranks start the same exchanges in the same
/// order; they continue in the background until somebody waits for them.
pub trait Ranks: Send + Sync {
    /// Number of ranks.
    fn size(&self) -> usize;

    /// Starts an exchange under a name that is not in use.
    ///
    /// # Errors
    /// If the connection to other ranks is lost.
    fn start(&self, name: &Arc<str>, exchange: Exchange) -> Result<()>;

    /// Waits for the exchange of that name.
    ///
    /// # Errors
    /// If it failed, naming the ranks that are missing.
    fn wait(&self, name: &str) -> Result<Reply>;
}

/// How gradients are exchanged. All ranks must say the same.
#[derive(Debug, Clone)]
pub struct ReducerOptions {
    /// Begins the names of exchanges. Two reducers have different names.
    pub name: String,
    /// Bytes of a bucket. A larger parameter is alone.
    pub bucket_bytes: usize,
    /// Bytes of the bucket that is started last.
    pub last_bucket_bytes: usize,
    /// Whether parameters may get no gradient. Otherwise that is an error.
    pub find_unused: bool,
    /// After how many backwards ranks compare their parameters, the first included.
    pub check_every: u64,
}

/// Averages the gradients of parameters over ranks in every backward.
pub struct Reducer {
    shared: Arc<Shared>,
    hooks: Vec<u64>,
}

struct Shared {
    ranks: Arc<dyn Ranks>,
    params: Vec<Replica>,
    buckets: Vec<Bucket>,
    /// The bucket of each parameter.
    bucket_of: Vec<usize>,
    options: ReducerOptions,
    /// The exchange that compares parameters.
    compare: Arc<str>,
    state: Mutex<State>,
}

struct State {
    /// Whether backwards exchange gradients.
    sync: bool,
    round: Option<Round>,
    /// Completed rounds.
    rounds: u64,
    /// Why exchanges of ranks do not fit together any more.
    failed: Option<String>,
    /// The buffer of each bucket.
    spare: Vec<Vec<f32>>,
}

/// The exchanges of one backward.
struct Round {
    /// Whether the gradient of each parameter is complete.
    arrived: Vec<bool>,
    /// How many gradients each bucket waits for.
    missing: Vec<usize>,
    /// How many buckets are in flight.
    started: usize,
}

impl Reducer {
    /// Takes part in all backwards from now on, until it is dropped.
    ///
    /// # Errors
    /// If a parameter that travels by rows is no matrix.
    pub fn new(
        ranks: Arc<dyn Ranks>,
        params: Vec<Replica>,
        options: ReducerOptions,
    ) -> Result<Reducer> {
        if let Some(bad) = params.iter().find(|p| p.by_rows && p.tensor.ndim() != 2) {
            let shape = bad.tensor.shape();
            let message = format!("'{}' of shape {shape:?} is no table with rows", bad.name);
            return Err(Error::Mismatch(message));
        }
        let (bytes, last) = (options.bucket_bytes, options.last_bucket_bytes);
        let buckets = divide(&params, &options.name, bytes, last, options.find_unused);
        let mut bucket_of = vec![0; params.len()];
        for (i, bucket) in buckets.iter().enumerate() {
            bucket.members.iter().for_each(|at| bucket_of[*at] = i);
        }
        let spare = buckets.iter().map(|_| Vec::new()).collect();
        let state = State { sync: true, round: None, rounds: 0, failed: None, spare };
        let compare = format!("{}: are parameters the same", options.name).into();
        let state = Mutex::new(state);
        let shared = Shared { ranks, params, buckets, bucket_of, options, compare, state };
        let shared = Arc::new(shared);
        let hook = |(at, param): (usize, &Replica)| {
            // Parameters hold the hook, so the hook must not hold parameters.
            let shared = Arc::downgrade(&shared);
            param.tensor.on_ready(Arc::new(move || match shared.upgrade() {
                Some(shared) => shared.arrive(at),
                None => Ok(()),
            }))
        };
        let hooks = shared.params.iter().enumerate().map(hook).collect();
        Ok(Reducer { shared, hooks })
    }

    /// Says whether backwards exchange gradients from now on. Those that do not only add to the
    /// gradients of this rank; the next exchange includes the sums.
    pub fn set_sync(&self, sync: bool) {
        lock(&self.shared.state).sync = sync;
    }

    /// Names of parameters by bucket, in the order of exchanges.
    pub fn buckets(&self) -> Vec<Vec<&str>> {
        let params = &self.shared.params;
        let names = |bucket: &Bucket| bucket.members.iter().map(|at| &*params[*at].name).collect();
        self.shared.buckets.iter().map(names).collect()
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        for (param, hook) in self.shared.params.iter().zip(&self.hooks) {
            param.tensor.unhook(*hook);
        }
    }
}

impl Shared {
    /// The gradient of a parameter is complete.
    fn arrive(self: &Arc<Shared>, at: usize) -> Result<()> {
        let mut state = lock(&self.state);
        if !state.sync {
            return Ok(());
        }
        if let Some(reason) = &state.failed {
            return Err(Error::Mismatch(format!(
                "an earlier backward could not exchange its gradients ({reason}): ranks differ, \
                 start the job again"
            )));
        }
        if state.round.is_none() {
            state.round = Some(Round::new(&self.buckets, self.params.len()));
            let shared = self.clone();
            after_backward(move |completed| shared.finish(completed))?;
        }
        let bucket = self.bucket_of[at];
        let round = state.round.as_mut().expect("it was just begun");
        if round.arrived[at] && bucket < round.started {
            return Err(Error::Mismatch(format!(
                "'{}' got two gradients in one backward, as by several recomputed parts that use \
                 it; run backward in no_sync() except for the last time",
                self.params[at].name
            )));
        }
        if !std::mem::replace(&mut round.arrived[at], true) {
            round.missing[bucket] -= 1;
        }
        self.start_complete(&mut state)
    }

    /// Starts the buckets whose turn it is and that are complete.
    fn start_complete(&self, state: &mut State) -> Result<()> {
        let State { round: Some(round), spare, .. } = state else { return Ok(()) };
        while round.started < self.buckets.len() && round.missing[round.started] == 0 {
            let bucket = &self.buckets[round.started];
            let values = std::mem::take(&mut spare[round.started]);
            let exchange = no_grad(|| bucket.collect(&self.params, values))?;
            self.ranks.start(&bucket.name, exchange)?;
            round.started += 1;
        }
        Ok(())
    }

    /// The backward has ended.
    fn finish(&self, completed: bool) -> Result<()> {
        let mut state = lock(&self.state);
        let done = match completed {
            true => self.complete(&mut state),
            false => {
                state.failed = Some("it ended with an error".into());
                Ok(())
            }
        };
        state.failed = match &done {
            Ok(()) => state.failed.take(),
            Err(Error::Hook(inner)) => Some(inner.to_string()),
            Err(error) => Some(error.to_string()),
        };
        state.round = None;
        done
    }

    fn complete(&self, state: &mut State) -> Result<()> {
        let Some(round) = &mut state.round else { return Ok(()) };
        if !self.options.find_unused {
            self.check_all_arrived(round)?;
        }
        round.missing.fill(0);
        self.start_complete(state)?;
        let compares = state.rounds.is_multiple_of(self.options.check_every.max(1));
        if compares {
            self.ranks.start(&self.compare, Exchange::gather(self.fingerprints()))?;
        }
        let round = state.round.as_ref().expect("it was just seen");
        for (bucket, spare) in self.buckets.iter().zip(&mut state.spare) {
            let reply = self.ranks.wait(&bucket.name)?;
            let size = self.ranks.size();
            *spare = no_grad(|| bucket.apply(&self.params, &round.arrived, reply, size))?;
        }
        if compares {
            self.compare(self.ranks.wait(&self.compare)?)?;
        }
        state.rounds += 1;
        Ok(())
    }

    fn check_all_arrived(&self, round: &Round) -> Result<()> {
        let unused = self.params.iter().zip(&round.arrived);
        // Who was frozen meanwhile is not expected.
        let unused = unused.filter(|(param, arrived)| !**arrived && !param.tensor.stop_gradient());
        let names: Vec<String> = unused.map(|(param, _)| format!("'{}'", param.name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(Error::Unused { names: names.join(", ") })
    }

    fn fingerprints(&self) -> Vec<u8> {
        let prints = self.params.iter().map(|param| param.tensor.fingerprint().to_le_bytes());
        prints.flatten().collect()
    }

    /// Looks for a parameter that is not the same on all ranks.
    fn compare(&self, reply: Reply) -> Result<()> {
        let Reply::Gathered(parts) = reply else { return Ok(()) };
        for (at, param) in self.params.iter().enumerate() {
            let print = |rank: usize| parts[rank].get(8 * at..8 * at + 8);
            if let Some(rank) = (1..parts.len()).find(|rank| print(*rank) != print(0)) {
                return Err(Error::Diverged { name: param.name.clone(), rank });
            }
        }
        Ok(())
    }
}

impl Round {
    fn new(buckets: &[Bucket], params: usize) -> Round {
        let missing = buckets.iter().map(|bucket| bucket.members.len()).collect();
        Round { arrived: vec![false; params], missing, started: 0 }
    }
}
