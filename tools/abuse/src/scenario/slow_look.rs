//! A thread checks a key whose operation takes long to answer.

use crate::innocent::Round;
use crate::measured::Measured;
use crate::operation::{Kind, park};
use anyhow::Result;
use request_purgatory::Purgatory;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(100);
const LASTS: Duration = Duration::from_secs(3);

pub(super) fn run(name: &str) -> Result<()> {
    let purgatory = Purgatory::new("slow-look");
    let measured = Measured::alone(name, &purgatory, Round::Own)?;
    park(&purgatory, Duration::MAX, Kind::SlowLook(LOOK), &[0])?;
    measured.abused(|| {
        let start = Instant::now();
        while start.elapsed() < LASTS {
            purgatory.check_and_complete(&0);
        }
        Ok(())
    })
}
