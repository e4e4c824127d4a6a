//! G1 and G2: no event is lost, however an operation watches: by plain, resolved or ranked keys, alone or among others.

mod composite;
mod mixed_watches;
mod nested;
mod races;
mod ranked;
mod resolved;
pub(crate) mod steps;
