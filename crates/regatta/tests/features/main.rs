//! A team's own click log, from messy text to a served model: declared features in training,
//! evaluation, predictions and requests.
#![cfg(unix)]

mod learning;
mod log;
mod served;
#[path = "../rec/support.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod support;
mod trained;
