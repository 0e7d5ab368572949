//! Data that arrive while training: days, a directory that grows, streams of messages.

use regatta_data::arrivals::{Days, Messages, PassOfDay, PassPlan, Planner, Tail, Upcoming};
use regatta_data::{Position, Schema, Stages, Stores};
use regatta_train::{Error as TrainError, Feed, Sharing};

use crate::config::{Arrivals, StreamSource};
use crate::data::Data;
use crate::run::Place;
use crate::{Config, Error};

/// For processes that do not plan.
struct Nothing;

impl Planner for Nothing {
    fn next_pass(&mut self, _: Option<&PassPlan>) -> Result<Upcoming, regatta_data::Error> {
        Ok(Upcoming::End("only the first process plans".into()))
    }
}

/// The data of a run, one data pass after the other.
pub(crate) struct Arriving {
    config: Config,
    schema: Schema,
    stores: Stores,
    planner: Box<dyn Planner>,
    /// This process among those that train.
    place: (usize, usize),
    is_rank: bool,
    /// What the first data pass follows, if no checkpoint says so.
    begins_after: Option<PassPlan>,
    parts: Vec<String>,
    current: Option<Data>,
}

impl Arriving {
    /// Data as the configuration describes them, from the first pass or after another one.
    ///
    /// # Errors
    /// If there is no such source, or it cannot be planned in this way.
    pub(crate) fn open(
        config: &Config,
        arrivals: &Arrivals,
        schema: &Schema,
        place: &Place<'_>,
        after: Option<&PassOfDay>,
    ) -> Result<Arriving, Error> {
        let stores = Stores::new();
        let planner: Box<dyn Planner> = match arrivals {
            Arrivals::Days(days) => Box::new(Days::new(days.options.clone(), &stores)?),
            Arrivals::Stream(stream) => match &stream.source {
                StreamSource::Tail(tail) => Box::new(Tail::new(tail.clone(), &stores)),
                // Nobody but the first process asks what there is.
                StreamSource::Messages(_) if place.index().0 > 0 => Box::new(Nothing),
                StreamSource::Messages(messages) => Box::new(Messages::new(messages.clone())?),
            },
        };
        Ok(Arriving {
            config: config.clone(),
            schema: schema.clone(),
            stores,
            planner,
            place: place.index(),
            is_rank: matches!(place, Place::Rank(_)),
            begins_after: after.map(PassOfDay::plan),
            parts: Vec::new(),
            current: None,
        })
    }

    fn open_part(&self, worker: usize) -> Result<Data, Error> {
        let place = (worker, self.place.1);
        Data::of_pass(&self.config, &self.schema, &self.parts, place, &self.stores)
    }
}

impl regatta_train::Data for Arriving {
    fn begin_pass(
        &mut self,
        epoch: u64,
        from: &Position,
    ) -> Result<(Box<dyn Feed + '_>, Stages), TrainError> {
        let current = self.current.as_mut();
        let current =
            current.ok_or_else(|| TrainError::Internal("no data pass is planned".into()))?;
        regatta_train::Data::begin_pass(current, epoch, from)
    }

    fn arrives(&self) -> bool {
        true
    }

    fn next_pass(&mut self, after: Option<&PassPlan>) -> Result<Upcoming, TrainError> {
        Ok(self.planner.next_pass(after.or(self.begins_after.as_ref()))?)
    }

    fn follow(&mut self, _epoch: u64, plan: &PassPlan) -> Result<(), TrainError> {
        self.parts.clone_from(&plan.parts);
        self.current = Some(self.open_part(self.place.0).map_err(Error::in_loop)?);
        Ok(())
    }

    fn reads_all_shards(&self) -> bool {
        !self.is_rank
    }

    fn shard(&self, worker: usize) -> Result<Box<dyn regatta_train::Data>, TrainError> {
        Ok(Box::new(self.open_part(worker).map_err(Error::in_loop)?))
    }

    fn sharing(&self) -> Sharing {
        match self.config.runner.distributed.split_file_list.unwrap_or(true) {
            true => Sharing::Mixed,
            false => Sharing::Everything,
        }
    }
}
