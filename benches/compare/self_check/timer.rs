//! The ground rules of a timer alone: each timer fires in its time, unless it was stopped.

use crate::timer_queue::{Tick, TimerQueue};

/// # Panics
///
/// If the timer breaks a rule.
pub(crate) fn run<Q: TimerQueue<u32>>() {
    Q::with(|mut queue: Q| {
        let mut random = fastrand::Rng::with_seed(7);
        let mut now = 0;
        let mut waiting: Vec<Option<(Tick, Q::Token)>> = Vec::new();
        for step in 0..400 {
            for _ in 0..10 {
                // Over three levels of 64 slots, and four of 20.
                let most = 1 << (1 + random.u64(..17));
                let deadline = now + Q::ONE_TIMEOUT.unwrap_or(1 + random.u64(..most));
                let id = waiting.len() as u32;
                waiting.push(Some((deadline, queue.start(id, deadline))));
            }
            for _ in 0..6 {
                let any = random.usize(..waiting.len());
                if let Some((_, token)) = waiting[any].take() {
                    queue.stop(token);
                }
            }
            // Tick by tick at first, then with jumps.
            let before = now;
            now += if step < 200 { 1 } else { 1 + random.u64(..500) };
            advance(&mut queue, before, now, &mut waiting);
        }
        let end = now + (1 << 18);
        while now < end {
            let before = now;
            now += 1000;
            advance(&mut queue, before, now, &mut waiting);
        }
        assert_eq!(queue.len(), 0, "{}: still waiting", Q::NAME);
    });
}

fn advance<Q: TimerQueue<u32>>(
    queue: &mut Q,
    before: Tick,
    now: Tick,
    waiting: &mut [Option<(Tick, Q::Token)>],
) {
    let mut fired = Vec::new();
    queue.advance(now, &mut |id| fired.push(id));
    for id in fired {
        let (deadline, token) = waiting[id as usize]
            .take()
            .unwrap_or_else(|| panic!("{}: stopped, or fired before", Q::NAME));
        queue.release(token);
        assert!(deadline <= now, "{}: early", Q::NAME);
        assert!(before < deadline + Q::LATE, "{}: late", Q::NAME);
    }
    for (deadline, _) in waiting.iter().flatten() {
        assert!(now < deadline + Q::LATE, "{}: missed", Q::NAME);
    }
    let left = waiting.iter().flatten().count();
    assert_eq!(queue.len(), left, "{}: length", Q::NAME);
}
