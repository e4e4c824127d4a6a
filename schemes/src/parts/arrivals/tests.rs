//! Tests of the log of arrivals by itself.

use super::*;
use std::collections::VecDeque;

fn push(log: &mut Arrivals, id: u32, deadline: Tick, now: Tick) -> Position {
    let fast = log.push(id, deadline, now);
    fast.unwrap_or_else(|| {
        log.push_slowly(id, deadline, now)
            .expect("neither near nor far")
            .0
    })
}

/// The timers that a pass at `now` takes out of the log.
fn taken(log: &mut Arrivals, now: Tick) -> Vec<(u32, Tick)> {
    let mut taken = Vec::new();
    loop {
        match log.take(now) {
            Taken::Timer(id, deadline) => taken.push((id, deadline)),
            Taken::Nothing => {}
            Taken::Idle => return taken,
        }
    }
}

#[test]
fn the_deadline_of_a_stopped_timer_brings_no_visit() {
    let mut log = Arrivals::new();
    let first = push(&mut log, 1, 1_000, 0);
    push(&mut log, 2, 1_512, 0);
    assert_eq!(log.next(), Some(1_000 - LEAD));
    log.remove(first);
    assert_eq!(log.next(), Some(1_512 - LEAD));
    assert_eq!(taken(&mut log, 1_000), []);
}

#[test]
fn a_near_deadline_files_no_far_ones() {
    let mut log = Arrivals::new();
    push(&mut log, 1, 600, 0);
    (2..200).for_each(|id| _ = push(&mut log, id, 30_000 + Tick::from(id), 0));
    assert_eq!(taken(&mut log, 600), [(1, 600)]);
    assert_eq!(taken(&mut log, 25_000), []);
    assert_eq!(log.next(), Some(30_002 - LEAD));
}

#[test]
fn timers_of_one_timeout_are_taken_segment_by_segment() {
    let mut log = Arrivals::new();
    (0..10_000).for_each(|id| _ = push(&mut log, id, 30_000 + Tick::from(id), Tick::from(id)));
    for now in 20_000..30_000 {
        assert!(taken(&mut log, now).len() <= SEGMENT);
    }
}

#[test]
fn a_log_of_few_timers_that_come_and_go_stays_small() {
    let mut log = Arrivals::new();
    let mut parked = VecDeque::new();
    for id in 0..100_000 {
        // The clock stands still, and the deadlines are the same.
        parked.push_back(push(&mut log, id, 30_000, 0));
        if parked.len() > 1_000 {
            log.remove(parked.pop_front().expect("it is not empty"));
        }
    }
    assert!(log.segments.len() <= 8, "{} segments", log.segments.len());
    assert!(log.queue.len() <= 64, "{} entries", log.queue.len());
    parked.into_iter().for_each(|position| log.remove(position));
    assert_eq!((log.len(), log.next()), (0, None));
    assert!(
        log.segments.iter().all(Option::is_none),
        "the last ones are kept apart"
    );
    assert!(log.spare.len() <= SPARE);
}

#[test]
fn a_segment_that_is_mostly_holes_is_given_up() {
    let mut log = Arrivals::new();
    let mut filed = 0;
    for id in 0..200 * SEGMENT as u32 {
        let position = match log.push(id, 30_000, 0) {
            Some(position) => position,
            None => {
                let (position, _) = log
                    .push_slowly(id, 30_000, 0)
                    .expect("neither near nor far");
                log.thin_out(0, |_, _| filed += 1);
                position
            }
        };
        if id % 64 != 0 {
            log.remove(position);
        }
    }
    let used = log.segments.len() - log.vacant.len();
    assert!(
        used <= 4 * log.len() / SEGMENT + SPARSE + 1,
        "{used} segments"
    );
    assert_eq!(filed + log.len(), 200 * SEGMENT / 64);
}
