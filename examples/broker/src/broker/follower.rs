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

#[derive(Debug)]
struct Appended {
    partition: Arc<Partition>,
    end_offset: i64,
    /// When the follower will have it. The lag is the same for all, so the queue is in order of this.
    due: Instant,
}

impl Follower {
    /// Starts a follower on the current tokio runtime.
    pub(crate) fn start(lag: Duration) -> Self {
        let (appended, mut queue) = mpsc::unbounded_channel::<Appended>();
        tokio::spawn(async move {
            while let Some(appended) = queue.recv().await {
                if appended.due > Instant::now() {
                    tokio::time::sleep_until(appended.due).await;
                }
                // No lock is held here: the checks below run other requests' code.
                appended.partition.replicated_up_to(appended.end_offset);
            }
        });
        Self { lag, appended }
    }

    /// Lets the follower know that `partition` now reaches to `end_offset`.
    pub(crate) fn replicate(&self, partition: Arc<Partition>, end_offset: i64) {
        let due = Instant::now() + self.lag;
        // Fails only when the runtime is gone, and the follower's task with it.
        let _ = self.appended.send(Appended {
            partition,
            end_offset,
            due,
        });
    }
}
