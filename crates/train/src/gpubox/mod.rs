//! Training with rows on devices: the program runs there, rows of the next batches are brought
//! while a batch computes, updates happen in place, and servers hold everything else. Several
//! devices share every batch.
//!
//! A row that is on a device belongs to one worker, by its key. Workers take every step together:
//! they exchange weights and gradients, and each updates its rows and all dense parameters. What
//! changed is written to the servers before a checkpoint, at the end of a data pass and before a
//! model is saved; rows stay where they are.
//!
//! Reading order: [`GpuBox`] (here), `step` (a batch from reading to its end), `window` (which rows
//! are in which slots), `rows` (how they move), `engine` (one device or several), `peers` (other
//! workers), `dense` (all other parameters).

mod dense;
mod engine;
mod peers;
mod rows;
mod step;
mod window;

use std::collections::VecDeque;

use regatta_checkpoint::{CheckpointConfig, Topology};
use regatta_collective::Group;
use regatta_device::Device;
use regatta_exec::device::DeviceBatch;
use regatta_exec::{Lookup, Options, Scope};
use regatta_passes::Split;
use regatta_ps::{Client, Idle, SnapshotOrder};
use regatta_tensor::{RowIndex, Tensor};

use self::engine::{Engine, Prepared};
use self::peers::Peers;
pub use self::rows::Moved;
use self::rows::Table;
use self::step::{OnDevice, Work};
use crate::Error;
use crate::backend::{Backend, PassStart, Snapshot, StepTimes, Turn};
use crate::input::{Input, Next};
use crate::servers::{share_dense, take_snapshot, topology};
use crate::tables::pull_tables;

/// Batches whose rows are on the device before they compute.
const DEPTH: usize = 4;

/// A worker that trains a split program on devices.
pub struct GpuBox {
    peers: Option<Peers>,
    split: Split,
    devices: Vec<Device>,
    tables: Vec<Table>,
    on_device: Option<OnDevice>,
    /// Steps of the job, and updates that the learning rate counts.
    step: u64,
    updates: u64,
    fetch: Vec<String>,
    fetched: Vec<Tensor>,
    /// The program was made for other names.
    refetch: bool,
    /// Batches whose rows are there or on their way, in order.
    ready: VecDeque<Work>,
    /// The batch that computes.
    running: Option<Work>,
    /// A batch that has no room yet.
    waiting: Option<Work>,
    state: State,
    /// This worker has no more batches, but others may have.
    is_done: bool,
    wants_snapshot: bool,
    /// Servers admit keys by how often they appear.
    counts: bool,
    /// Servers do not have the last updates.
    changed: bool,
    index: RowIndex,
    spare: Vec<Prepared>,
    hints: Vec<Lookup>,
    batch: DeviceBatch,
    moved: Moved,
    times: StepTimes,
    /// Dropped last: devices and other workers take their time, and a server that has lost this
    /// worker would end before it and be believed to be the cause.
    client: Client,
}

/// What reading has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The program that trains step by step has no batch now.
    Deferred,
    Ended,
}

impl GpuBox {
    /// Prepares devices for the tables of a program: `arena_bytes` by table, on each device.
    /// `others` are all workers of the job, in their order, if there are several.
    ///
    /// # Errors
    /// If the device has no room, or it cannot run the program.
    pub fn new(
        split: &Split,
        client: Client,
        devices: &[Device],
        arena_bytes: &[u64],
        others: Option<Group>,
    ) -> Result<GpuBox, Error> {
        let peers = others.map(|group| Peers::new(group, client.wire()));
        let worker = peers.as_ref().map_or((0, 1), |peers| (peers.worker(), peers.workers()));
        if worker != (client.worker(), client.workers()) {
            let expected = (client.worker(), client.workers());
            let what = format!("worker and workers are {expected:?}, of the group {worker:?}");
            return Err(Error::Internal(what));
        }
        let tables = split.tables.iter().zip(arena_bytes).enumerate();
        let tables =
            tables.map(|(at, (spec, bytes))| Table::new(devices, at, spec, *bytes, worker));
        // What the device cannot run is said before anything is read.
        Engine::compile(split, devices, &[], peers.is_none())?;
        Ok(GpuBox {
            peers,
            split: split.clone(),
            devices: devices.to_vec(),
            tables: tables.collect::<Result<_, _>>()?,
            on_device: None,
            step: 0,
            updates: 0,
            fetch: vec![],
            fetched: vec![],
            refetch: false,
            ready: VecDeque::new(),
            running: None,
            waiting: None,
            state: State::Reading,
            is_done: false,
            wants_snapshot: false,
            counts: client.tables().iter().any(|table| table.counted),
            changed: false,
            index: RowIndex::default(),
            spare: vec![],
            hints: vec![],
            batch: DeviceBatch::default(),
            moved: Moved::default(),
            times: StepTimes::default(),
            client,
        })
    }

    /// Whether the rows of one more batch may be brought. Where servers count keys to admit them,
    /// it is that of the next step only, so that a checkpoint has counted no batch after it.
    fn plans_ahead(&self) -> bool {
        match self.counts {
            true => self.running.is_none() && self.ready.is_empty(),
            false => self.ready.len() < DEPTH,
        }
    }

    /// What has travelled since it was made, parameters at beginnings and ends aside.
    pub fn moved(&self) -> Moved {
        self.moved
    }
}

