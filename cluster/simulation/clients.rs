//! Clients: each waits for a key to pass what it has seen, thinks, and waits again.

use crate::store::KEYS;
use crate::world::{LATE, LATE_PART, World};
use request_purgatory_cluster::{ClusterWaits, Position, WaitError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a client waits for: the key, and what it has seen of it in which history.
pub type Waiting = Arc<Mutex<Option<(u64, Position, u64)>>>;

/// Runs until the simulation is over.
pub async fn run(world: Arc<World>, waits: ClusterWaits<u64>, waiting: Waiting) {
    let mut seen: [(Position, u64); KEYS as usize] = {
        let store = world.store();
        std::array::from_fn(|key| (store.position(key as u64), store.history))
    };
    loop {
        world.sleep(0..=30).await;
        let key = world.random(|random| random.u64(..KEYS));
        let began = world.now();
        let (position, history) = seen[key as usize];
        *waiting.lock().expect("no test panics with it") = Some((key, position, history));
        let wait = waits.wait_past_position(key, position, Duration::from_secs(60));
        let result = wait.await;
        *waiting.lock().expect("no test panics with it") = None;
        let now = world.now();
        let store = world.store();
        let present = (store.position(key), store.history);
        let mut outcome = world.outcome();
        let late = match result {
            Ok(found) => {
                // A version may have been committed and lost again while the answer was on its way.
                let is_present = found.epoch == store.epoch && history == store.history;
                let is_wrong = found.version <= position.version
                    || found.epoch != position.epoch
                    || !store.has_had(key, found)
                    || is_present && found.version > present.0.version;
                outcome.wrong += u64::from(is_wrong);
                let since = store.committed_after(key, position.version);
                seen[key as usize] = (found, if is_present { store.history } else { history });
                let since = since.filter(|_| is_present).unwrap_or(now);
                now.saturating_sub(since.max(began))
            }
            Err(WaitError::Reset(_)) => {
                outcome.resets += 1;
                seen[key as usize] = present;
                now.saturating_sub(store.began.max(began))
            }
            Err(error) => panic!("{error}"),
        };
        outcome.answered += 1;
        outcome.lost += u64::from(late > world.scenario.bound);
        outcome.late += u64::from(late > LATE);
        outcome.late_at_end += u64::from(late > LATE && now > LATE_PART);
    }
}
