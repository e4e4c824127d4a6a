#![doc = include_str!("guide/links.md")]
#![doc = ""]
#![doc = include_str!("../docs/guide/README.md")]

// The link definitions in `links.md` name their targets as items of this module, so the module imports them.
#[allow(unused_imports, reason = "only links name them")]
pub(crate) use crate::{
    Completion, DelayedOperation, Timer, future::*, purgatory::*, threads::*, time::*,
};

/// A module that shows a page of `docs`. The page's own link definitions lead to files of the repository, and those in
/// `links.md` to pages and items of this documentation. Of two definitions of a link, Markdown takes the first. So
/// `links.md` is included before the page. `.ci/lints/links.py --write` writes `links.md`.
macro_rules! page {
    ($name:ident, $file:literal $(, $picture:literal)?) => {
        $(#[doc = include_str!($picture)])?
        #[doc = include_str!("guide/links.md")]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {}
    };
}

// The picture is included in the text of its page, because rustdoc has no other place for pictures.
page!(words, "guide/words.md", "guide/picture.md");
page!(getting_started, "guide/getting-started.md");
page!(fetch_and_produce, "guide/fetch-and-produce.md");
page!(from_kafka, "guide/from-kafka.md");
page!(from_polling, "guide/from-polling.md");
page!(threads, "guide/threads.md");
page!(waiting, "guide/waiting.md");
page!(tokio, "guide/tokio.md");

#[doc = include_str!("guide/links.md")]
#[doc = ""]
// Left out of the doctests, because the recipes need crates that the library's tests do not depend on. The package in
// `examples/recipes` tests them.
#[cfg_attr(not(doctest), doc = include_str!("../docs/guide/recipes.md"))]
pub mod recipes {}

page!(cluster, "guide/cluster.md", "guide/scale.md");
page!(pitfalls, "guide/pitfalls.md");
page!(operations, "guide/operations.md");
page!(observability, "observability.md");
page!(design, "design.md");
page!(guarantees, "guarantees.md");
page!(latency, "latency.md");
page!(dependencies, "dependencies.md");
page!(comparison, "comparison.md");

#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../examples/README.md")]
pub mod examples {
    /// A module that shows a program of the folder `examples` unchanged.
    macro_rules! example {
        ($($name:ident: $does:literal;)*) => {
            $(#[doc = $does]
            #[doc = ""]
            #[doc = "````rust,no_run"]
            #[doc = include_str!(concat!("../examples/", stringify!($name), ".rs"))]
            #[doc = "````"]
            pub mod $name {})*
        };
    }

    example! {
        connection_pool: "A pool of connections: fair, and none is lost.";
        delayed_fetch: "A fetch that is answered when there is enough, or with what there is in time.";
        delayed_produce: "A produce that is acknowledged when all replicas have it.";
        job_queue: "Competing workers that lose no job.";
        leases: "A lease, and a fence against those that lost it.";
        linger: "A batch that is sent 20 ms after its first record, or when it is full.";
        listener: "A wait for a condition that awaits.";
        reactor: "A purgatory without a thread of the library's.";
        rpc_client: "The responses of calls, and a connection that is made again.";
        sessions: "Sessions that heartbeats keep alive.";
        storage_read: "A fetch that owns its read of a remote storage, and gets more time for it.";
        timeouts: "Idle connections that are closed.";
    }
}
