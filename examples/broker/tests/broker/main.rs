//! The broker as its clients see it: every test starts the real program and talks to it over a socket, with requests of
//! `kafka-protocol` or with a stock Kafka client (rskafka in the demonstration).
//!
//! The stock clients are installed by `.ci/install clients`. Without them their tests are skipped with a line on stderr,
//! unless `CI` is set or `REQUEST_PURGATORY_REQUIRE_CLIENTS=1`: then they fail.

mod bad_input;
mod bounds_of_groups;
mod client;
mod data;
mod lifecycle;
mod page;
mod process;
mod protocol;
mod requests;
mod stock;
mod versions;
mod waits;

// What most of them need.
use broker::messages::{self, Code, *};
use client::*;
use process::*;
use requests::*;
use std::time::{Duration, Instant};
