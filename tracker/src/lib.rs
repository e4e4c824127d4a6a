#![doc = include_str!("guide/links.md")]
#![doc = ""]
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod builder;
mod error;
#[cfg(any(doc, doctest))]
pub mod guide;
mod handle;
mod panics;
mod promise;
mod reentry;
mod remembered;
mod requests;
mod shared;
mod sync;
mod token;
mod tracker;
mod values;

pub use builder::Builder;
pub use error::{BuildError, RejectReason, Rejected};
pub use handle::WeakRef;
pub use requests::{Requests, Responded, ResponseFuture};
pub use token::FencingToken;
pub use tracker::Tracker;
