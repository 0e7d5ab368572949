//! regatta-passes
