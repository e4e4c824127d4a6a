//! Counters, durations, processor time.

pub(crate) mod cpu;
pub(crate) mod histogram;
pub(crate) mod metrics;
