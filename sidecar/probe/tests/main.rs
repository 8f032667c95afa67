//! The probe as its users meet it, on a machine with no GPU.

mod command;
mod report;
mod standin;
