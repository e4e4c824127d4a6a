//! G7 to G11 and G29: a deadline is met in its tick, at any uptime, and no later call moves it. G20: nobody stands still meanwhile. G30.

mod arrival;
mod clocks;
mod deadlines;
mod itself;
mod stalls;
mod storms;
mod time;
