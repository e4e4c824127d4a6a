//! A clock that does not count the stalls of the process: after one, every session has as much time left as before.
//!
//! The default clock does count them, and what has come to its end during a stall has expired: the right choice for
//! leases, whose holders count by clocks of their own. This one is for sessions whose clients could not be heard.

use request_purgatory::time::{Clock, Timestamp};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A thread looks at the time at every beat. Where it comes late, because the process was stopped or got no processor,
/// this clock has stood still from `patience` after the last beat on.
pub struct StallClock {
    beat: Mutex<Beat>,
    patience: Duration,
}

/// The last beat, on this clock and on the system's.
struct Beat {
    reading: Duration,
    at: Instant,
}

/// With less patience the thread would hardly sleep, and every wake-up that comes late would be a stall.
const LEAST_PATIENCE: Duration = Duration::from_millis(4);

impl StallClock {
    /// A beat comes every quarter of `patience`, which is at least 4 ms. The thread ends with the clock.
    pub fn start(patience: Duration) -> std::io::Result<Arc<Self>> {
        let patience = patience.max(LEAST_PATIENCE);
        let beat = Beat {
            reading: Duration::ZERO,
            at: Instant::now(),
        };
        let clock = Arc::new(Self {
            beat: Mutex::new(beat),
            patience,
        });
        let beating = Arc::downgrade(&clock);
        thread::Builder::new()
            .name("stall-clock".into())
            .spawn(move || {
                while let Some(clock) = beating.upgrade() {
                    clock.read(true);
                    drop(clock);
                    thread::sleep(patience / 4);
                }
            })?;
        Ok(clock)
    }

    fn read(&self, is_beat: bool) -> Timestamp {
        let mut beat = self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let reading = beat.reading + (now - beat.at).min(self.patience);
        if is_beat {
            *beat = Beat { reading, at: now };
        }
        Timestamp::from_origin(reading)
    }
}

impl Clock for StallClock {
    fn now(&self) -> Timestamp {
        self.read(false)
    }
}
