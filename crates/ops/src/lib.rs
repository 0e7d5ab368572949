//! regatta-ops
