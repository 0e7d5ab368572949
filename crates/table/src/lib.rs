//! regatta-table
