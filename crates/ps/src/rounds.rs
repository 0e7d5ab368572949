//! Waiting for each other: rounds that every worker takes part in, and the bound on how far workers
//! may be apart. Pure bookkeeping; whoever completes a round does its work.

/// Which workers take part in something.
#[derive(Debug, Clone)]
pub struct Members {
    active: Vec<bool>,
}

impl Members {
    /// All of `n` workers.
    pub fn new(n: usize) -> Members {
        Members { active: vec![true; n] }
    }

    /// A worker leaves; true if it was there.
    pub fn leave(&mut self, worker: usize) -> bool {
        std::mem::replace(&mut self.active[worker], false)
    }

    /// A worker comes back.
    pub fn join(&mut self, worker: usize) {
        self.active[worker] = true;
    }

    /// Whether a worker is there.
    pub fn contains(&self, worker: usize) -> bool {
        self.active.get(worker).copied().unwrap_or(false)
    }

    /// Workers that are there, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.active.iter().enumerate().filter(|(_, a)| **a).map(|(i, _)| i)
    }

    /// Whether nobody is left.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Number of workers that the job started with.
    pub fn started_with(&self) -> usize {
        self.active.len()
    }
}

/// What became of a contribution.
#[derive(Debug, PartialEq)]
pub enum Offer<T> {
    /// Others are still to come.
    Waiting,
    /// That was the last one: all contributions in the order of the workers.
    Complete(Vec<(usize, T)>),
    /// The round is over already; the contribution comes back.
    Past(T),
    /// The worker is ahead of a round that is not over, which cannot be.
    Ahead(T),
}

/// Collects one contribution of every member for round after round, counted from 1.
#[derive(Debug)]
pub struct Collector<T> {
    round: u64,
    parts: Vec<Option<T>>,
}

impl<T> Collector<T> {
    /// For `n` workers.
    pub fn new(n: usize) -> Collector<T> {
        Collector { round: 1, parts: (0..n).map(|_| None).collect() }
    }

    /// The round that is being collected.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Goes on at another round; only while nothing is collected.
    pub fn set_round(&mut self, round: u64) {
        if self.parts.iter().all(Option::is_none) {
            self.round = round;
        }
    }

    /// A worker contributes. A second contribution to the same round (after a reconnect) replaces
    /// the first.
    pub fn offer(&mut self, worker: usize, round: u64, part: T, members: &Members) -> Offer<T> {
        match round.cmp(&self.round) {
            std::cmp::Ordering::Less => Offer::Past(part),
            std::cmp::Ordering::Greater => Offer::Ahead(part),
            std::cmp::Ordering::Equal => {
                self.parts[worker] = Some(part);
                self.complete(members).map_or(Offer::Waiting, Offer::Complete)
            }
        }
    }

    /// The contributions, if every member has given one; the next round then begins. To be called
    /// when a member has left.
    pub fn complete(&mut self, members: &Members) -> Option<Vec<(usize, T)>> {
        let given = |w: usize| self.parts[w].is_some();
        let any = self.parts.iter().any(Option::is_some);
        if !any || !members.iter().all(given) {
            return None;
        }
        self.round += 1;
        let parts = self.parts.iter_mut().enumerate();
        Some(parts.filter_map(|(w, p)| p.take().map(|p| (w, p))).collect())
    }

    /// Members that have not contributed to the current round.
    pub fn missing<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = usize> + 'a {
        members.iter().filter(|&w| self.parts[w].is_none())
    }

    /// Takes back all contributions of a round that will not be completed.
    pub fn abort(&mut self) -> Vec<(usize, T)> {
        let parts = self.parts.iter_mut().enumerate();
        parts.filter_map(|(w, p)| p.take().map(|p| (w, p))).collect()
    }
}

/// How many steps each worker has pushed, and who may continue.
#[derive(Debug, Clone)]
pub struct Clocks {
    done: Vec<u64>,
    largest: u64,
}

impl Clocks {
    /// For `n` workers at step 0.
    pub fn new(n: usize) -> Clocks {
        Clocks { done: vec![0; n], largest: 0 }
    }

    /// A worker's push of this step was applied.
    pub fn tick(&mut self, worker: usize, step: u64) {
        self.done[worker] = self.done[worker].max(step + 1);
    }

    /// A worker begins a pass at this step.
    pub fn set(&mut self, worker: usize, step: u64) {
        self.done[worker] = step;
    }

    /// The step of the worker that has come furthest.
    pub fn latest(&self) -> u64 {
        self.done.iter().copied().max().unwrap_or(0)
    }

    /// How far a worker that begins this step is ahead of the slowest member.
    pub fn ahead(&self, step: u64, members: &Members) -> u64 {
        let slowest = members.iter().map(|w| self.done[w]).min().unwrap_or(step);
        step.saturating_sub(slowest)
    }

    /// Whether a worker may begin a step; remembers the largest lead that was granted.
    pub fn may_begin(&mut self, step: u64, staleness: u64, members: &Members) -> bool {
        let ahead = self.ahead(step, members);
        if ahead <= staleness {
            self.largest = self.largest.max(ahead);
        }
        ahead <= staleness
    }

    /// The largest lead granted so far.
    pub fn largest(&self) -> u64 {
        self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_complete_when_every_member_has_contributed() {
        let mut members = Members::new(3);
        let mut c = Collector::new(3);
        assert_eq!(c.offer(2, 1, 'c', &members), Offer::Waiting);
        assert_eq!(c.offer(0, 1, 'a', &members), Offer::Waiting);
        assert_eq!(c.offer(0, 1, 'A', &members), Offer::Waiting);
        assert_eq!(c.missing(&members).collect::<Vec<_>>(), [1]);
        assert_eq!(c.offer(0, 2, 'x', &members), Offer::Ahead('x'));
        let all = vec![(0, 'A'), (1, 'b'), (2, 'c')];
        assert_eq!(c.offer(1, 1, 'b', &members), Offer::Complete(all));
        assert_eq!(c.offer(1, 1, 'b', &members), Offer::Past('b'));
        assert_eq!(c.offer(1, 2, 'b', &members), Offer::Waiting);
        members.leave(0);
        assert_eq!(c.complete(&members), None);
        members.leave(2);
        assert_eq!(c.complete(&members), Some(vec![(1, 'b')]));
        assert_eq!(c.complete(&members), None);
    }

    #[test]
    fn a_leaver_that_has_contributed_still_counts() {
        let mut members = Members::new(2);
        let mut c = Collector::new(2);
        c.offer(0, 1, 'a', &members);
        members.leave(0);
        assert_eq!(c.offer(1, 1, 'b', &members), Offer::Complete(vec![(0, 'a'), (1, 'b')]));
    }

    #[test]
    fn nobody_is_further_ahead_than_the_bound() {
        let mut members = Members::new(2);
        let mut clocks = Clocks::new(2);
        for step in 0..3 {
            assert!(clocks.may_begin(step, 2, &members), "{step}");
            clocks.tick(0, step);
        }
        assert!(!clocks.may_begin(3, 2, &members));
        clocks.tick(1, 0);
        assert!(clocks.may_begin(3, 2, &members));
        clocks.tick(0, 3);
        assert!(!clocks.may_begin(4, 2, &members));
        members.leave(1);
        assert!(clocks.may_begin(4, 2, &members));
        assert_eq!(clocks.largest(), 2);
    }
}
