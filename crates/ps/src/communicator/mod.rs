//! What a worker exchanges when, as pure state machines: events in, commands out, no clock and no
//! network. The training loop performs the commands and reports what happened.

mod geo;
mod pipeline;

pub use geo::{GeoCommand, GeoPlan};
pub use pipeline::{Command, Event, Pipeline};
