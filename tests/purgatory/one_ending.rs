//! G4 and G5: hooks never overlap, and every operation ends exactly once, by whichever call or handle. G18 and G25.

mod calls;
mod causes;
mod endings;
mod handles;
