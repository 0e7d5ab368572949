//! `regatta train`, `infer`, `models` and `data` as a user runs them: the real binary in scratch
//! directories.

mod bad_input;
mod configs;
mod files;
mod gpubox;
mod groups;
mod kept_good;
mod limits;
mod pipes;
mod report;
mod runs;
mod scores;
mod sharing;
mod support;
mod validation;
mod vectors;
