//! What a client claims to have seen, against what this node knows.

use crate::interest::Interest;
use crate::key::Key;
use crate::position::{Epoch, Position};
use crate::table::entry::Known;

/// The store lost what the client has seen, or what it has not. It goes on from here.
pub(super) struct Reset(pub(super) Position);

/// What a client claims to have seen.
///
/// A claim that this node knows to be true waits for a later version or for the end of the history. One that it does
/// not know to be true (a version above the mark, or another epoch) may be newer than what this node knows, or of a
/// history that is lost. A read that begins after the claim was made decides: it shows all that the client can have
/// seen. A read decides as well where events above the mark were discarded unseen. The waits of that time were told;
/// one that comes later is told after the read.
#[derive(Debug)]
pub(super) struct Claim {
    seen: u64,
    epoch: Option<Epoch>,
    /// The generation that the claim belongs to, once that is known.
    generation: Option<u64>,
    /// Reads with a higher number began after the claim was made.
    made_at: u64,
    /// The gaps of the key before the claim was made.
    gaps: u64,
}

impl Claim {
    pub(super) fn of_version(seen: u64) -> Self {
        Self {
            seen,
            epoch: None,
            generation: None,
            made_at: 0,
            gaps: 0,
        }
    }

    pub(super) fn of_position(seen: Position) -> Self {
        Self {
            epoch: Some(seen.epoch),
            ..Self::of_version(seen.version)
        }
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Compares the claim with what is known at first. Returns whether it is known to be true.
    pub(super) fn begin<K: Key>(&mut self, interest: &Interest<K>) -> bool {
        self.made_at = interest.table().reads();
        let Some(known) = interest.first_known() else {
            return false;
        };
        self.gaps = known.gaps;
        if self.epoch.is_none() || self.epoch == known.history.epoch {
            self.generation = Some(known.history.generation);
        }
        // Who has seen the mark may have missed what was discarded above it. Who has seen less is answered with the mark,
        // and who has seen nothing waits for what comes from now on.
        let has_missed = known
            .none_after
            .is_some_and(|(after, _)| known.mark < after);
        let may_miss = has_missed && self.seen == known.mark && self.seen > 0;
        self.generation.is_some() && self.seen <= known.mark && !may_miss
    }

    /// The version that satisfies the claim, if there is one.
    pub(super) fn examine(&mut self, known: &Known) -> Result<Option<u64>, Reset> {
        let reset = |version| {
            // A claim is refused after a read, which has told the epoch.
            let epoch = known.history.epoch.unwrap_or(Epoch(0));
            Err(Reset(Position { epoch, version }))
        };
        let was_read = known.read > self.made_at;
        match self.generation {
            // Nothing of this history was seen.
            Some(generation) if generation != known.history.generation => return reset(0),
            Some(_) => {}
            None if self.epoch == known.history.epoch => {
                self.generation = Some(known.history.generation);
            }
            None if was_read => return reset(0),
            None => return Ok(None),
        }
        if known.mark > self.seen {
            return Ok(Some(known.mark));
        }
        match known.none_after {
            // The store has no event of the key at all: what the client has seen was purged, and what came after it.
            Some((0, _)) if self.seen > 0 && was_read && known.mark == 0 => reset(0),
            // A client that has seen nothing waits for what comes from now on, one that has seen something for all that
            // came since.
            Some((after, to)) if self.seen > 0 && was_read && self.seen < after => reset(to),
            // (Who is ahead of the node may have seen all that was discarded.)
            Some((after, to)) if known.gaps != self.gaps && self.seen < after => reset(to),
            Some((_, to)) if was_read && to < self.seen => reset(to),
            None if was_read && known.mark < self.seen => reset(known.mark),
            _ => Ok(None),
        }
    }
}
