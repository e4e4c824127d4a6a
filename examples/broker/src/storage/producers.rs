//! Idempotent producers, as far as one partition knows them: a batch sent again after a lost answer is
//! recognised by its sequence number, and not appended twice. Most clients produce this way unless told not to.

use crate::exchange::{Outcome, ensure};
use crate::messages::*;
use crate::storage::batch::{Batch, Sequence};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

/// Batches remembered per producer: as many as a client may have in flight.
const REMEMBERED: usize = 5;

/// Producers remembered per partition. A forgotten one can go on, but is not protected from its first repeat.
const MAX_PRODUCERS: usize = 1_000;

/// What the producers of one partition sent last.
#[derive(Default)]
pub(crate) struct Producers {
    by_id: HashMap<i64, VecDeque<Seen>>,
}

#[derive(Clone, Copy)]
struct Seen {
    sequence: Sequence,
    records: i32,
    base_offset: i64,
}

impl Producers {
    /// Whether `batch` is next in its producer's sequence (`None`), or a repeat of what is at some offset already.
    pub(crate) fn find(&self, batch: &Batch) -> Outcome<Option<i64>> {
        let known = |it: Sequence| {
            let seen = self.by_id.get(&it.producer_id)?;
            Some((it, seen, seen.back()?))
        };
        let Some((sequence, seen, last)) = batch.sequence.and_then(known) else {
            return Ok(None);
        };
        let repeat = |seen: &&Seen| seen.sequence == sequence && seen.records == batch.records;
        if let Some(original) = seen.iter().find(repeat) {
            return Ok(Some(original.base_offset));
        }
        let next = match sequence.producer_epoch.cmp(&last.sequence.producer_epoch) {
            Ordering::Less => return Err(Code::InvalidProducerEpoch),
            // The numbers count up to `i32::MAX` and then start again at 0.
            Ordering::Equal => last.sequence.base_sequence.wrapping_add(last.records) & i32::MAX,
            Ordering::Greater => 0,
        };
        let is_next = sequence.base_sequence == next;
        ensure(is_next, Code::OutOfOrderSequenceNumber)?;
        Ok(None)
    }

    pub(crate) fn note(&mut self, batch: &Batch, base_offset: i64) {
        let Some(sequence) = batch.sequence else {
            return;
        };
        let seen = self.by_id.entry(sequence.producer_id).or_default();
        if seen.len() == REMEMBERED {
            seen.pop_front();
        }
        seen.push_back(Seen {
            sequence,
            records: batch.records,
            base_offset,
        });
        if self.by_id.len() <= MAX_PRODUCERS {
            return;
        }
        let last_offset = |seen: &VecDeque<Seen>| seen.back().map(|last| last.base_offset);
        let quietest = self.by_id.iter().min_by_key(|(_, seen)| last_offset(seen));
        if let Some(id) = quietest.map(|(id, _)| *id) {
            self.by_id.remove(&id);
        }
    }
}
