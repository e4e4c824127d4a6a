//! The guide: [leases, sessions and calls](leases), and [a clock to copy](stall_clock).

#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/leases.md")]
pub mod leases {}

/// A clock for trackers of sessions that must survive a stall of the server: see [the grace after a
/// stall](crate::guide::leases#a-grace-after-a-stall). The tests keep sessions by this clock in a process that is
/// stopped.
///
/// ````rust,no_run
#[doc = include_str!("../docs/stall_clock.rs")]
/// # fn main() {}
/// ````
pub mod stall_clock {}
