//! The text form of a program: one line per variable and per op, printed and parsed back.
//!
//! ```text
//! program main
//! block 0
//!   data x: f32[-1, 13]
//!   param fc_0.w_0: f32[13, 1] l2=0.01
//!   var fc_0.tmp_0: f32[-1, 1]
//!   Out: fc_0.tmp_0 = fc(X: x, W: fc_0.w_0) {act: "relu"}
//! ```

mod parse;
mod print;

pub use parse::parse;
