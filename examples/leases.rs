//! Leases with fencing: one holder at a time, each with a higher token, and a store that refuses older tokens.
//!
//! ```text
//! cargo run --release -p examples --bin leases
//! ```
//!
//! A holder that stalls (a long pause of its process, a lost network) does not know that its lease has expired and that
//! another has it by now. No lease service can prevent that; the *store* can: every write carries the token of the
//! lease under which it is made, and the store refuses a token lower than the highest that it has seen.

use request_purgatory::future::{Taken, WaitFuture, WaitOperation};
use request_purgatory::{CheckBound, Waits};
use request_purgatory_tracker::{FencingToken, Tracker};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Resource(u32);

const DISK: Resource = Resource(1);

/// A guard: dropped, it releases the lease.
type Lease = Taken<FencingToken>;
type Acquiring = WaitFuture<WaitOperation<Resource>, Lease>;

struct Leases {
    /// The holder of each resource, until its lease expires.
    held: Tracker<Resource, &'static str>,
    /// The waits for a resource, first come, first served.
    free: Waits<Resource>,
}

impl Leases {
    fn new() -> Self {
        let free = Waits::new("free");
        let next = free.downgrade();
        let on_expiry = move |resource: Resource, _, _| {
            if let Some(free) = next.upgrade() {
                free.check_and_complete_with(&resource, CheckBound::at_most(1));
            }
        };
        let held = Tracker::new("leases", on_expiry);
        Self { held, free }
    }

    /// Waits until `resource` is free, for at most a minute, and holds it for `ttl` from then on. When the lease is
    /// dropped, or the future that may have one by then, the resource goes to the next one that waits.
    fn acquire(&self, resource: Resource, holder: &'static str, ttl: Duration) -> Acquiring {
        let (takes, returns) = (self.held.clone(), self.held.clone());
        self.free.take(
            [resource],
            Duration::from_secs(60),
            move |_| takes.try_track(resource, holder, ttl).ok(),
            // A lease that has expired is not this holder's any more, and nothing is released.
            move |token| _ = returns.complete_if(&resource, token),
        )
    }

    /// Holds it for another `ttl` from now. False if the lease has expired: it is lost.
    fn renew(&self, resource: Resource, token: FencingToken, ttl: Duration) -> bool {
        self.held.reschedule_if(&resource, token, ttl)
    }
}

/// What the lease protects. It need not be on this machine, nor know of leases: a conditional write is enough.
#[derive(Default)]
struct Store(Vec<(FencingToken, &'static str)>);

impl Store {
    fn write(&mut self, token: FencingToken, what: &'static str) -> Result<(), &'static str> {
        if self.0.last().is_some_and(|(last, _)| token < *last) {
            return Err("the store has seen a later token");
        }
        self.0.push((token, what));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (leases, mut store) = (Leases::new(), Store::default());
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(60));
    let stalled = leases.acquire(DISK, "A", short).await?;
    println!("A holds the lease with token {}", *stalled);
    store.write(*stalled, "by A")?;

    // A stalls; B waits until A's lease has expired.
    let second = leases.acquire(DISK, "B", long).await?;
    println!("B waited, and holds it with token {}", *second);
    store.write(*second, "by B")?;
    println!("A writes again: {:?}", store.write(*stalled, "late, by A"));
    assert!(!leases.renew(DISK, *stalled, long));
    drop(stalled); // releases nothing: it is B's
    let third = leases.acquire(DISK, "C", long); // waits from now on
    drop(second); // B is done: C need not wait for the time to pass
    let third = third.await?;
    println!("C holds it with token {}, released by B", *third);
    assert!(leases.renew(DISK, *third, long) && leases.held.get(&DISK) == Some("C"));
    Ok(store.write(*third, "by C")?)
}
