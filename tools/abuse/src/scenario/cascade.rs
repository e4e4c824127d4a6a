//! All operations wait in one bucket of the third level of the wheel. When its window begins, they are filed again,
//! one by one, into the second level; none expires meanwhile.

use crate::innocent::Round;
use crate::measured::Measured;
use crate::operation::{Kind, park};
use anyhow::{Result, ensure};
use request_purgatory::{Purgatory, time::Clock, time::Timestamp};
use std::thread;
use std::time::{Duration, Instant};

/// With a tick of 1 ms and 64 slots: the width of a bucket of the third level.
const WIDTH: Duration = Duration::from_millis(64 * 64);

pub(super) fn run(name: &str, operations: u32) -> Result<()> {
    let clock = Instant::now();
    let purgatory = Purgatory::builder("cascade").clock(clock).build()?;
    let origin = clock.now().since_origin();
    let measured = Measured::alone(name, &purgatory, Round::Own)?;
    // Time enough to park them all: about a microsecond each.
    let parking = Duration::from_micros(3) * operations;
    let buckets =
        ((clock.now().since_origin() + parking - origin).as_nanos() / WIDTH.as_nanos()) as u32;
    let window = origin + WIDTH * (buckets + 1);
    // Due in the last two thirds of the window: until then only the cascade is at work.
    for number in 0..operations {
        let deadline = window + WIDTH / 3 + (WIDTH * 3 / 5) * (number % 1_000) / 1_000;
        let timeout = deadline.saturating_sub(clock.now().since_origin());
        park(
            &purgatory,
            timeout,
            Kind::Plain,
            &[u64::from(number % 10_000)],
        )?;
    }
    let begins = Timestamp::from_origin(window);
    let next = purgatory.next_deadline();
    ensure!(clock.now() < begins, "parking took too long");
    ensure!(
        next.is_some_and(|next| next <= begins.saturating_add(Duration::from_millis(2))),
        "the bucket begins at {next:?}, not at {begins:?}"
    );
    let sleep_until = |moment: Duration| {
        thread::sleep(moment.saturating_sub(clock.now().since_origin()));
    };
    sleep_until(window - Duration::from_millis(50));
    measured.abused(|| {
        sleep_until(window + WIDTH / 4);
        ensure!(
            purgatory
                .next_deadline()
                .is_some_and(|next| next > begins.saturating_add(WIDTH / 4)),
            "the cascade is not over"
        );
        Ok(())
    })?;
    ensure!(purgatory.stats().expired == 0, "some expired meanwhile");
    Ok(())
}
