//! G12: a panic of somebody else's code is contained, and a key's code is told not to call the library (G31).

mod calls;
mod dropped_keys;
mod fragile_keys;
mod key_code;
mod panics;
mod park_panics;
