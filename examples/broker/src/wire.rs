//! From the bytes of a connection to requests, and from answers to bytes. The messages themselves are `kafka-protocol`'s.

pub(crate) mod apis;
pub mod frame;
pub(crate) mod outline;
pub mod request;
pub(crate) mod response;
pub(crate) mod too_long;
