//! The guide, and the design pages.
//!
//! These are pages of the repository's `docs` folder. The tests compile and run the code that they show.
//!
//! * [Getting started](getting_started): an operation, a closure, a clock that a test moves.
//! * [A delayed fetch and a delayed produce](fetch_and_produce): a partition with both, complete.
//! * [From Kafka's API to this one](from_kafka), method by method.
//! * [From polling](from_polling): a server that sleeps and reads again, converted step by step; what to answer in each
//!   protocol.
//! * [Threads, locks and order](threads): which of your code runs on which thread, under which lock, and what it sees.
//! * [Waiting](waiting): for a predicate, for what has to be awaited, for what one waiter only may have.
//! * [On tokio](tokio): which calls may block, shutdown with a bound, the reactor, the paused clock, `select!`.
//! * [Several machines](cluster): when one purgatory for each node is enough, and when not.
//! * [Leases, sessions and calls](leases): fencing tokens, one value for several threads, many trackers.
//! * [Pitfalls](pitfalls).
//! * [Operations](operations): what to watch, what to tune, memory.
//! * [Metrics and traces](observability): names, levels, cost.
//! * [How it works](design): the parts, the way of an operation through the source, the words.
//! * [What is promised](guarantees), and why the code keeps it.
//! * [The memory orderings](orderings), each with its argument.
//! * [Latency under abuse](latency), measured.
//! * [Dependencies](dependencies), each with its reason.
//! * [Alternatives](comparison).
//!
//! The examples are in the repository's `examples` folder: programs of at most 150 lines to copy from, and larger ones.
//!
//! Some pages are in the repository only, because they show plots or lists that a script generates: how to choose a
//! timer scheme (`schemes/docs/schemes.md`), the benchmarks (`docs/benchmarks.md`), the soak (`docs/soak.md`), and the
//! tests and mutants of each promise (`docs/generated/proofs.md`).

/// A page of `docs`. Links inside the page lead to other files of the repository. The definitions in front of the page
/// take precedence, and lead to pages and items of this documentation.
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
page!(from_polling, "guide/from-polling.md");
page!(threads, "guide/threads.md");
page!(waiting, "guide/waiting.md");
page!(tokio, "guide/tokio.md");
page!(cluster, "guide/cluster.md");
page!(leases, "guide/leases.md");
page!(pitfalls, "guide/pitfalls.md");
page!(operations, "guide/operations.md");
page!(observability, "observability.md");
page!(design, "design.md");
page!(guarantees, "guarantees.md");
page!(orderings, "generated/orderings.md");
page!(latency, "latency.md");
page!(dependencies, "dependencies.md");
page!(comparison, "comparison.md");
