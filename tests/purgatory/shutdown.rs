//! G15: a shutdown ends everything once, at any moment and from any place; a drain waits for it.

mod at_any_moment;
mod bounded;
mod drain;
