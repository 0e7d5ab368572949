//! Servers and workers over real sockets, in threads, and in processes where one is killed.

mod admission;
mod ahead;
mod common;
mod faults;
mod garbage;
mod geo;
mod losses;
mod processes;
mod refusals;
mod roles;
mod shards;
mod snapshot;
mod storage;
mod wire;
