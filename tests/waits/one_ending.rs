//! How a wait, a listener or a condition ends, and what its caller is told: once (G5), and after every event (G1).

mod completing;
mod endings;
mod listener;
mod until;
mod wait;
