//! All scenarios are one program, as the models of `loom-tests` are.
#![cfg(request_purgatory_shuttle)]

mod cluster;
mod purgatory;
mod take;
