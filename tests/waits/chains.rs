//! G14: futures that end or own one another. G12: what their destructors and wakers may do.

pub(crate) mod drops;
mod handed_over;
mod owners;
