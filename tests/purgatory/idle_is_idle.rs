//! G13, G19 and G28: what is idle costs nothing, and which code runs on which thread.

mod idle;
mod threads;
