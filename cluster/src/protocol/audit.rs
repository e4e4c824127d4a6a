//! The audit: all watched keys are read now and then, in slices, whether there is a session or not.
//!
//! What an audit finds and the feed had not told is either on its way or lost. So each find is looked at once more,
//! `settle` later: by then it was heard, or the round has found a fault. Two rounds in a row with a fault end the
//! session.

use super::ticket::Find;
use crate::config::Config;
use crate::key::Key;
use crate::rules::Rule;
use crate::table::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// One round through all keys.
struct Round<K> {
    left: Vec<K>,
    next_slice: Time,
    pause: Duration,
    in_flight: bool,
    finds: VecDeque<(Time, Find)>,
    has_fault: bool,
}

/// What the audit wants now.
pub(super) enum Wish<K> {
    /// All keys, for a round that begins.
    Keys,
    /// A read of these.
    Read(Vec<K>),
    /// Nothing before that time.
    Wait(Time),
    /// Nothing before a read has returned.
    Nothing,
    /// A new session.
    End,
}

/// The audits of one session.
pub(super) struct Audit<K> {
    period: Duration,
    settle: Duration,
    slice: usize,
    next_round: Time,
    round: Option<Round<K>>,
    /// How many rounds in a row have found a fault, and how many none.
    faults: u32,
    sound: u32,
    ends_session: bool,
}

impl<K: Key> Audit<K> {
    /// The first round begins one period after `now`.
    pub(super) fn new(config: &Config, now: Time) -> Self {
        Self {
            period: config.audit,
            settle: config.settle,
            slice: config.read_batch,
            next_round: now.saturating_add(jittered(config.audit)),
            round: None,
            faults: 0,
            sound: 0,
            ends_session: config.rules.keep(Rule::EndWhenUnheard),
        }
    }

    /// All keys have been read: the next round begins one period after `now`.
    pub(super) fn restart(&mut self, now: Time) {
        self.next_round = now.saturating_add(jittered(self.period));
        self.round = None;
        self.sound = 0;
    }

    /// Whether two rounds in a row have found no fault since all keys were read.
    pub(super) fn is_passed(&self) -> bool {
        self.sound >= 2
    }

    /// Whether no round is under way.
    pub(super) fn is_over(&self) -> bool {
        self.round.is_none()
    }

    /// What was not heard in an earlier session, or without one, is no fault of the next one.
    pub(super) fn forget(&mut self) {
        self.faults = 0;
        if let Some(round) = &mut self.round {
            round.finds.clear();
            round.has_fault = false;
        }
    }

    /// A slice that was not read is read again.
    pub(super) fn again(&mut self, keys: Vec<K>) {
        if let Some(round) = &mut self.round {
            round.in_flight = false;
            round.left.extend(keys);
        }
    }

    /// A round begins, which asks for [`Wish::Keys`].
    pub(super) fn begin(&mut self, keys: Vec<K>, now: Time) {
        self.next_round = now.saturating_add(jittered(self.period));
        let slices = keys.len().div_ceil(self.slice).max(1) as u32;
        self.round = Some(Round {
            left: keys,
            next_slice: now,
            // Spread over the first half of the period: no burst, and time for a slow store.
            pause: self.period / 2 / slices,
            in_flight: false,
            finds: VecDeque::new(),
            has_fault: false,
        });
    }

    pub(super) fn wish(&mut self, now: Time) -> Wish<K> {
        let Some(round) = &mut self.round else {
            return match self.next_round <= now {
                true => Wish::Keys,
                false => Wish::Wait(self.next_round),
            };
        };
        while let Some((due, find)) = round.finds.front() {
            if *due > now {
                break;
            }
            round.has_fault |= find.entry.known().heard < find.version;
            // It counts once.
            find.entry.excuse(find.version);
            round.finds.pop_front();
        }
        let settles = round.finds.front().map(|(due, _)| *due);
        if round.in_flight {
            return settles.map_or(Wish::Nothing, Wish::Wait);
        }
        if !round.left.is_empty() {
            if round.next_slice > now {
                let next = settles.map_or(round.next_slice, |due| due.min(round.next_slice));
                return Wish::Wait(next);
            }
            let rest = round.left.len().saturating_sub(self.slice);
            round.in_flight = true;
            round.next_slice = now.saturating_add(round.pause);
            return Wish::Read(round.left.split_off(rest));
        }
        if let Some(due) = settles {
            return Wish::Wait(due);
        }
        (self.faults, self.sound) = match round.has_fault {
            true => (self.faults + 1, 0),
            false => (0, self.sound.saturating_add(1)),
        };
        self.round = None;
        match self.faults >= 2 && self.ends_session {
            true => Wish::End,
            false => Wish::Wait(self.next_round),
        }
    }

    /// A slice was read.
    pub(super) fn read(&mut self, finds: Vec<Find>, now: Time) {
        if let Some(round) = &mut self.round {
            round.in_flight = false;
            let due = now.saturating_add(self.settle);
            round
                .finds
                .extend(finds.into_iter().map(|find| (due, find)));
        }
    }
}

