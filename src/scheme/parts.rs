//! The parts that the schemes are made of. None of them knows a scheme.

pub(super) mod bucket_pool;
pub(super) mod geometry;
pub(super) mod intrusive_lists;
pub(super) mod levels;
pub(super) mod overdue;
pub(super) mod ring;
