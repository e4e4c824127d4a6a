//! What should happen: operations by number, with their deadlines, and the counts.

use super::call::Answer;
use super::operation::{Says, Told};
use crate::support::spans::Choices;
use request_purgatory::{Completion, future::WaitError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// What the model knows of a parked operation.
#[derive(Debug, Clone)]
pub(crate) struct Parked {
    /// With the ranks that count.
    pub(crate) keys: BTreeMap<u8, Option<u64>>,
    pub(crate) parked_at: u64,
    /// `None` never expires.
    pub(crate) deadline: Option<u64>,
    /// Its deadline had come already when it got it: among such, there is no order.
    pub(crate) overdue: bool,
    pub(crate) says: Says,
    pub(crate) awaited: bool,
    pub(crate) fragile: bool,
}

/// How an operation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Satisfied,
    Forced,
    Expired,
    Cancelled,
    Aborted,
    ShutDown,
}

impl End {
    fn told(self) -> Told {
        match self {
            Self::Satisfied | Self::Forced => Told::Completion(Completion::Satisfied),
            Self::Expired => Told::Completion(Completion::Expired),
            Self::ShutDown => Told::Completion(Completion::ShutDown),
            Self::Cancelled => Told::Lost(WaitError::Cancelled),
            Self::Aborted => Told::Lost(WaitError::Panicked),
        }
    }
}

/// What `Stats` should say.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) completed_at_once: u64,
    pub(crate) completed: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) shut_down: u64,
    pub(crate) aborted: u64,
    pub(crate) panicked: u64,
    pub(crate) rejected: u64,
    /// At least: one that moves in its list during a check may be met twice.
    pub(crate) checks: u64,
    pub(crate) missed_checks: u64,
    /// In nanoseconds.
    pub(crate) lateness_total: u64,
    pub(crate) lateness_max: u64,
}

/// Who is told what.
pub(crate) type Endings = BTreeMap<usize, Told>;

pub(crate) struct Model {
    pub(crate) choices: Choices,
    pub(crate) now: Duration,
    pub(crate) parked: BTreeMap<usize, Parked>,
    pub(crate) later: VecDeque<u8>,
    pub(crate) closed: bool,
    pub(crate) counts: Counts,
}

impl Model {
    pub(crate) fn new(choices: Choices) -> Self {
        Self {
            now: choices.start,
            choices,
            parked: BTreeMap::new(),
            later: VecDeque::new(),
            closed: false,
            counts: Counts::default(),
        }
    }

    pub(crate) fn tick(&self) -> u64 {
        self.choices.tick_at(self.now)
    }

    pub(crate) fn is_past(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| deadline <= self.tick())
    }

    pub(crate) fn is_full(&self) -> bool {
        let max = self.choices.max_parked;
        max.is_some_and(|max| self.parked.len() >= max)
    }

    pub(crate) fn on_key(&self, key: u8) -> BTreeSet<usize> {
        self.on_key_up_to(key, u64::MAX)
    }

    pub(crate) fn on_key_up_to(&self, key: u8, up_to: u64) -> BTreeSet<usize> {
        let met = |op: &Parked| op.keys.get(&key).is_some_and(|rank| *rank <= Some(up_to));
        let met = self.parked.iter().filter(|(_, op)| met(op));
        met.map(|(number, _)| *number).collect()
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time);
    }

    /// One ends. Returns what is told of it, if anything.
    pub(crate) fn end(&mut self, number: usize, end: End) -> Option<Told> {
        let op = self.parked.remove(&number)?;
        self.count(end);
        self.told(end, op.awaited, op.fragile)
    }

    /// All of them end so.
    pub(crate) fn end_all(
        &mut self,
        numbers: impl IntoIterator<Item = usize>,
        end: End,
    ) -> Endings {
        let ends = numbers.into_iter();
        let ends = ends.filter_map(|number| Some((number, self.end(number, end)?)));
        ends.collect()
    }

    fn told(&mut self, end: End, awaited: bool, fragile: bool) -> Option<Told> {
        let told = end.told();
        match told {
            Told::Completion(_) => {
                self.counts.panicked += u64::from(fragile && !awaited);
                Some(told)
            }
            Told::Lost(_) => awaited.then_some(told),
        }
    }

    fn count(&mut self, end: End) {
        let counts = &mut self.counts;
        *match end {
            End::Satisfied | End::Forced => &mut counts.completed,
            End::Expired => &mut counts.expired,
            End::Cancelled => &mut counts.cancelled,
            End::Aborted => &mut counts.aborted,
            End::ShutDown => &mut counts.shut_down,
        } += 1;
        counts.panicked += u64::from(end == End::Aborted);
        counts.checks += u64::from(end == End::Satisfied);
    }

    /// Those of `numbers` are asked. Returns how many were satisfied, and what is told.
    pub(crate) fn check(&mut self, numbers: BTreeSet<usize>) -> (usize, Endings) {
        let mut satisfied = 0;
        let mut endings = Endings::new();
        for number in numbers {
            let Some(op) = self.parked.get(&number) else {
                continue;
            };
            let told = match op.says.now() {
                Answer::No => {
                    self.counts.checks += 1;
                    None
                }
                Answer::Yes => {
                    satisfied += 1;
                    self.end(number, End::Satisfied)
                }
                Answer::Panic => self.end(number, End::Aborted),
            };
            endings.extend(told.map(|told| (number, told)));
        }
        (satisfied, endings)
    }

    /// One arrives that can complete at once.
    pub(crate) fn complete_at_once(
        &mut self,
        number: usize,
        awaited: bool,
        fragile: bool,
    ) -> Endings {
        self.counts.completed_at_once += 1;
        let told = self.told(End::Satisfied, awaited, fragile);
        told.map(|told| (number, told)).into_iter().collect()
    }

    /// One that was due at `deadline` is asked a last time. Returns whether it expired, and what is told.
    pub(crate) fn expire(&mut self, number: usize, deadline: u64) -> (bool, Option<Told>) {
        let answer = self.parked[&number].says.now();
        if answer == Answer::Panic {
            return (false, self.end(number, End::Aborted));
        }
        self.counts.missed_checks += u64::from(answer == Answer::Yes);
        let due = self.choices.timestamp(deadline).since_origin();
        let late = u64::try_from(self.now.saturating_sub(due).as_nanos()).unwrap_or(u64::MAX);
        self.counts.lateness_total = self.counts.lateness_total.saturating_add(late);
        self.counts.lateness_max = self.counts.lateness_max.max(late);
        (true, self.end(number, End::Expired))
    }
}
