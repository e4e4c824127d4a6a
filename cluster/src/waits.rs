//! Waiting for a key to pass a version.

mod claim;

use crate::cluster::Cluster;
use crate::error::{InterestError, WaitError};
use crate::interest::Interest;
use crate::key::Key;
use crate::library::{Attached, Parked, PurgatoryError, Waits, new_waits, park, translate};
use crate::position::Position;
use crate::rules::Rule;
use crate::sync::Arc;
use claim::{Claim, Reset};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Where requests wait for a key to pass a version that their client has seen. What most users need of this crate.
///
/// Cloning is cheap, and clones are the same. A clone keeps the cluster alive.
///
/// ```
/// use request_purgatory_cluster::memory::MemoryEngine;
/// use request_purgatory_cluster::{Cluster, ClusterWaits, Config, WaitError};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = MemoryEngine::new();
/// let node = Cluster::start(engine.clone(), engine.clone(), Config::default())?;
/// let waits = ClusterWaits::new(&node)?;
///
/// let news = waits.wait_past("news".to_owned(), 0, Duration::from_secs(30));
/// engine.commit("news".to_owned()); // on any node
/// assert_eq!(news.await, Ok(1));
///
/// let more = waits.wait_past("news".to_owned(), 1, Duration::from_millis(20));
/// assert_eq!(more.await, Err(WaitError::Expired));
/// # Ok(())
/// # }
/// ```
pub struct ClusterWaits<K: Key> {
    cluster: Cluster<K>,
    waits: Waits<K>,
}

impl<K: Key> ClusterWaits<K> {
    /// Waits of this node, in a purgatory of their own, which has the cluster's name and takes any number.
    ///
    /// # Errors
    /// The system refused a thread for the purgatory.
    pub fn new(cluster: &Cluster<K>) -> Result<Self, PurgatoryError> {
        let waits = new_waits(cluster.name())?;
        Ok(Self::parked_in(cluster, waits))
    }

    /// Waits of this node in a purgatory that the caller has built: with a bound on their number, for instance. The
    /// shutdown of the cluster shuts it down.
    pub fn parked_in(cluster: &Cluster<K>, waits: Waits<K>) -> Self {
        let place = Attached::new(&waits, true);
        cluster.table().attach(Arc::new(place));
        Self {
            cluster: cluster.clone(),
            waits,
        }
    }

    /// Waits until `key` has a version beyond `seen`, for at most `timeout` from this call on, and resolves to the
    /// version. At once, if this node knows of one.
    ///
    /// The wait begins with this call, not with the first poll. Dropping the future ends it. It is woken on the thread
    /// that hears of the version: one of the runtime that the cluster runs on, or that of
    /// [`announce`](Cluster::announce).
    ///
    /// `seen` is a version of the store's present history. One that is higher than the store's is answered with
    /// [`WaitError::Reset`], after a read; where the store may have been lost *and* filled again since, only
    /// [`wait_past_position`](Self::wait_past_position) can tell.
    ///
    /// # Errors
    /// The future resolves to a [`WaitError`]. While the store cannot be read, to [`WaitError::Expired`] in time.
    pub fn wait_past(&self, key: K, seen: u64, timeout: Duration) -> WaitPast<K, u64> {
        match self.cluster.interest([key]) {
            Ok(interest) => wait_past(interest, &self.waits, seen, timeout),
            Err(error) => WaitPast(State::refused(error)),
        }
    }

    /// As [`wait_past`](Self::wait_past), for a position, which names the history too: another history is never
    /// mistaken for the same one. Resolves to the position that the client waits past next.
    ///
    /// # Errors
    /// As there.
    pub fn wait_past_position(
        &self,
        key: K,
        seen: Position,
        timeout: Duration,
    ) -> WaitPast<K, Position> {
        match self.cluster.interest([key]) {
            Ok(interest) => wait_past_position(interest, &self.waits, seen, timeout),
            Err(error) => WaitPast(State::refused(error)),
        }
    }

