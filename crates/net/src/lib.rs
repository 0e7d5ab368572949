//! regatta-net