/// 20 % more or less.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.8 + 0.4 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;
    use crate::table::Table;

    /// Of many slices each has its share of the first half of the period.
    #[test]
    fn g24_an_audit_of_many_keys_is_no_burst() {
        const SLICES: u32 = 100;
        let config = Config {
            read_batch: 10,
            ..Config::default()
        };
        let mut audit = Audit::new(&config, Duration::ZERO);
        let mut now = 2 * config.audit;
        audit.begin((0..10 * SLICES).collect(), now);
        for _ in 1..SLICES {
            assert!(matches!(audit.wish(now), Wish::Read(keys) if keys.len() == 10));
            audit.read(Vec::new(), now);
            let Wish::Wait(next) = audit.wish(now) else {
                panic!("the next slice comes later");
            };
            assert_eq!(next - now, config.audit / 2 / SLICES);
            now = next;
        }
        assert!(matches!(audit.wish(now), Wish::Read(_)));
    }

    /// Each round comes up to 20 % earlier or later by chance.
    #[test]
    fn g24_nodes_that_start_together_do_not_audit_together() {
        let config = Config::default();
        let next = |audit: &mut Audit<u8>| match audit.wish(Duration::ZERO) {
            Wish::Wait(next) => next,
            _ => panic!("the first round is not due"),
        };
        let mut rounds = Vec::new();
        for _ in 0..32 {
            let mut audit = Audit::new(&config, Duration::ZERO);
            let first = next(&mut audit);
            // A round that is under way is over with that.
            audit.begin(vec![7], Duration::ZERO);
            audit.restart(Duration::ZERO);
            let restarted = next(&mut audit);
            audit.begin(Vec::new(), Duration::ZERO);
            rounds.push([first, restarted, next(&mut audit)]);
        }
        for kind in 0..3 {
            let mut rounds = rounds.iter().map(|it| it[kind]).collect::<Vec<_>>();
            rounds.sort_unstable();
            let (least, most) = (rounds[0], rounds[31]);
            assert!(least >= config.audit * 4 / 5 && most <= config.audit * 6 / 5);
            assert!(most - least > config.audit / 10, "{rounds:?}");
        }
    }

    /// Two sound rounds in a row are asked for, not two of three.
    #[test]
    fn g24_a_fault_begins_the_count_of_sound_rounds_anew() {
        let config = Config::default();
        let entry = Table::new(1, 1, Rules::default(), || {}).enter(&7);
        let entry = entry.expect("there is room");
        let mut audit = Audit::new(&config, Duration::ZERO);
        let passed = (1..=4).map(|number| {
            let now = 2 * number * config.audit;
            assert!(matches!(audit.wish(now), Wish::Keys));
            audit.begin(vec![7], now);
            assert!(matches!(audit.wish(now), Wish::Read(_)));
            let find = |version| Find {
                entry: entry.clone(),
                version,
            };
            // In the second one a fault, and a find that was heard meanwhile.
            let finds = match number {
                2 => vec![find(1), find(0)],
                _ => Vec::new(),
            };
            audit.read(finds, now);
            let _ = audit.wish(now + config.settle);
            audit.is_passed()
        });
        assert_eq!(passed.collect::<Vec<_>>(), [false, false, false, true]);
    }

    /// A round of two keys whose first slice has found something.
    fn found_by_the_first_slice(config: &Config) -> Audit<u64> {
        let entry = Table::new(1, 1, Rules::default(), || {}).enter(&7);
        let entry = entry.expect("there is room");
        let mut audit = Audit::new(config, Duration::ZERO);
        audit.begin(vec![7, 8], Duration::ZERO);
        assert!(matches!(audit.wish(Duration::ZERO), Wish::Read(_)));
        audit.read(vec![Find { entry, version: 1 }], Duration::ZERO);
        audit
    }

    /// The session in which a round has found a fault is over, and the round goes on.
    #[test]
    fn g24_a_round_that_outlives_its_session_forgets_its_fault() {
        let config = Config {
            read_batch: 1,
            ..Config::default()
        };
        let mut audit = found_by_the_first_slice(&config);
        let Wish::Wait(next) = audit.wish(config.settle) else {
            panic!("the next slice comes later than the find is looked at");
        };
        audit.forget();
        assert!(matches!(audit.wish(next), Wish::Read(_)));
        audit.read(Vec::new(), next);
        assert!(matches!(audit.wish(next), Wish::Wait(_)));
        assert_eq!((audit.faults, audit.sound), (0, 1));
    }

    /// The next slice is read before the find is looked at once more, and finds nothing.
    #[test]
    fn g24_what_a_slice_has_found_outlives_the_next_one() {
        let config = Config {
            read_batch: 1,
            settle: Config::default().audit,
            ..Config::default()
        };
        let mut audit = found_by_the_first_slice(&config);
        let Wish::Wait(next) = audit.wish(Duration::ZERO) else {
            panic!("the next slice comes later");
        };
        assert!(next < config.settle && matches!(audit.wish(next), Wish::Read(_)));
        audit.read(Vec::new(), next);
        assert!(matches!(audit.wish(config.settle), Wish::Wait(_)));
        assert_eq!((audit.faults, audit.sound), (1, 0));
    }
}
