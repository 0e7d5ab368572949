//! Values of the op families on small inputs, computed by hand or recorded from PaddlePaddle 2.6.2,
//! and the errors of inputs that do not fit.

mod case;
mod compare;
mod gather;
mod random;
mod range;
mod recurrent;
mod reduce;
mod sort;
mod unary;
mod view;
mod windows;
