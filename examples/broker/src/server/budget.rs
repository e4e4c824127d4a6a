//! Something of which there is only so much for all connections together: memory, or places for connections.

use std::future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How long a share is safe. Once others wait, a share that has been held for longer is revoked.
const GRACE: Duration = Duration::from_secs(1);

/// A number of units, given out in [shares](Share), first come first served.
#[derive(Debug)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    /// Told when a connection has waited for longer than [`GRACE`].
    pressure: Notify,
}

/// What one connection has of a budget, nothing at first. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    held: Option<OwnedSemaphorePermit>,
    since: Instant,
}

/// The connection has to give up what it holds, since others have waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revoked;

impl Budget {
    pub(crate) fn new(units: usize) -> Arc<Self> {
        Arc::new(Self {
            units: Arc::new(Semaphore::new(units)),
            pressure: Notify::new(),
        })
    }

    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share {
            budget: Arc::clone(self),
            held: None,
            since: Instant::now(),
        }
    }
}

impl Share {
    /// Makes this a share of `units`: what is too much is given back at once, what is missing is waited for.
    pub(crate) async fn hold(&mut self, units: u32) -> Result<(), Revoked> {
        let Some(missing) = self.shrink(units) else {
            return Ok(());
        };
        let waited = Arc::clone(&self.budget.units).acquire_many_owned(missing);
        tokio::pin!(waited);
        let permit = loop {
            tokio::select! {
                biased;
                permit = &mut waited => break permit,
                () = self.revoked() => return Err(Revoked),
                () = tokio::time::sleep(GRACE) => self.budget.pressure.notify_waiters(),
            }
        };
        // INVARIANT: nothing closes the semaphore.
        self.grow(permit.map_err(|_| Revoked)?);
        Ok(())
    }

    /// The same without waiting. False if there are not as many units left; then the share is what it was.
    pub(crate) fn try_hold(&mut self, units: u32) -> bool {
        let Some(missing) = self.shrink(units) else {
            return true;
        };
        let permit = Arc::clone(&self.budget.units).try_acquire_many_owned(missing);
        permit.map(|permit| self.grow(permit)).is_ok()
    }

    /// Resolves when this share has to be given up: others wait, and this one had its time. Never for an empty share.
    pub(crate) async fn revoked(&self) {
        if self.held.is_none() {
            return future::pending().await;
        }
        loop {
            self.budget.pressure.notified().await;
            if self.since.elapsed() >= GRACE {
                return;
            }
        }
    }

    /// Gives back what is more than `units`. How many are missing, if any.
    fn shrink(&mut self, units: u32) -> Option<u32> {
        let held = self.held.as_ref().map_or(0, |held| held.num_permits());
        let wanted = units as usize;
        if wanted == 0 {
            self.held = None;
        } else if let Some(held) = &mut self.held
            && held.num_permits() > wanted
        {
            drop(held.split(held.num_permits() - wanted));
        }
        u32::try_from(wanted.checked_sub(held)?)
            .ok()
            .filter(|missing| *missing > 0)
    }

    fn grow(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => {
                self.since = Instant::now();
                self.held = Some(permit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, GRACE, Share};
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_share_grows_and_shrinks_within_the_budget() {
        let budget = Budget::new(10);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.try_hold(7));
        assert!(!other.try_hold(4));
        assert!(one.try_hold(6) && other.try_hold(4));
        assert!(!one.try_hold(7), "all is given out");
        drop(other);
        assert_eq!(one.hold(10).await, Ok(()));
        assert_eq!(one.hold(0).await, Ok(()));
        assert_eq!(budget.units.available_permits(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_revoked_only_when_others_have_waited() {
        let budget = Budget::new(1);
        let mut holder = budget.share();
        holder.hold(1).await.expect("there is room");
        let unwanted = timeout(Duration::from_secs(3600), holder.revoked()).await;
        assert!(unwanted.is_err(), "no other thread wants it");

        let mut waiting = budget.share();
        let held = tokio::spawn(async move {
            holder.revoked().await;
            drop(holder);
        });
        assert_eq!(waiting.hold(1).await, Ok(()));
        held.await.expect("no panic");
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_that_waits_for_more_can_be_revoked_too() {
        let budget = Budget::new(2);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.try_hold(1) && other.try_hold(1));
        sleep(2 * GRACE).await;
        // Both wait for what the other has: one has to give way.
        let to_the_end = async |mut share: Share| share.hold(2).await;
        let (first, second) = tokio::join!(to_the_end(one), to_the_end(other));
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    }
}
