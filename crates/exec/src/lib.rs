//! regatta-exec
