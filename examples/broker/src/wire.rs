//! From the bytes of a connection to requests, and from answers to bytes. The messages are those of `kafka-protocol`.

pub mod frame;
pub(crate) mod outline;
pub mod request;
