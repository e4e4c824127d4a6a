//! What is kept of each partition.

pub mod batch;
pub(crate) mod folder;
pub(crate) mod log;
pub(crate) mod producers;
pub(crate) mod segments;
