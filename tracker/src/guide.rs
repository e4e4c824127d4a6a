//! The guide: one page.

#[doc = include_str!("../docs/leases.md")]
pub mod leases {}
