//! Tests of [`Anchor`], which computes the time from the processor's counter. The counters and the clock are simulated:
//! they are numbers that a test changes.

use super::*;
use proptest::prelude::*;

/// A machine: the real clock, the counters of two processors, and a thread that reads them.
struct Machine {
    /// The real clock, in nanoseconds.
    clock: u64,
    /// The counter of processor 0, in units of 2^-32 ticks.
    counter: u128,
    /// How far the counter goes in a nanosecond, in units of 2^-32 ticks.
    frequency: u64,
    /// How far the counter of processor 1 is ahead of the counter of processor 0, wrapping.
    ahead: u64,
    processor: u32,
    anchor: Anchor,
    /// The readings of the clock and the counter in the last two anchors (the readings from which later times are
    /// computed), the older one first. A call of `renew` makes an anchor only if it reads the counter a second time.
    anchors: [(u64, u64); 2],
    /// The last reading of the time.
    last: u64,
}

/// The frequency of a counter of `number` megahertz, as [`Machine`] stores it: the ticks in a nanosecond, multiplied by
/// 2^32.
fn megahertz(number: u64) -> u64 {
    (number << 32) / 1_000
}

impl Machine {
    fn new(frequency: u64) -> Self {
        Self {
            clock: 5,
            // The counter is about to wrap.
            counter: u128::from(u64::MAX - 10_000_000) << 32,
            frequency,
            ahead: 0,
            processor: 0,
            anchor: Anchor::new(),
            anchors: [(0, 0); 2],
            last: 0,
        }
    }

    /// Lets real time pass.
    fn pass(&mut self, nanos: u64) {
        self.clock += nanos;
        self.counter += u128::from(nanos) * u128::from(self.frequency);
    }

    /// Changes the frequency, by millionths.
    fn steer(&mut self, millionths: i64) {
        let change = self.frequency as i64 / 1_000_000 * millionths;
        self.frequency = self.frequency.saturating_add_signed(change);
    }

    fn jump(&mut self, ticks: i64) {
        let ahead = u128::from(ticks as u64) << 32;
        self.counter = self.counter.wrapping_add(ahead);
    }

    fn read(&self) -> Reading {
        let counter = (self.counter >> 32) as u64;
        Reading {
            counter: counter.wrapping_add(u64::from(self.processor) * self.ahead),
            processor: self.processor,
        }
    }

    /// Gets the time: from the anchor if the anchor holds, otherwise from the clock. In the latter case, each reading
    /// of the clock or the counter takes `delay` nanoseconds. Returns how far the time is ahead of the clock, and
    /// whether it is from the anchor.
    fn time(&mut self, delay: u64) -> (i64, bool) {
        let now = self.read();
        let clock = self.clock;
        let (time, fast) = match self.anchor.time(now) {
            Some(time) => (time, true),
            None => {
                self.pass(delay);
                let nanos = self.clock;
                self.pass(delay);
                let (after, mut anchored) = (self.read(), false);
                let anchor = &self.anchor;
                let time = anchor.renew(now, nanos, || {
                    anchored = true;
                    after
                });
                if anchored {
                    self.anchors = [self.anchors[1], (nanos, now.counter)];
                }
                (time, false)
            }
        };
        assert!(time >= self.last, "it went back");
        assert!(fast || time >= clock, "the clock itself");
        assert!(time <= self.clock + HOLDS, "whatever the counter does");
        self.last = time;
        (time as i64 - clock as i64, fast)
    }

    /// Makes readings until an anchor holds: until the time is computed from the counter, and the clock is not read.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.pass(HOLDS / 10);
            self.time(20);
        }
        assert!(self.time(20).1, "the anchor holds");
    }

    /// The nanoseconds that the counter has lost against the clock since the anchor; negative if it has gained. Ticks
    /// are converted to nanoseconds by the rate between the last two anchors, plus 1/512 of this rate: an anchor uses
    /// at least this sum.
    fn lost(&self, now: Reading) -> f64 {
        let [(clock_1, counter_1), (clock_2, counter_2)] = self.anchors;
        let ticks = counter_2.wrapping_sub(counter_1) as f64;
        let rate = (clock_2 - clock_1) as f64 / ticks;
        let passed = now.counter.wrapping_sub(counter_2) as f64;
        (self.clock - clock_2) as f64 - passed * rate * (1.0 + 1.0 / FASTER as f64)
    }
}

/// What happens between two readings.
#[derive(Debug, Clone)]
enum Event {
    Pass(u64),
    /// The frequency changes, by millionths.
    Steer(i64),
    Jump(i64),
    /// The counter stands still while the clock goes on.
    CounterStops(u64),
    /// The counter goes on while the clock stands still.
    ClockStops(u64),
    Move,
}

