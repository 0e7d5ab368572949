//! Pull, compute, push: in which order and how far ahead, for every mode but geo.

use std::collections::BTreeSet;

use crate::{AsyncConfig, Mode};

/// Something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Another batch was read; batches are numbered from 0 in this order.
    Read,
    /// There are no more batches.
    End,
    /// The values for a batch are here.
    Pulled(u64),
    /// Gradients of a batch are ready.
    Computed(u64),
    /// A push was applied.
    Acked,
    /// Gradients have been held back long enough to be added up: what is there, with the batch
    /// being computed, is sent as soon as that is done.
    Overdue,
    /// No values for this batch: the job comes to a snapshot first.
    Deferred(u64),
    /// The snapshot is over.
    SnapshotDone,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Read a batch; answered by `Read` or `End`.
    Read,
    /// Ask for the values that a batch needs; answered by `Pulled`.
    Pull(u64),
    /// Run forward and backward; answered by `Computed`.
    Compute(u64),
    /// Send the gradients of these batches, added up; answered by `Acked`.
    Push {
        /// First batch.
        first: u64,
        /// Last batch.
        last: u64,
    },
    /// Both at once, pull after push; answered by `Acked` and `Pulled`.
    PushPull {
        /// The batch whose gradients are sent.
        push: u64,
        /// The batch whose values are asked for.
        pull: u64,
    },
    /// Nothing is in flight and all that was computed is applied: take part in the snapshot;
    /// answered by `SnapshotDone`.
    Snapshot,
    /// Everything is computed and acknowledged.
    Finish,
}

/// The order of a worker's exchanges.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pull_ahead: u64,
    max_unacked: u64,
    merge: u64,
    /// Batches read, pulled for (asked), computed.
    read: u64,
    asked: u64,
    computed: u64,
    pulled: BTreeSet<u64>,
    reading: bool,
    ended: bool,
    computing: bool,
    /// First batch whose gradient is not sent yet.
    unsent: u64,
    /// Batches before this one are sent even if there are too few of them.
    overdue: u64,
    unacked: u64,
    /// Pulls that are not answered.
    pulling: u64,
    /// A snapshot is due: nothing new is asked for.
    snapshot: SnapshotPhase,
    finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotPhase {
    None,
    /// What is in flight comes to its end.
    Draining,
    /// This worker takes part.
    Taking,
}

impl Pipeline {
    /// The order of a mode.
    ///
    /// # Panics
    /// If the mode is geo, which has its own plan.
    pub fn new(mode: &Mode) -> Pipeline {
        let config = match mode {
            Mode::Async(config) => *config,
            Mode::Sync | Mode::HalfAsync | Mode::Bounded { .. } => AsyncConfig {
                max_merge_var_num: 1,
                send_queue_size: 1,
                pull_ahead: 0,
                ..AsyncConfig::default()
            },
            Mode::Geo { .. } => panic!("geo has a plan of its own"),
        };
        Pipeline {
            pull_ahead: config.pull_ahead,
            max_unacked: max_unacked(&config),
            merge: config.max_merge_var_num.max(1),
            read: 0,
            asked: 0,
            computed: 0,
            pulled: BTreeSet::new(),
            reading: false,
            ended: false,
            computing: false,
            unsent: 0,
            overdue: 0,
            unacked: 0,
            pulling: 0,
            snapshot: SnapshotPhase::None,
            finished: false,
        }
    }

    /// Whether dense parameters come with the reply to the push before a batch, because its rows
    /// are prefetched. The first batch has no push before it.
    pub fn pulls_dense_by_push(&self) -> bool {
        self.pull_ahead > 0
    }

    /// What to do first.
    pub fn start(&mut self) -> Vec<Command> {
        self.next_commands()
    }

