//! The other replica of every partition. It lives in this process, so all there is of it is how far it has
//! come: it "fetches" whatever the leader appended, a fixed lag later.

use crate::broker::partition::Partition;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The leader's line to the follower. The follower stops once this is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    lag: Duration,
    /// Not bounded, since an entry is smaller than the batch that it stands for.
    appended: mpsc::UnboundedSender<Appended>,
}

/// How far a partition reaches, and when the follower will have that. The lag is the same for all, so the queue is in
/// order of it.
type Appended = (Arc<Partition>, i64, Instant);

impl Follower {
    /// Starts a follower on the current tokio runtime.
    pub(crate) fn start(lag: Duration) -> Self {
        let (appended, mut queue) = mpsc::unbounded_channel::<Appended>();
        tokio::spawn(async move {
            while let Some((partition, end_offset, due)) = queue.recv().await {
                if due > Instant::now() {
                    tokio::time::sleep_until(due).await;
                }
                // No lock is held here: the checks below run other requests' code.
                partition.replicated_up_to(end_offset);
            }
        });
        Self { lag, appended }
    }

    /// Lets the follower know that `partition` now reaches to `end_offset`.
    pub(crate) fn replicate(&self, partition: Arc<Partition>, end_offset: i64) {
        let due = Instant::now() + self.lag;
        // Fails only when the runtime is gone, and the follower's task with it.
        let _ = self.appended.send((partition, end_offset, due));
    }
}
