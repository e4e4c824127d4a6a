//! All models are one program. A program for each file would take half as long again to build.
#![cfg(request_purgatory_loom)]

mod alarm;
mod cell;
mod completions;
mod deferred;
mod drain;
mod engine;
mod future;
mod handoff;
mod idle;
mod itself;
mod leases;
mod listener;
mod numbers;
mod promise;
mod reaper;
mod resolved;
mod shards;
mod take;
mod timer;
mod tracker;
mod visibility;
mod watch;
mod word;
