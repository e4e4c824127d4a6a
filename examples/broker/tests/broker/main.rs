//! The broker as its clients see it: every test starts the real program and talks to it over a socket,
//! with requests written by hand or with a stock Kafka client (rskafka, kcat, kafka-python, confluent-kafka).
//!
//! kcat, the Python clients and Chromium are installed by `.ci/install clients`. Without them their tests are skipped
//! with a line on stderr, unless `CI` is set or `REQUEST_PURGATORY_REQUIRE_CLIENTS=1`: then they fail.

mod admin;
mod attacks;
mod bad_input;
mod browser;
mod clients;
mod data;
mod exporter;
mod group_protocol;
mod groups;
mod http;
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
