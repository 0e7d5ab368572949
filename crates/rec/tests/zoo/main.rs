//! Every model of the zoo: its programs are sound, it learns on synthetic data, and the document
//! tells of it.

mod cases;
mod configs;
mod device;
mod documents;
mod evaluate;
mod learning;
mod paddlerec;
mod programs;
mod train;
