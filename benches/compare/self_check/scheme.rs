//! The ground rules of a scheme: each timer fires in its tick, unless it was stopped.

use crate::candidates::Named;
use crate::random::Random;
use crate::scheme_timers::SchemeTimers;
use crate::timer_queue::Tick;

const TIMERS: usize = 200;
const TICKS: Tick = 10_000;

/// # Panics
///
/// If the scheme breaks a rule.
pub(crate) fn run<S: Named>() {
    let mut random = Random::new(7);
    let mut timers = SchemeTimers::<S>::new(TIMERS);
    let mut waiting: Vec<Option<Tick>> = vec![None; TIMERS];
    for now in 1..=TICKS {
        let any = random.below(TIMERS as u64) as u32;
        match waiting[any as usize].take() {
            Some(_) => timers.stop(any),
            None => {
                // Over a revolution where that is allowed.
                let deadline = timers.now() + 1 + random.below(S::SPAN.min(6000));
                timers.start(any, deadline);
                waiting[any as usize] = Some(deadline);
            }
        }
        let wanted = timers.next_deadline();
        let earliest = waiting.iter().flatten().min();
        assert!(
            wanted.is_some() == earliest.is_some() && wanted <= earliest.copied(),
            "{}: would oversleep",
            S::NAME
        );
        timers.advance(now, |id, deadline| {
            let expected = waiting[id as usize].take();
            assert_eq!(expected, Some(deadline), "{}: not waiting", S::NAME);
            assert_eq!(deadline, now, "{}: not in its tick", S::NAME);
        });
        let left = waiting.iter().flatten().count();
        assert_eq!(timers.len(), left, "{}: length", S::NAME);
    }
}
