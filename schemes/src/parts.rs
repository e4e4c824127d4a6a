//! The parts of which the schemes are made. No part depends on a scheme.

pub(crate) mod bucket_pool;
pub(crate) mod geometry;
pub(crate) mod intrusive_lists;
pub(crate) mod levels;
pub(crate) mod overdue;
pub(crate) mod ring;
