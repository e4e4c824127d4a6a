//! Leases with fencing: one holder at a time, each with a higher token, and a store that refuses older tokens.
//!
//! ```text
//! cargo run --release -p examples --bin leases
//! ```
//!
//! A holder that stalls (a long pause of its process, a lost network) does not know that its lease has expired and that
//! another has it by now. No lease service can prevent that; the *store* can: every write carries the token of the
//! lease under which it is made, and the store refuses a token lower than the highest that it has seen.

use request_purgatory::future::WaitFuture;
use request_purgatory::{Tracker, Waits};
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

type Resource = &'static str;
type Token = u64;
type Acquire = WaitFuture<Resource, Lease>;

struct Leases {
    /// Who holds what, and the last token given out.
    holders: Mutex<(HashMap<Resource, Token>, Token)>,
    /// When each lease ends. The token is in the key, so that only the holder itself can touch or end its lease.
    deadlines: Tracker<(Resource, Token), ()>,
    /// Who waits for a resource.
    free: Waits<Resource>,
}

impl Leases {
    fn new() -> Arc<Self> {
        Arc::new_cyclic(|leases: &Weak<Self>| {
            let leases = leases.clone();
            let on_expiry = move |held, ()| {
                if let Some(leases) = leases.upgrade() {
                    leases.ended(held);
                }
            };
            Self {
                holders: Mutex::default(),
                deadlines: Tracker::new("leases", on_expiry),
                free: Waits::new("free"),
            }
        })
    }

    /// Waits until `resource` is free, for at most `patience`, and holds it for `ttl` from then on.
    fn acquire(self: &Arc<Self>, resource: Resource, ttl: Duration, patience: Duration) -> Acquire {
        let leases = Arc::downgrade(self); // what is parked must not keep them alive
        let take = move || leases.upgrade()?.take(resource, ttl);
        self.free.wait([resource], patience, take)
    }

    fn take(self: &Arc<Self>, resource: Resource, ttl: Duration) -> Option<Lease> {
        let (current, last) = &mut *self.holders.lock().unwrap();
        if current.contains_key(resource) {
            return None;
        }
        *last += 1;
        let held = (resource, *last);
        self.deadlines.try_track(held, (), ttl).ok()?; // they are shut down
        current.insert(resource, *last);
        let leases = self.clone();
        Some(Lease { leases, held, ttl })
    }

    /// The next in line may have the resource. (The check is left to the reaper, since a lock is held.)
    fn ended(&self, (resource, token): (Resource, Token)) {
        let (current, _) = &mut *self.holders.lock().unwrap();
        if current.get(resource) == Some(&token) {
            current.remove(resource);
        }
        self.free.check_later(resource);
    }
}

/// Dropping it releases the resource, also if its future was dropped before it was seen.
struct Lease {
    leases: Arc<Leases>,
    held: (Resource, Token),
    ttl: Duration,
}

impl Lease {
    /// Holds it for another `ttl` from now. False if it has expired: then it is lost, and stays so.
    fn renew(&self) -> bool {
        self.leases.deadlines.touch(&self.held, self.ttl)
    }

    fn token(&self) -> Token {
        self.held.1
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // `None`: it has expired, and the resource is not this holder's to release.
        if self.leases.deadlines.complete(&self.held).is_some() {
            self.leases.ended(self.held);
        }
    }
}

/// What the lease protects. It need not be on this machine, nor know of leases: a conditional write is enough.
#[derive(Default)]
struct Store(Vec<(Token, &'static str)>);

impl Store {
    fn write(&mut self, token: Token, what: &'static str) -> Result<(), &'static str> {
        if self.0.last().is_some_and(|(last, _)| token < *last) {
            return Err("the store has seen a later token");
        }
        self.0.push((token, what));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let leases = Leases::new();
    let mut store = Store::default();
    let (ttl, patience) = (Duration::from_millis(300), Duration::from_secs(10));

    let stalled = leases.acquire("disk", ttl, patience).await?;
    println!("A holds the lease with token {}", stalled.token());
    store.write(stalled.token(), "by A")?;

    // A stalls.
    let second = leases.acquire("disk", ttl, patience).await?; // waits until A's has expired
    println!("B waited, and holds it with token {}", second.token());
    store.write(second.token(), "by B")?;

    let late = store.write(stalled.token(), "late, by A");
    println!("A writes again: {late:?}");
    assert!(late.is_err() && !stalled.renew());
    drop(stalled); // releases nothing: it is B's

    let long = Duration::from_secs(60);
    let third = leases.acquire("disk", long, patience); // waits from now on
    drop(second); // B is done: C need not wait for the time to pass
    let third = third.await?;
    println!("C holds it with token {}, released by B", third.token());
    assert!(third.renew());
    store.write(third.token(), "by C")?;

    assert_eq!(store.0, [(1, "by A"), (2, "by B"), (3, "by C")]);
    tokio::task::spawn_blocking(move || drop((third, leases))).await?; // the last one joins threads
    Ok(())
}
