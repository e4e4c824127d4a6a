//! [schemes]: https://docs.rs/crate/request-purgatory-schemes/latest/source/docs/schemes.md
//! [changelog]: https://docs.rs/crate/request-purgatory-schemes/latest/source/CHANGELOG.md
#![doc = ""]
#![doc = include_str!("../README.md")]

mod hashed_wheel;
mod heap;
mod hierarchical_wheel;
mod ordered_list;
mod parts;
mod record;
mod scheme;
mod simple_wheel;
mod sorted_hashed_wheel;
mod stepped_wheel;
#[cfg(test)]
mod tests;
mod unordered_list;

pub use hashed_wheel::HashedWheel;
pub use heap::Heap;
pub use hierarchical_wheel::HierarchicalWheel;
pub use ordered_list::OrderedList;
pub use record::{HorizonError, Position, Records, Started, Step, Tick};
pub use scheme::Scheme;
pub use simple_wheel::SimpleWheel;
pub use sorted_hashed_wheel::SortedHashedWheel;
pub use stepped_wheel::SteppedWheel;
pub use unordered_list::UnorderedList;
