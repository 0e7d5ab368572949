//! Batches between the reader and the step, for backends that want to know early what they will
//! need: [`Lookahead::next`].

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
    /// The next batch, which is waited for if need be. Then the backend sees as many later batches
    /// as it wants, as far as they can be had without waiting.
    pub(crate) fn next(
        &mut self,
        feed: &mut dyn Feed,
        backend: &mut dyn Backend,
    ) -> Result<Next, Error> {
        let next = match self.inputs.pop_front() {
            Some(input) => Next::Input(input),
            None => feed.next()?.into(),
        };
        while self.inputs.len() < backend.lookahead() {
            let Some(batch) = feed.ready()? else { break };
            let input = Input::Batch(batch);
            backend.prefetch(&input);
            self.inputs.push_back(input);
        }
        Ok(next)
    }
}