impl Event {
    fn happen(&self, machine: &mut Machine) {
        match *self {
            Self::Pass(nanos) => machine.pass(nanos),
            Self::Steer(millionths) => machine.steer(millionths),
            Self::Jump(ticks) => machine.jump(ticks),
            Self::CounterStops(nanos) => machine.clock += nanos,
            Self::ClockStops(ticks) => machine.counter += u128::from(ticks) << 32,
            Self::Move => machine.processor ^= 1,
        }
    }
}

fn frequencies() -> impl Strategy<Value = u64> {
    (100..10_000_u64).prop_map(megahertz)
}

/// Spans of time: short, as between two calls; long, as between two anchors; or longer than `RECENT`.
fn spans() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..2_000_u64,
        4 => 0..2 * HOLDS,
        1 => 0..2 * RECENT,
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let sizes = || prop_oneof![1..100_000_i64, 1..20_000_000_i64, Just(1 << 62)];
    prop_oneof![
        30 => spans().prop_map(Event::Pass),
        2 => (-200_000..200_000_i64).prop_map(Event::Steer),
        1 => sizes().prop_map(Event::Jump),
        1 => sizes().prop_map(|ticks| Event::Jump(-ticks)),
        1 => spans().prop_map(Event::CounterStops),
        1 => spans().prop_map(Event::ClockStops),
        2 => Just(Event::Move),
    ]
}

proptest! {
    /// The counter has any frequency. Measured by the clock, it runs evenly, except when NTP steers the clock. The
    /// thread moves between two processors whose counters are unrelated.
    #[test]
    fn g10_beside_an_even_counter_no_reading_is_early_and_none_is_late(
        frequency in frequencies(),
        ahead: u64,
        events in proptest::collection::vec((spans(), -500..500_i64, 0..100_u64, 0..400_u64), 1..200),
    ) {
        let mut machine = Machine::new(frequency);
        machine.ahead = ahead;
        let mut steered = 0;
        for (span, steer, chance, delay) in events {
            machine.pass(span);
            if chance < 3 {
                // Each change starts from the initial frequency, so that the changes do not add up.
                machine.frequency = frequency;
                machine.steer(steer);
                steered += 1;
            }
            if (3..6).contains(&chance) {
                machine.processor ^= 1;
            }
            let (ahead, _) = machine.time(delay);
            prop_assert!(ahead >= 0, "{} ns early after {steered} changes", -ahead);
            prop_assert!(ahead <= LATE as i64 + 2 * delay as i64, "{ahead} ns late");
        }
    }

    /// Whatever the counter and the clock do, a reading that is computed from the counter is behind the clock by no
    /// more than the counter has lost since the anchor. It is ahead of the clock by no more than `LATE` plus what the
    /// counter has gained since the anchor, unless it repeats the reading before. No reading is ahead by more than a
    /// millisecond.
    #[test]
    fn g10_a_reading_is_early_by_no_more_than_the_counter_lost(
        frequency in frequencies(),
        ahead: u64,
        events in proptest::collection::vec((any_event(), 0..400_u64), 1..200),
    ) {
        let mut machine = Machine::new(frequency);
        machine.ahead = ahead;
        for (event, delay) in events {
            event.happen(&mut machine);
            let last = machine.last;
            let now = machine.read();
            let (ahead, fast) = machine.time(delay);
            if fast {
                let lost = machine.lost(now);
                prop_assert!(-ahead as f64 <= lost.max(0.0), "{ahead} ns, and the counter lost {lost}");
                // The readings of a thread never go back. So if the last reading was `stays` nanoseconds ahead of the
                // present clock, this reading may be as far ahead.
                let stays = last as i64 - machine.clock as i64;
                let bound = (LATE as f64 + (-lost).max(0.0)).max(stays as f64);
                prop_assert!(ahead as f64 <= bound, "{ahead} ns ahead, {lost} ns lost");
            }
        }
    }
}

/// Few of many calls in a row read the clock: the others count from the anchor.
#[test]
fn g10_a_thread_that_reads_often_seldom_reads_the_clock() {
    for frequency in [100, 1_000, 2_400, 10_000].map(megahertz) {
        let mut machine = Machine::new(frequency);
        machine.settle();
        let (mut fast, calls) = (0, 100_000);
        for _ in 0..calls {
            machine.pass(100);
            fast += usize::from(machine.time(20).1);
        }
        // The clock is read once in a millisecond. The calls are 100 ns apart, so that is once in 10,000 calls.
        assert!(calls - fast <= 11, "{} of {calls}", calls - fast);
    }
}

const NOW: Reading = Reading {
    counter: 7,
    processor: 3,
};

fn after(ticks: u64) -> Reading {
    let counter = NOW.counter + ticks;
    Reading { counter, ..NOW }
}

