//! Programs as text, what the verifier refuses, and what the builder says when shapes do not fit.

mod builder;
mod parse_errors;
mod round_trip;
mod toy_ops;
mod verifier;
