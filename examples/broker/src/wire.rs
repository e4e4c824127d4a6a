//! From the bytes of a connection to requests, and from answers to bytes.

pub(crate) mod apis;
pub mod frame;
pub mod groups;
pub mod request;
pub(crate) mod response;
pub mod shape;
