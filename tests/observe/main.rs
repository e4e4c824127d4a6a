//! What a metrics recorder and a tracing subscriber hear: everything, once, in numbers that agree with
//! `Purgatory::stats`, and nothing that they do harms an operation.
#![cfg(any(feature = "metrics", feature = "tracing"))]

#[cfg(feature = "metrics")]
mod metrics;
mod scenario;
#[cfg(feature = "tracing")]
mod tracing;

use testing as support;
