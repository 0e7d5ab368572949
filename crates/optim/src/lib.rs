//! regatta-optim
