//! Jobs on data that arrive while training: by days, as files, as messages. They are killed with
//! SIGKILL and resume, and must end with the parameters of a job that nobody has disturbed.

mod days;
mod job;
#[cfg(feature = "kafka-server")]
mod kafka;
#[cfg(feature = "redis")]
mod redis;
mod tail;
