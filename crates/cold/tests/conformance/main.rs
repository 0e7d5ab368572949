//! What a store promises, by both read engines, against a map in memory.

mod model;
mod random;
mod segments;
