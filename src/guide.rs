//! The guide, and the design pages.
//!
//! These are the pages of the repository's `docs` folder. What code they show is compiled and run by the tests.
//!
//! * [Getting started](getting_started): an operation, a closure, a clock that you move.
//! * [A delayed fetch and a delayed produce](fetch_and_produce): a partition with both, whole.
//! * [From Kafka's API to this one](from_kafka), method by method.
//! * [Threads, locks and order](threads): what of yours runs where, under which lock, and what it sees.
//! * [On tokio](tokio): which calls may block, shutdown with a bound, the reactor, the paused clock, `select!`.
//! * [Pitfalls](pitfalls).
//! * [Operations](operations): what to watch, what to tune, memory.
//! * [Metrics and traces](observability): names, levels, cost.
//! * [Internals](internals), in pictures.
//! * [How it works](design), beside the source.
//! * [What is promised](guarantees), and which tests show it.
//! * [The memory orderings](orderings), each with its argument.
//! * [Latency under abuse](latency), measured.
//! * [Dependencies](dependencies), each with its reason.
//! * [Beside what else there is](comparison).
//!
//! The examples are in the repository's `examples` folder: programs of at most 150 lines to copy from, and larger ones.
//!
//! In the repository and in the package, but not among these pages, because they show plots: how to choose a timer
//! scheme (`docs/schemes.md`), what was measured (`docs/benchmarks.md`), the soak (`docs/soak.md`).

/// A page of `docs`. Its links lead to other files there; the definitions in front of it take precedence, and lead to
/// the pages and items here.
macro_rules! page {
    ($name:ident, $file:literal) => {
        #[doc = include_str!("guide/links.md")]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {}
    };
}

page!(getting_started, "guide/getting-started.md");
page!(fetch_and_produce, "guide/fetch-and-produce.md");
page!(from_kafka, "guide/from-kafka.md");
page!(threads, "guide/threads.md");
page!(tokio, "guide/tokio.md");
page!(pitfalls, "guide/pitfalls.md");
page!(operations, "guide/operations.md");
page!(observability, "observability.md");
page!(internals, "guide/internals.md");
page!(design, "design.md");
page!(guarantees, "guarantees.md");
page!(orderings, "orderings.md");
page!(latency, "latency.md");
page!(dependencies, "dependencies.md");
page!(comparison, "comparison.md");
