//! The guide: [leases, sessions and calls](leases), and the source of [a clock](stall_clock) to copy into your program.

#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/leases.md")]
pub mod leases {}

/// A clock for trackers whose sessions must survive a stall of the server: see [the grace after a
/// stall](crate::guide::leases#a-grace-after-a-stall). A test of this crate stops and continues a process, and the
/// sessions of a tracker with this clock survive.
///
/// ````rust,no_run
#[doc = include_str!("../docs/stall_clock.rs")]
/// # fn main() {}
/// ````
pub mod stall_clock {}
