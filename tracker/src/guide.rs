//! The guide: [leases, sessions and calls](leases), and [a clock to copy](stall_clock).

#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/leases.md")]
pub mod leases {}

/// For trackers of sessions that are to survive a stall of the server: see
/// [there](crate::guide::leases#a-grace-after-a-stall). The tests keep sessions by it in a process that is stopped.
///
/// ````rust,no_run
#[doc = include_str!("../docs/stall_clock.rs")]
/// # fn main() {}
/// ````
pub mod stall_clock {}
