//! HTTP long polls on several nodes, ended by events posted to any of them: an example of `request-purgatory-cluster`.
//!
//! The layers, from below: a [`store`] keeps bodies and versions, a [`gateway::Gateway`] answers posts and polls with
//! it, the [`api`] speaks HTTP, a [`node`] listens and shuts down in order, and the [`demo`] runs three of them through
//! faults.

pub mod api;
pub mod bodies;
pub mod cli;
mod connection;
pub mod cpu;
pub mod deaf_switch;
pub mod demo;
pub mod gateway;
pub mod node;
mod page;
mod prometheus;
pub mod serve;
pub mod stats;
pub mod store;
