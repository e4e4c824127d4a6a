//! G23, G26 and G27: what was taken is received, done or given back, once and in order.

mod take;
mod taken;
mod workers;
