//! regatta-ir