    /// What to do now that something happened.
    ///
    /// # Panics
    /// If the event answers no command.
    pub fn on_event(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::Read => {
                assert!(self.reading, "nothing was being read");
                self.reading = false;
                self.read += 1;
            }
            Event::End => {
                assert!(self.reading, "nothing was being read");
                self.reading = false;
                self.ended = true;
            }
            Event::Pulled(batch) => {
                assert!(batch < self.asked, "batch {batch} was not asked for");
                self.pulling -= 1;
                self.pulled.insert(batch);
            }
            Event::Deferred(batch) => {
                assert!(self.pulling > 0, "batch {batch} was not asked for");
                self.pulling -= 1;
                // Answers come in order: those to what was asked for later are no values either.
                self.asked = self.asked.min(batch);
                self.snapshot = SnapshotPhase::Draining;
            }
            Event::SnapshotDone => {
                assert!(self.snapshot == SnapshotPhase::Taking, "no snapshot is being taken");
                self.snapshot = SnapshotPhase::None;
            }
            Event::Computed(batch) => {
                assert!(self.computing && batch == self.computed, "batch {batch} was not computed");
                self.computing = false;
                self.computed += 1;
            }
            Event::Acked => {
                assert!(self.unacked > 0, "no push is waiting");
                self.unacked -= 1;
            }
            Event::Overdue => self.overdue = self.computed + u64::from(self.computing),
        }
        self.next_commands()
    }

    fn next_commands(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        self.exchange(&mut commands);
        let may_compute = !self.computing && self.unacked < self.max_unacked;
        let compute = may_compute && self.pulled.remove(&self.computed);
        if self.wants_batch(compute || self.computing) {
            self.reading = true;
            commands.push(Command::Read);
        }
        if compute {
            self.computing = true;
            commands.push(Command::Compute(self.computed));
            // What may be asked for has moved on by one.
            self.exchange(&mut commands);
        }
        let idle = !self.computing && self.unacked == 0 && self.unsent == self.computed;
        let drained = idle && self.pulling == 0 && self.pulled.is_empty();
        if self.snapshot == SnapshotPhase::Draining && drained {
            self.snapshot = SnapshotPhase::Taking;
            commands.push(Command::Snapshot);
        }
        let done = self.ended && self.computed == self.read && self.unsent == self.computed;
        if done && !self.computing && self.unacked == 0 && !self.finished {
            self.finished = true;
            commands.push(Command::Finish);
        }
        commands
    }

    /// Whether to read a batch now. One more than may be pulled is read, so that a push can take
    /// the next pull along. The next one is parsed as soon as it is taken: who runs ahead takes it
    /// when the computation begins, not while a server has the last push to do and needs the
    /// processor, and one earlier, so that its ids can be prepared in the time that the server
    /// takes.
    fn wants_batch(&self, computing: bool) -> bool {
        if self.reading || self.ended {
            return false;
        }
        let ahead = self.read - self.computed;
        let needed = self.asked == self.read && self.may_ask();
        match self.pull_ahead {
            0 => ahead <= 1,
            n => needed || computing && ahead <= n + 2,
        }
    }

    fn exchange(&mut self, commands: &mut Vec<Command>) {
        let pending = self.computed - self.unsent;
        let last = self.ended && self.computed == self.read && !self.computing;
        let draining = self.snapshot == SnapshotPhase::Draining;
        // Before a snapshot, everything that was computed is sent.
        let flush = draining && !self.computing && self.pulling == 0 && self.pulled.is_empty();
        if self.is_due() || (pending > 0 && (last || flush)) {
            // Without running ahead, the next pull goes with the push, if its batch is known.
            let fused =
                self.pull_ahead == 0 && self.merge == 1 && self.snapshot == SnapshotPhase::None;
            if fused && !self.ended && self.asked == self.read {
                return;
            }
            let (first, end) = (self.unsent, self.computed);
            self.unsent = end;
            self.unacked += 1;
            if fused && self.asked < self.read {
                commands.push(Command::PushPull { push: first, pull: self.asked });
                self.asked += 1;
                self.pulling += 1;
            } else {
                commands.push(Command::Push { first, last: end - 1 });
            }
        }
        // A batch may be asked for while the one before it is being computed if running ahead is
        // allowed, else only when every gradient before it has been sent and applied.
        while self.asked < self.read && self.may_ask() {
            commands.push(Command::Pull(self.asked));
            self.asked += 1;
            self.pulling += 1;
        }
    }

    fn may_ask(&self) -> bool {
        if self.snapshot != SnapshotPhase::None {
            return false;
        }
        if self.pull_ahead > 0 {
            return self.asked <= self.computed + self.pull_ahead;
        }
        !self.computing && self.asked == self.computed && self.unacked == 0 && !self.is_due()
    }

    /// Whether the gradients that are ready should be sent.
    fn is_due(&self) -> bool {
        let overdue = self.unsent < self.overdue && self.overdue <= self.computed;
        self.computed - self.unsent >= self.merge || overdue
    }
}

