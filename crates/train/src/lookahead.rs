//! Batches between the reader and the step, for backends that want to know early what they will
//! need: [`Lookahead::read`].

use std::collections::VecDeque;

use crate::backend::Backend;
use crate::input::{Input, Next};
use crate::{Error, Feed};

/// The batches of a data pass that are read and not given to the backend.
#[derive(Default)]
pub(crate) struct Lookahead {
    inputs: VecDeque<Input>,
}

impl Lookahead {
    /// Gives the backend its next batch, which is waited for if need be. Then the backend sees as
    /// many later batches as it wants, as far as they can be had without waiting.
    pub(crate) fn read(
        &mut self,
        feed: &mut dyn Feed,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        backend.give(match self.inputs.pop_front() {
            Some(input) => Next::Input(input),
            None => feed.next()?.into(),
        })?;
        while self.inputs.len() < backend.lookahead() {
            let Some(batch) = feed.ready()? else { break };
            let input = Input::Batch(batch);
            backend.prefetch(&input);
            self.inputs.push_back(input);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use regatta_checkpoint::Topology;
    use regatta_data::{Batch, Records, Schema, Slot};
    use regatta_exec::{Options, Scope};
    use regatta_tensor::Tensor;

    use super::*;
    use crate::backend::{Snapshot, StepTimes, Turn};

    /// Batches of 1, 2, 3 ... examples; those below `ready` need not be waited for.
    struct Counted {
        next: usize,
        ready: usize,
        end: usize,
    }

    impl Counted {
        fn batch(&mut self) -> Batch {
            self.next += 1;
            let mut records = Records::new(&Schema::new(vec![Slot::label("label")]).unwrap());
            for _ in 0..self.next {
                records.push_label(0, 1);
                records.end_record().unwrap();
            }
            Batch::assemble(records, vec![])
        }
    }

    impl Feed for Counted {
        fn next(&mut self) -> Result<Option<Batch>, Error> {
            Ok((self.next < self.end).then(|| self.batch()))
        }

        fn ready(&mut self) -> Result<Option<Batch>, Error> {
            Ok((self.next < self.ready.min(self.end)).then(|| self.batch()))
        }
    }

    /// Remembers the sizes of what it was announced and given.
    #[derive(Default)]
    struct Recorder {
        announced: VecDeque<usize>,
        given: Vec<usize>,
        most: usize,
    }

    impl Backend for Recorder {
        fn lookahead(&self) -> usize {
            3
        }

        fn prefetch(&mut self, input: &Input) {
            self.announced.push_back(input.examples());
            self.most = self.most.max(self.announced.len());
        }

        fn give(&mut self, next: Next) -> Result<(), Error> {
            let Next::Input(input) = next else { return Ok(()) };
            if let Some(announced) = self.announced.pop_front() {
                assert_eq!(announced, input.examples(), "announced in another order");
            }
            self.given.push(input.examples());
            Ok(())
        }

        fn topology(&self) -> Topology {
            unreachable!()
        }
        fn step(&self) -> u64 {
            unreachable!()
        }
        fn set_step(&mut self, _: u64) {}
        fn set_fetch(&mut self, _: &[&str]) {}
        fn fetched(&self) -> &[Tensor] {
            &[]
        }
        fn advance(&mut self, _: &mut Scope) -> Result<Turn, Error> {
            unreachable!()
        }
        fn snapshot(&mut self, _: &mut Scope, _: &str) -> Result<Snapshot, Error> {
            unreachable!()
        }
        fn take_times(&mut self) -> StepTimes {
            StepTimes::default()
        }
        fn set_options(&mut self, _: Options) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn batches_are_given_in_the_order_in_which_they_were_announced() {
        let (mut lookahead, mut backend) = (Lookahead::default(), Recorder::default());
        let mut feed = Counted { next: 0, ready: 0, end: 12 };
        for read in 0..13 {
            // The reader is slow at first, then ahead, then slow again.
            feed.ready = if (2..8).contains(&read) { 20 } else { 0 };
            lookahead.read(&mut feed, &mut backend).unwrap();
        }
        assert_eq!(backend.given, (1..=12).collect::<Vec<_>>());
        assert_eq!((backend.most, backend.announced.len()), (3, 0));
    }
}
