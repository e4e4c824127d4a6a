//! From the bytes of a connection to requests, and from answers to bytes. The messages are those of `kafka-protocol`.

pub(crate) mod apis;
pub mod frame;
pub(crate) mod outline;
pub mod request;