    /// The purgatory that the waits are parked in, for its statistics.
    pub fn purgatory(&self) -> &Waits<K> {
        &self.waits
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster<K> {
        &self.cluster
    }
}

impl<K: Key> Clone for ClusterWaits<K> {
    fn clone(&self) -> Self {
        Self {
            cluster: self.cluster.clone(),
            waits: self.waits.clone(),
        }
    }
}

impl<K: Key> fmt::Debug for ClusterWaits<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterWaits")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Waits in `waits` until the one key of `interest` has passed `seen`.
pub fn wait_past<K: Key>(
    interest: Interest<K>,
    waits: &Waits<K>,
    seen: u64,
    timeout: Duration,
) -> WaitPast<K, u64> {
    begin(
        interest,
        waits,
        Claim::of_version(seen),
        timeout,
        |version| version,
    )
}

/// As [`wait_past`], for a position.
pub fn wait_past_position<K: Key>(
    interest: Interest<K>,
    waits: &Waits<K>,
    seen: Position,
    timeout: Duration,
) -> WaitPast<K, Position> {
    let claim = Claim::of_position(seen);
    // A claim with an epoch is satisfied in that epoch only.
    begin(interest, waits, claim, timeout, move |version| Position {
        version,
        ..seen
    })
}

fn begin<K: Key, T: Send + 'static>(
    interest: Interest<K>,
    waits: &Waits<K>,
    mut claim: Claim,
    timeout: Duration,
    answer: impl Fn(u64) -> T + Send + 'static,
) -> WaitPast<K, T> {
    let Some(key) = interest.keys().next().cloned() else {
        unreachable!("the interest was made in one key");
    };
    let is_true = claim.begin(&interest);
    if !is_true && interest.table().keeps(Rule::VerifySeen) {
        interest.table().verify(&key);
    }
    let rank = match is_true {
        true => claim.seen().saturating_add(1),
        // To be examined by every check: what decides may be no new version.
        false => 0,
    };
    let predicate = move || {
        let known = interest.known_first()?;
        match claim.examine(&known) {
            Ok(version) => version.map(|version| Ok(answer(version))),
            Err(Reset(position)) => Some(Err(WaitError::Reset(position))),
        }
    };
    WaitPast(State::Parked(park(waits, key, rank, timeout, predicate)))
}

enum State<K: Key, T: 'static> {
    Failed(WaitError),
    Parked(Parked<K, Result<T, WaitError>>),
    Done,
}

impl<K: Key, T: 'static> State<K, T> {
    fn refused(error: InterestError) -> Self {
        Self::Failed(match error {
            InterestError::ShutDown => WaitError::ShutDown,
            error => WaitError::Interest(error),
        })
    }
}

/// A wait for a later version: a [`Future`] of it. Dropping it ends the wait, and its interest in the key.
///
/// After it has resolved, every poll is pending.
#[must_use = "a wait that is dropped is cancelled"]
pub struct WaitPast<K: Key, T: 'static>(State<K, T>);

impl<K: Key, T: 'static> Future for WaitPast<K, T> {
    type Output = Result<T, WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.0 {
            State::Failed(error) => Err(error.clone()),
            State::Parked(wait) => match Pin::new(wait).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(answer)) => answer,
                Poll::Ready(Err(error)) => Err(translate(error)),
            },
            State::Done => return Poll::Pending,
        };
        self.0 = State::Done;
        Poll::Ready(result)
    }
}

/// Nothing in it is ever pinned.
impl<K: Key, T: 'static> Unpin for WaitPast<K, T> {}

impl<K: Key, T: 'static> fmt::Debug for WaitPast<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Failed(_) => "WaitPast(failed)",
            State::Parked(_) => "WaitPast(parked)",
            State::Done => "WaitPast(done)",
        })
    }
}
