//! The example broker as its clients see it: every test starts the real program and talks to it over a socket,
//! with requests written by hand or with a stock Kafka client (rskafka, kcat, kafka-python, confluent-kafka).
//!
//! `cargo test` builds that program; `cargo test --test broker_example` alone takes the one that was built last.
//!
//! kcat, the Python clients and Chromium are installed by `.ci/clients`. Without them their tests are skipped with a line
//! on stderr, unless `CI` is set or `REQUEST_PURGATORY_REQUIRE_CLIENTS=1`: then they fail.

#[path = "../../examples/broker/crc32c.rs"]
mod crc32c;
#[cfg(feature = "metrics")]
#[path = "../support/http.rs"]
mod http;
#[path = "../support/program.rs"]
mod program;

mod bad_input;
#[cfg(feature = "metrics")]
mod browser;
mod clients;
#[cfg(feature = "metrics")]
mod exporter;
mod kcat;
mod lifecycle;
mod process;
mod protocol;
mod python;
mod requests;
mod rskafka;
mod timing;
mod waits;
mod wire;
