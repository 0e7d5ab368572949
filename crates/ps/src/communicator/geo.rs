//! When a worker that trains its own copy exchanges differences with the servers.

/// Something to do for a worker in geo mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GeoCommand {
    /// Send the differences since the last exchange; answered by `replied`.
    Send,
    /// Bring the answer into the local copy.
    Apply,
}

/// Counts steps: an exchange is due every so many of them, and at most one is in flight, so that
/// training never waits for the network.
#[derive(Debug, Clone)]
pub struct GeoPlan {
    every: u64,
    steps: u64,
    in_flight: bool,
    answered: bool,
}

impl GeoPlan {
    /// An exchange every so many steps.
    pub fn new(every: u64) -> GeoPlan {
        GeoPlan { every: every.max(1), steps: 0, in_flight: false, answered: false }
    }

    /// The servers have answered.
    ///
    /// # Panics
    /// If nothing was sent.
    pub fn replied(&mut self) {
        assert!(self.in_flight && !self.answered, "no exchange is in flight");
        self.answered = true;
    }

    /// Whether an answer is still to come.
    pub fn is_waiting(&self) -> bool {
        self.in_flight && !self.answered
    }

    /// A training step is done: what to do before the next one.
    pub fn stepped(&mut self) -> Vec<GeoCommand> {
        self.steps += 1;
        let mut commands = self.take_answer();
        if self.steps >= self.every && !self.in_flight {
            commands.push(self.send());
        }
        commands
    }

    /// A training step is done, and [`GeoPlan::finish`] sends it at once.
    pub fn stepped_without_exchange(&mut self) {
        self.steps += 1;
    }

    /// The same plan with nothing done and nothing in flight.
    #[must_use]
    pub fn restarted(&self) -> GeoPlan {
        GeoPlan::new(self.every)
    }

    /// Training is over: what is left to do. To be called until it gives nothing, each time after
    /// the answer has come.
    pub fn finish(&mut self) -> Vec<GeoCommand> {
        let mut commands = self.take_answer();
        if self.steps > 0 && !self.in_flight {
            commands.push(self.send());
        }
        commands
    }

    fn send(&mut self) -> GeoCommand {
        self.steps = 0;
        self.in_flight = true;
        GeoCommand::Send
    }

    fn take_answer(&mut self) -> Vec<GeoCommand> {
        if !self.answered {
            return vec![];
        }
        (self.in_flight, self.answered) = (false, false);
        vec![GeoCommand::Apply]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GeoCommand::{Apply, Send};

    #[test]
    fn an_exchange_every_three_steps() {
        let mut plan = GeoPlan::new(3);
        assert!(plan.stepped().is_empty() && plan.stepped().is_empty());
        assert_eq!(plan.stepped(), [Send]);
        plan.replied();
        assert_eq!(plan.stepped(), [Apply]);
        assert!(plan.stepped().is_empty());
        assert_eq!(plan.stepped(), [Send]);
    }

    #[test]
    fn a_slow_answer_delays_the_next_exchange_but_not_training() {
        let mut plan = GeoPlan::new(1);
        assert_eq!(plan.stepped(), [Send]);
        for _ in 0..5 {
            assert!(plan.is_waiting() && plan.stepped().is_empty());
        }
        plan.replied();
        assert_eq!(plan.stepped(), [Apply, Send]);
    }

    #[test]
    fn the_end_sends_what_is_left_and_takes_the_last_answer() {
        let mut plan = GeoPlan::new(10);
        plan.stepped();
        assert_eq!(plan.finish(), [Send]);
        plan.replied();
        assert_eq!(plan.finish(), [Apply]);
        assert!(plan.finish().is_empty());
    }
}
