//! regatta-checkpoint
