//! The model of what waits: a client's claim against what its node knows, and operations of a user's purgatory.

use request_purgatory_cluster::{Epoch, Position};

/// What is known of a key in the present history.
#[derive(Debug, Default, Clone, Copy)]
pub struct Known {
    pub mark: u64,
    /// The latest read that has returned.
    pub read: u64,
    /// The store has no event of the key after the first of these, up to the second, but the mark.
    pub none: Option<(u64, u64)>,
    pub gaps: u64,
}

impl Known {
    /// Returns whether the mark was lower.
    pub fn raise(&mut self, version: u64) -> bool {
        let is_raised = self.mark < version;
        self.mark = self.mark.max(version);
        is_raised
    }

    /// A read has shown that there is none after one sequence, up to another. Where that does not meet what was known,
    /// events in between were discarded unseen: returns the last of these.
    pub fn join(&mut self, (after, to): (u64, u64), baseline: u64) -> Option<u64> {
        let (since, until) = self.none.unwrap_or((after, baseline));
        if after <= until.max(self.mark) {
            self.none = Some((since, until.max(to)));
            return None;
        }
        // Of a store of which nothing was known nothing was missed.
        let is_first = self.none.is_none() && baseline == 0 && self.mark == 0;
        self.none = Some((after, to.max(after)));
        self.gaps += u64::from(!is_first);
        (!is_first).then_some(after)
    }
}

/// Generation, epoch, and how many reads have begun.
pub type History = (u64, Option<Epoch>, u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    With(Position),
    Version(u64),
    Reset(Position),
    ShutDown,
    Expired,
    Full,
    /// An operation: the key that it was ended by and its version, unless the history was reset.
    Operation(Option<(u64, u64)>),
}

#[derive(Debug)]
pub struct Claim {
    pub seen: u64,
    epoch: Option<Epoch>,
    generation: Option<u64>,
    made_at: u64,
    gaps: u64,
    /// Whether the node knows it to be true. Otherwise it has the key read.
    pub is_true: bool,
}

impl Claim {
    pub fn new(known: &Known, history: History, seen: u64, epoch: Option<Epoch>) -> Self {
        let (generation, present, made_at) = history;
        let is_present = epoch.is_none() || epoch == present;
        let may_have_missed = known.none.is_some_and(|it| known.mark < it.0);
        let is_last = seen > 0 && seen == known.mark;
        Self {
            seen,
            epoch,
            generation: is_present.then_some(generation),
            made_at,
            gaps: known.gaps,
            is_true: is_present && seen <= known.mark && !(may_have_missed && is_last),
        }
    }

    fn examine(&mut self, known: &Known, (generation, epoch, _): History) -> Option<Ended> {
        let was_read = known.read > self.made_at;
        let at = |version| {
            let epoch = epoch.unwrap_or(Epoch(0));
            Position { epoch, version }
        };
        let is_other = match self.generation {
            Some(of) => of != generation,
            None if self.epoch == epoch => {
                self.generation = Some(generation);
                false
            }
            // Which history is the later one, a read decides.
            None if was_read => true,
            None => return None,
        };
        if is_other {
            return Some(Ended::Reset(at(0)));
        }
        if known.mark > self.seen {
            let found = at(known.mark);
            return Some(match self.epoch {
                Some(_) => Ended::With(found),
                None => Ended::Version(found.version),
            });
        }
        let Some((after, to)) = known.none else {
            // It has seen what the store has not.
            return (was_read && known.mark < self.seen).then(|| Ended::Reset(at(known.mark)));
        };
        if was_read && self.seen > 0 && after == 0 && known.mark == 0 {
            return Some(Ended::Reset(at(0)));
        }
        let has_missed = self.seen < after;
        let is_told = known.gaps != self.gaps || was_read && self.seen > 0;
        let is_ahead = was_read && to < self.seen;
        (has_missed && is_told || is_ahead).then(|| Ended::Reset(at(to)))
    }
}

#[derive(Debug)]
pub enum What {
    Claim(u64, Claim),
    /// Keys with the versions that it waits for, and the generation and gaps of each when it began.
    Operation(Vec<(u64, u64, u64, u64)>),
}

/// Something that waits, and how it has ended.
#[derive(Debug)]
pub struct Wait {
    pub what: What,
    pub ended: Option<Ended>,
}

impl Wait {
    pub fn is_operation(&self) -> bool {
        matches!(self.what, What::Operation(_))
    }

    pub fn keys(&self) -> Vec<u64> {
        match &self.what {
            What::Claim(key, _) => vec![*key],
            What::Operation(keys) => keys.iter().map(|it| it.0).collect(),
        }
    }

    /// Something is known of `key`.
    pub fn examine(
        &mut self,
        key: u64,
        bound: u64,
        history: History,
        known: impl Fn(u64) -> Known,
    ) -> Option<Ended> {
        match &mut self.what {
            What::Claim(of, claim) if *of == key => claim.examine(&known(key), history),
            What::Claim(..) => None,
            What::Operation(keys) => {
                // A check finds it by the rank of the key that is checked.
                let is_found = keys.iter().any(|it| it.0 == key && it.1 <= bound);
                let is_reset =
                    |it: &(u64, u64, u64, u64)| it.2 != history.0 || it.3 != known(it.0).gaps;
                if !is_found {
                    None
                } else if keys.iter().any(is_reset) {
                    Some(Ended::Operation(None))
                } else {
                    let reached = keys.iter().find(|it| known(it.0).mark >= it.1);
                    reached.map(|it| Ended::Operation(Some((it.0, known(it.0).mark))))
                }
            }
        }
    }
}
