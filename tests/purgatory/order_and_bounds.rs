//! G16, G17 and G22: counts and bounds are exact, and the first to come is served first.

mod bounds;
mod counts;
mod errors;
mod order;
mod weights;