/// A measured rate is not below the true rate. It is rounded up, and ticks that may lie outside the measured time are
/// left out: with fewer ticks in the same time, the rate comes out higher.
#[test]
fn g10_a_measurement_is_not_below_the_rate() {
    let anchor = Anchor::new();
    anchor.set(NOW, 0, 100, None);
    // At least 1,023,899 ticks lie between the two readings of the clock: 1,024,000, less 100 between the old anchor's
    // two readings of the counter, and less one for rounding. The measurement adds one nanosecond to the time, also for
    // rounding. So the first rate is one nanosecond for each tick, and the second is slightly more than half a
    // nanosecond.
    assert_eq!(anchor.measure(1_024_000, 1_023_898, 0), Some(1 << 32));
    let half = (1 << 31) + 2_098;
    assert_eq!(anchor.measure(1_024_000, 511_949, 0), Some(half));
    // At most one of 1,024 ticks may be unknown: 1,000 of these. There are 100 unknown ticks from the old anchor, one
    // for rounding, and those between the new anchor's two readings of the counter. So 899 of the last are allowed, and
    // 900 are not.
    assert!(anchor.measure(1_024_000, MEASURE, 899).is_some());
    assert_eq!(anchor.measure(1_024_000, MEASURE, 900), None);
    // The limits of the time over which the rate is measured.
    assert_eq!(anchor.measure(1_024_000, MEASURE - 1, 0), None);
    assert!(anchor.measure(1_024_000, RECENT, 0).is_some());
    assert_eq!(anchor.measure(1_024_000, RECENT + 1, 0), None);
}

#[test]
fn g10_a_counter_that_stands_still_is_none() {
    let anchor = Anchor::new();
    for nanos in (1..10).map(|step| step * MEASURE) {
        assert_eq!(anchor.renew(NOW, nanos, || NOW), nanos);
        assert_eq!(anchor.time(NOW), None);
    }
}

/// An anchor holds (the time is computed from it for a millisecond) if its two readings of the counter lie close
/// together, and the last two measurements of the counter's rate agree.
#[test]
fn g10_an_anchor_holds_by_two_measurements_and_close_readings() {
    // A rate is a number of nanoseconds for 2^32 ticks. 1,024 of these parts are the rate 2^30: a quarter of a
    // nanosecond for each tick.
    const PART: u64 = 1 << 20;
    let holding = |measured: u64, apart| {
        let anchor = Anchor::new();
        anchor.set(NOW, 50, 0, Some(1_024 * PART));
        assert_eq!(anchor.time(NOW), None, "after one");
        anchor.set(NOW, 50, apart, Some(measured));
        anchor
    };
    let holds = |measured, apart| holding(measured, apart).time(NOW).is_some();
    assert!(holds(1_024 * PART, 0));
    assert!(holds(1_025 * PART, 0) && !holds(1_025 * PART + 1, 0));
    assert!(holds(1_023 * PART, 0) && !holds(1_023 * PART - 1, 0));
    // Readings use a rate that is higher by one 512th: 1,026 parts for 1,024. At this rate, 3,992 ticks take less than
    // 1,000 ns (`APART`), and 3,993 ticks take more.
    assert!(holds(1_024 * PART, 3_992) && !holds(1_024 * PART, 3_993));

    // The first measured rate is 1,024 times `PART`, and the second is `measured` times `PART`. The anchor uses the
    // greater one.
    for measured in [1_023, 1_024] {
        let anchor = holding(measured * PART, 0);
        assert_eq!(anchor.time(after(0)), Some(50 + MARGIN));
        assert_eq!(anchor.time(after(4_096)), Some(50 + MARGIN + 1_026));
        let ticks = (HOLDS - MARGIN) * 4_096 / 1_026;
        let last = anchor.time(after(ticks - 1)).expect("it holds");
        assert!((HOLDS..50 + HOLDS).contains(&last), "{last}");
        assert_eq!(anchor.time(after(ticks)), None);
        assert_eq!(anchor.time(Reading { counter: 6, ..NOW }), None);
        let elsewhere = Reading {
            processor: 4,
            ..after(0)
        };
        assert_eq!(anchor.time(elsewhere), None);
    }
}

/// A call of `renew` reads the counter a second time only if it makes an anchor (a reading of the clock, with one of
/// the counter before and one after it). It does so for the first anchor of a thread, or if the last anchor is old
/// enough to measure the rate.
#[test]
fn g10_the_first_readings_cost_what_the_clock_does() {
    let anchor = Anchor::new();
    let looks_twice = |nanos| {
        let mut twice = false;
        let time = anchor.renew(after(nanos), nanos, || {
            twice = true;
            after(nanos)
        });
        assert_eq!(time, nanos);
        twice
    };
    let looks = [9, 10, MEASURE + 8, MEASURE + 9, MEASURE + 10].map(looks_twice);
    assert_eq!(looks, [true, false, false, true, false]);
}
