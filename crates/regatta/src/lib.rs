//! regatta