impl Backend for GpuBox {
    fn client(&self) -> Option<&Client> {
        Some(&self.client)
    }

    fn topology(&self) -> Topology {
        topology(&self.client, "gpubox")
    }

    fn device(&self) -> Option<String> {
        let names: Vec<String> = self.devices.iter().map(|d| d.info().to_string()).collect();
        Some(names.join(", "))
    }

    fn step(&self) -> u64 {
        self.step
    }

    fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    fn set_fetch(&mut self, fetch: &[&str]) {
        if self.fetch.iter().map(String::as_str).ne(fetch.iter().copied()) {
            self.fetch = fetch.iter().map(|name| name.to_string()).collect();
            self.refetch = true;
        }
    }

    fn fetched(&self) -> &[Tensor] {
        &self.fetched
    }

    fn start(&mut self, scope: &mut Scope, servers_have_values: bool) -> Result<(), Error> {
        share_dense(&self.client, &self.split.exchange, scope, servers_have_values)?;
        self.load(scope)
    }

    fn begin_pass(&mut self, _: Option<PassStart>) -> Result<(), Error> {
        (self.state, self.is_done) = (State::Reading, false);
        Ok(())
    }

    fn advance(&mut self, scope: &mut Scope) -> Result<Turn, Error> {
        loop {
            if self.running.is_none() && self.wants_snapshot {
                self.flush(scope)?;
                return Ok(Turn::Snapshot);
            }
            self.load(scope)?;
            if self.running.is_none() {
                self.launch()?;
            }
            if let Some(work) = self.waiting.take() {
                self.waiting = self.place(work)?;
                if self.waiting.is_none() {
                    continue;
                }
            } else if self.state == State::Reading && self.plans_ahead() {
                if !self.is_done {
                    return Ok(Turn::Read);
                }
                self.plan(None)?;
                continue;
            }
            if let Some(work) = self.running.take() {
                return self.finish(work);
            }
            if self.ready.is_empty() && self.waiting.is_none() {
                return Ok(match std::mem::replace(&mut self.state, State::Reading) {
                    State::Ended => {
                        self.flush(scope)?;
                        Turn::End
                    }
                    _ => Turn::Wait,
                });
            }
        }
    }

    fn give(&mut self, next: Next) -> Result<(), Error> {
        match next {
            Next::Input(input) => self.plan(Some(input))?,
            Next::Later => self.state = State::Deferred,
            Next::End if self.peers.is_some() => {
                self.is_done = true;
                self.plan(None)?;
            }
            Next::End => self.state = State::Ended,
        }
        Ok(())
    }

    /// All workers end a data pass in the same step.
    fn wait_for_others(&mut self) -> Result<Idle, Error> {
        Ok(Idle::PassOver { untrained: vec![] })
    }

    fn decides_together(&self) -> bool {
        self.peers.is_some()
    }

    fn refuses_checkpoints(&self, config: &CheckpointConfig) -> Option<&'static str> {
        let refuses = self.peers.is_some() && config.seconds.is_some();
        refuses.then_some(
            "several workers with devices make checkpoints by steps: use step_interval instead of \
             seconds",
        )
    }

    fn request_snapshot(&mut self, order: Option<&SnapshotOrder>) -> Result<(), Error> {
        if let Some(order) = order {
            self.client.open_snapshot(order)?;
        }
        self.wants_snapshot = order.is_some() || self.peers.is_some();
        Ok(())
    }

    fn snapshot(&mut self, scope: &mut Scope, state: &str) -> Result<Snapshot, Error> {
        self.wants_snapshot = false;
        self.flush(scope)?;
        if let Some(peers) = &mut self.peers {
            // The first worker has opened it.
            peers.barrier("snapshot")?;
        }
        take_snapshot(&self.client, vec![], state)
    }

    fn pull_parameters(&mut self, scope: &mut Scope) -> Result<(), Error> {
        self.flush(scope)
    }

    fn pull_tables(&mut self) -> Result<Vec<(String, Tensor)>, Error> {
        self.before_meeting()?;
        pull_tables(&self.client, &self.split, self.step)
    }

    /// Whoever looks at servers next sees what was trained.
    fn before_meeting(&mut self) -> Result<(), Error> {
        self.flush(&mut Scope::new())
    }

    fn lookahead(&self) -> usize {
        self.client.lookahead()
    }

    fn prefetch(&mut self, input: &Input) {
        let lookups = &mut self.hints;
        lookups.resize_with(self.split.exchange.tables.len(), Lookup::default);
        let tables = lookups.iter_mut().zip(&self.split.exchange.tables);
        let mut found = tables.map(|(lookup, table)| {
            lookup.prepare(table, false, &mut self.index, |name| input.get(name)).is_ok()
        });
        if found.all(|found| found) {
            let keys: Vec<&[u64]> = lookups.iter().map(Lookup::keys).collect();
            // A server that is gone is noticed by the next lease.
            let _ = self.client.prefetch(&keys);
        }
    }

    fn take_times(&mut self) -> StepTimes {
        std::mem::take(&mut self.times)
    }

    fn set_options(&mut self, _: Options) -> Result<(), Error> {
        Ok(())
    }

    fn leave(&mut self) -> Result<Vec<String>, Error> {
        self.before_meeting()?;
        Ok(self.client.leave()?)
    }
}