/// Pushes that may be in flight while a batch is computed. A prefetching worker that pulls dense
/// parameters with every push waits for them; one that pulls them more rarely has accepted old
/// ones.
fn max_unacked(config: &AsyncConfig) -> u64 {
    let waits_for_dense = config.pull_ahead > 0 && config.min_send_grad_num_before_recv <= 1;
    if waits_for_dense { 1 } else { config.send_queue_size.max(1) }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Performs commands at once, in order, answering each; returns the trace.
    fn run(mode: &Mode, batches: u64) -> Vec<Command> {
        let mut pipeline = Pipeline::new(mode);
        let mut queue: VecDeque<Command> = pipeline.start().into();
        let (mut trace, mut read) = (Vec::new(), 0);
        while let Some(command) = queue.pop_front() {
            let events = match &command {
                Command::Read if read < batches => {
                    read += 1;
                    vec![Event::Read]
                }
                Command::Read => vec![Event::End],
                Command::Pull(t) => vec![Event::Pulled(*t)],
                Command::Compute(t) => vec![Event::Computed(*t)],
                Command::Push { .. } => vec![Event::Acked],
                Command::PushPull { pull, .. } => vec![Event::Acked, Event::Pulled(*pull)],
                Command::Snapshot => vec![Event::SnapshotDone],
                Command::Finish => vec![],
            };
            trace.push(command);
            for event in events {
                queue.extend(pipeline.on_event(event));
            }
        }
        trace.retain(|c| *c != Command::Read);
        trace
    }

    fn push(t: u64) -> Command {
        Command::Push { first: t, last: t }
    }

    #[test]
    fn a_synchronous_step_is_one_exchange() {
        use Command::{Compute, Finish, Pull, PushPull};
        for mode in [Mode::Sync, Mode::HalfAsync, Mode::Bounded { staleness: 2 }] {
            let expected = vec![
                Pull(0),
                Compute(0),
                PushPull { push: 0, pull: 1 },
                Compute(1),
                PushPull { push: 1, pull: 2 },
                Compute(2),
                push(2),
                Finish,
            ];
            assert_eq!(run(&mode, 3), expected, "{mode:?}");
        }
    }

    #[test]
    fn asynchronous_training_pulls_for_the_next_batch_while_it_computes() {
        use Command::{Compute, Finish, Pull};
        let config = AsyncConfig { pull_ahead: 1, ..AsyncConfig::default() };
        let trace = run(&Mode::Async(config), 3);
        let expected = vec![
            Pull(0),
            Pull(1),
            Compute(0),
            push(0),
            Pull(2),
            Compute(1),
            push(1),
            Compute(2),
            push(2),
            Finish,
        ];
        let mut a = trace.clone();
        a.sort_by_key(|c| format!("{c:?}"));
        let mut b = expected.clone();
        b.sort_by_key(|c| format!("{c:?}"));
        assert_eq!(a, b, "{trace:?}");
        let at = |c: &Command| trace.iter().position(|t| t == c).unwrap();
        assert!(at(&Pull(1)) < at(&Compute(1)) && at(&push(0)) < at(&Compute(2)));
        assert_eq!(trace.last(), Some(&Finish));
    }

    /// Rows are prefetched, but a batch waits for the push before it, whose reply brings the dense
    /// parameters, unless these are pulled more rarely.
    #[test]
    fn a_batch_waits_for_the_push_that_brings_its_dense_parameters() {
        // Batch, batches asked for, pushes in flight.
        let waits = [(0, 2, 0), (1, 3, 0), (2, 4, 0), (3, 5, 0), (4, 5, 0)];
        assert_eq!(computations(1), waits);
        let does_not = [(0, 2, 0), (1, 3, 1), (2, 4, 1), (3, 5, 1), (4, 5, 1)];
        assert_eq!(computations(2), does_not);
    }

    /// What was asked for and is in flight when each of five batches is computed.
    fn computations(dense_every: u64) -> Vec<(u64, u64, u64)> {
        let config = AsyncConfig {
            pull_ahead: 1,
            min_send_grad_num_before_recv: dense_every,
            ..AsyncConfig::default()
        };
        let mut pipeline = Pipeline::new(&Mode::Async(config));
        assert!(pipeline.pulls_dense_by_push());
        // Answers come in order, and only when there is nothing else to do.
        let (mut queue, mut answers) = (VecDeque::from(pipeline.start()), VecDeque::new());
        let (mut read, mut unacked, mut asked) = (0, 0, 0);
        let (mut at_compute, mut finished) = (Vec::new(), false);
        while !finished {
            let command = queue.pop_front();
            let event = match command {
                None => {
                    let event = answers.pop_front().unwrap();
                    unacked -= u64::from(event == Event::Acked);
                    Some(event)
                }
                Some(Command::Read) if read < 5 => {
                    read += 1;
                    Some(Event::Read)
                }
                Some(Command::Read) => Some(Event::End),
                Some(Command::Pull(batch)) => {
                    asked = batch + 1;
                    answers.push_back(Event::Pulled(batch));
                    None
                }
                Some(Command::Push { .. }) => {
                    unacked += 1;
                    answers.push_back(Event::Acked);
                    None
                }
                Some(Command::Compute(batch)) => {
                    at_compute.push((batch, asked, unacked));
                    Some(Event::Computed(batch))
                }
                Some(Command::Finish) => {
                    finished = true;
                    None
                }
                Some(other) => panic!("{other:?}"),
            };
            queue.extend(event.into_iter().flat_map(|event| pipeline.on_event(event)));
        }
        at_compute
    }

    #[test]
    fn gradients_are_merged_and_the_rest_is_sent_at_the_end() {
        let config = AsyncConfig { max_merge_var_num: 2, ..AsyncConfig::default() };
        let pushes: Vec<Command> = run(&Mode::Async(config), 5)
            .into_iter()
            .filter(|c| matches!(c, Command::Push { .. }))
            .collect();
        let expected = [(0, 1), (2, 3), (4, 4)].map(|(first, last)| Command::Push { first, last });
        assert_eq!(pushes, expected);
    }

    #[test]
    fn gradients_that_have_waited_too_long_are_sent_as_they_are() {
        let config = AsyncConfig { max_merge_var_num: 9, pull_ahead: 3, ..AsyncConfig::default() };
        let mut pipeline = Pipeline::new(&Mode::Async(config));
        let mut commands: VecDeque<Command> = pipeline.start().into();
        let mut order = Vec::new();
        while !order.contains(&Command::Compute(2)) {
            let command = commands.pop_front().unwrap();
            if matches!(command, Command::Push { .. } | Command::Compute(_)) {
                order.push(command.clone());
            }
            let event = match command {
                Command::Read => Event::Read,
                Command::Pull(t) => Event::Pulled(t),
                Command::Compute(t) => {
                    if t == 1 {
                        commands.extend(pipeline.on_event(Event::Overdue));
                    }
                    Event::Computed(t)
                }
                Command::Push { .. } => Event::Acked,
                other => panic!("{other:?}"),
            };
            commands.extend(pipeline.on_event(event));
        }
        // Before the next batch is computed, whose gradients would otherwise be among them.
        let push = Command::Push { first: 0, last: 1 };
        assert_eq!(order, [Command::Compute(0), Command::Compute(1), push, Command::Compute(2)]);
    }

    /// The processor that a new batch would be parsed on is left to the server until it has
    /// answered.
    #[test]
    fn who_runs_ahead_reads_when_a_computation_begins() {
        let config = AsyncConfig { pull_ahead: 1, ..AsyncConfig::default() };
        let mut pipeline = Pipeline::new(&Mode::Async(config));
        assert_eq!(pipeline.start(), [Command::Read]);
        assert_eq!(pipeline.on_event(Event::Read), [Command::Pull(0), Command::Read]);
        assert_eq!(pipeline.on_event(Event::Read), [Command::Pull(1)]);
        let begin = [Command::Read, Command::Compute(0)];
        assert_eq!(pipeline.on_event(Event::Pulled(0)), begin);
        // At first one more, so that there are always ids to prepare.
        assert_eq!(pipeline.on_event(Event::Read), [Command::Read]);
        assert_eq!(pipeline.on_event(Event::Read), []);
        assert_eq!(pipeline.on_event(Event::Pulled(1)), []);
        let sent = [Command::Push { first: 0, last: 0 }, Command::Pull(2)];
        assert_eq!(pipeline.on_event(Event::Computed(0)), sent);
        let begin = [Command::Read, Command::Compute(1)];
        assert_eq!(pipeline.on_event(Event::Acked), begin);
    }

    #[test]
    fn no_batches_is_an_end() {
        for mode in [Mode::Sync, Mode::Async(AsyncConfig::default())] {
            assert_eq!(run(&mode, 0), [Command::Finish]);
        }
    }

    #[test]
    fn a_full_send_queue_stops_the_computation() {
        let config = AsyncConfig {
            send_queue_size: 2,
            pull_ahead: 1,
            min_send_grad_num_before_recv: 2,
            ..AsyncConfig::default()
        };
        let mut pipeline = Pipeline::new(&Mode::Async(config));
        let mut queue: VecDeque<Command> = pipeline.start().into();
        let mut computed = 0;
        // Everything is answered but pushes.
        while let Some(command) = queue.pop_front() {
            let event = match command {
                Command::Read => Event::Read,
                Command::Pull(t) => Event::Pulled(t),
                Command::Compute(t) => {
                    computed += 1;
                    Event::Computed(t)
                }
                Command::Push { .. } => continue,
                other => panic!("{other:?}"),
            };
            queue.extend(pipeline.on_event(event));
        }
        assert_eq!(computed, 2);
        let commands = pipeline.on_event(Event::Acked);
        assert!(commands.contains(&Command::Compute(2)), "{commands:?}");
    }

    /// Events in a random but possible order: every batch is pulled, computed and pushed once, in
    /// order, and never further ahead than allowed.
    #[test]
    fn any_order_of_answers_is_fine() {
        for seed in 0..200 {
            let rng = regatta_tensor::Rng::new(seed, 0);
            let config = AsyncConfig {
                max_merge_var_num: 1 + rng.u64(1) % 3,
                send_queue_size: 1 + rng.u64(2) % 4,
                pull_ahead: rng.u64(3) % 3,
                min_send_grad_num_before_recv: 1 + rng.u64(4) % 2,
                ..AsyncConfig::default()
            };
            let batches = rng.u64(4) % 9;
            let mut pipeline = Pipeline::new(&Mode::Async(config));
            let mut open: Vec<Command> = pipeline.start();
            let (mut read, mut draws, mut finished) = (0, 10, false);
            let (mut pulled, mut computed, mut pushed) = (0, 0, 0);
            while !open.is_empty() {
                draws += 1;
                let at = (rng.u64(draws) % open.len() as u64) as usize;
                let command = open.remove(at);
                let events = match command {
                    Command::Read if read < batches => {
                        read += 1;
                        vec![Event::Read]
                    }
                    Command::Read => vec![Event::End],
                    Command::Pull(t) => {
                        pulled += 1;
                        vec![Event::Pulled(t)]
                    }
                    Command::Compute(t) => {
                        assert_eq!(t, computed, "seed {seed}");
                        computed += 1;
                        vec![Event::Computed(t)]
                    }
                    Command::Push { first, last } => {
                        pushed += last + 1 - first;
                        vec![Event::Acked]
                    }
                    Command::PushPull { pull, .. } => {
                        pulled += 1;
                        pushed += 1;
                        vec![Event::Acked, Event::Pulled(pull)]
                    }
                    Command::Snapshot => panic!("seed {seed}: no snapshot is due"),
                    Command::Finish => {
                        finished = true;
                        vec![]
                    }
                };
                for event in events {
                    open.extend(pipeline.on_event(event));
                }
            }
            assert!(finished, "seed {seed} {config:?} {batches}: {pipeline:?}");
            assert_eq!((pulled, computed, pushed), (batches, batches, batches), "seed {seed}");
        }
    }

    /// Values are held back now and then: the worker comes to the snapshot with everything computed
    /// and applied that it has values for, and continues with the batch that it had none for.
    #[test]
    fn a_snapshot_finds_nothing_under_way() {
        for seed in 0..400 {
            let rng = regatta_tensor::Rng::new(seed, 1);
            let config = AsyncConfig {
                max_merge_var_num: 1 + rng.u64(1) % 3,
                send_queue_size: 1 + rng.u64(2) % 4,
                pull_ahead: rng.u64(3) % 3,
                min_send_grad_num_before_recv: 1 + rng.u64(4) % 2,
                ..AsyncConfig::default()
            };
            let mode = if seed % 2 == 0 { Mode::Sync } else { Mode::Async(config) };
            let batches = 1 + rng.u64(4) % 9;
            let mut pipeline = Pipeline::new(&mode);
            let mut open: Vec<Command> = pipeline.start();
            let (mut read, mut draws, mut snapshots, mut finished) = (0, 10, 0, false);
            let (mut computed, mut pushed) = (0, 0);
            // Answers to pulls come in order, as on a connection.
            let mut deferring = false;
            while !open.is_empty() {
                draws += 1;
                let is_pull =
                    |c: &Command| matches!(c, Command::Pull(_) | Command::PushPull { .. });
                let first_pull = open.iter().position(is_pull);
                let at = (rng.u64(draws) % open.len() as u64) as usize;
                let at = if is_pull(&open[at]) { first_pull.unwrap() } else { at };
                let command = open.remove(at);
                let hold = deferring || rng.u64(draws + 1000).is_multiple_of(4);
                let answer = |batch: u64| {
                    if hold { Event::Deferred(batch) } else { Event::Pulled(batch) }
                };
                let events = match command {
                    Command::Read if read < batches => {
                        read += 1;
                        vec![Event::Read]
                    }
                    Command::Read => vec![Event::End],
                    Command::Pull(t) => {
                        deferring = hold;
                        vec![answer(t)]
                    }
                    Command::Compute(t) => {
                        assert_eq!(t, computed, "seed {seed}");
                        computed += 1;
                        vec![Event::Computed(t)]
                    }
                    Command::Push { first, last } => {
                        pushed += last + 1 - first;
                        vec![Event::Acked]
                    }
                    Command::PushPull { pull, .. } => {
                        pushed += 1;
                        deferring = hold;
                        vec![Event::Acked, answer(pull)]
                    }
                    Command::Snapshot => {
                        snapshots += 1;
                        deferring = false;
                        assert_eq!(computed, pushed, "seed {seed}");
                        let busy = open.iter().any(|c| *c != Command::Read);
                        assert!(!busy, "seed {seed}: {open:?}");
                        vec![Event::SnapshotDone]
                    }
                    Command::Finish => {
                        finished = true;
                        vec![]
                    }
                };
                for event in events {
                    open.extend(pipeline.on_event(event));
                }
            }
            assert!(finished, "seed {seed} {mode:?} {batches}: {pipeline:?}");
            assert_eq!((computed, pushed), (batches, batches), "seed {seed}");
            assert!(snapshots > 0 || !deferring, "seed {seed}");
        }
    }
}
