//! regatta-data
