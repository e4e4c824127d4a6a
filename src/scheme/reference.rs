//! The schemes of the paper that should not be deployed, for tests and measurements.
//!
//! They stand behind the feature `reference-schemes`. [`UnorderedList`] and [`OrderedList`] are the starting points of
//! the paper, [`SimpleWheel`] refuses timeouts beyond one revolution, and [`SortedHashedWheel`] is the step from scheme
//! 2 to scheme 6.

mod ordered_list;
mod simple_wheel;
mod sorted_hashed_wheel;
mod unordered_list;

pub use ordered_list::OrderedList;
pub use simple_wheel::SimpleWheel;
pub use sorted_hashed_wheel::SortedHashedWheel;
pub use unordered_list::UnorderedList;
