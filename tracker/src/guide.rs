//! The guide: [leases, sessions and calls](leases), and the source of [a clock](stall_clock) to copy into your program.

#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/leases.md")]
pub mod leases {}

/// A clock for trackers whose sessions must survive a stall of the server: see [the grace after a
/// stall](crate::guide::leases#a-grace-after-a-stall). A test keeps sessions by this clock in a process that is stopped
/// and continued.
///
/// ````rust,no_run
#[doc = include_str!("../docs/stall_clock.rs")]
/// # fn main() {}
/// ````
pub mod stall_clock {}
