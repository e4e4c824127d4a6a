//! What is printed of a scenario: the threads alone, and during the abuse.

use crate::innocent::{Found, Innocents, Round};
use crate::operation::Operation;
use crate::table;
use anyhow::Result;
use request_purgatory::Purgatory;
use std::thread;
use std::time::Duration;

/// How long the threads run alone.
const ALONE: Duration = Duration::from_millis(1_500);

/// What the threads found alone, to be shown beside what they find during the abuse: the same threads, which do the
/// same on the same purgatory.
pub(crate) struct Measured {
    name: String,
    purgatory: Purgatory<Operation>,
    round: Round,
    alone: Found,
}

impl Measured {
    /// The threads while no other thread works.
    pub(crate) fn alone(
        name: &str,
        purgatory: &Purgatory<Operation>,
        round: Round,
    ) -> Result<Self> {
        let innocents = Innocents::start(purgatory, round);
        thread::sleep(ALONE);
        Ok(Self {
            name: name.to_owned(),
            purgatory: purgatory.clone(),
            round,
            alone: innocents.finish()?,
        })
    }

    /// Measures while `abuse` runs, and prints.
    pub(crate) fn abused(self, abuse: impl FnOnce() -> Result<()>) -> Result<()> {
        let innocents = Innocents::start(&self.purgatory, self.round);
        let abuse = abuse();
        let found = innocents.finish()?;
        abuse?;
        table::rows(&self.name, &self.alone, &found);
        Ok(())
    }
}
