//! Leases with fencing: one holder at a time, each with a higher token, and a store that refuses the tokens of the past.
//!
//! ```text
//! cargo run --release -p examples --bin leases
//! ```
//!
//! A holder that stalls (a long pause of its process, a lost network) does not know that its lease has expired and that
//! another has it by now. No lease service can prevent that; the *store* can: every write carries the token of the lease
//! under which it is made, and the store refuses a token lower than the highest that it has seen.

use request_purgatory::future::WaitError;
use request_purgatory::{Purgatory, Tracker, Waits};
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Resource = &'static str;
type Token = u64;

/// Who holds what, by token. (The tracker keeps the time: its keys are resource and token, so that only the holder itself
/// can touch or end its lease.)
#[derive(Default)]
struct Holders {
    current: HashMap<Resource, Token>,
    last_token: Token,
}

#[derive(Clone)]
struct Leases {
    holders: Arc<Mutex<Holders>>,
    deadlines: Tracker<(Resource, Token), ()>,
    free: Waits<Resource>,
}

impl Leases {
    fn new() -> Result<Self, Box<dyn Error>> {
        let (holders, free) = (Arc::default(), Purgatory::builder("free").build()?);
        let (expired, next) = (Arc::<Mutex<Holders>>::clone(&holders), free.clone());
        let on_expiry = move |(resource, token), ()| free_up(&expired, &next, resource, token);
        let deadlines = Tracker::builder("leases").build(on_expiry)?;
        Ok(Self {
            holders,
            deadlines,
            free,
        })
    }

    /// Waits until `resource` is free, for at most `patience`, and holds it for `ttl` from then on.
    async fn acquire(
        &self,
        resource: Resource,
        ttl: Duration,
        patience: Duration,
    ) -> Result<Lease, WaitError> {
        let (holders, deadlines, free) = (
            self.holders.clone(),
            self.deadlines.downgrade(),
            self.free.downgrade(),
        );
        let take = move || {
            let mut table = holders.lock().unwrap();
            if table.current.contains_key(resource) {
                return None;
            }
            let leases = Leases {
                holders: holders.clone(),
                deadlines: deadlines.upgrade()?,
                free: free.upgrade()?,
            };
            let token = table.last_token + 1;
            leases
                .deadlines
                .try_track((resource, token), (), ttl)
                .ok()?;
            table.last_token = token;
            table.current.insert(resource, token);
            Some(Lease {
                leases,
                resource,
                token,
                ttl,
            })
        };
        self.free.wait([resource], patience, take).await
    }
}

/// The lease ended: the next waiter may have the resource.
fn free_up(holders: &Mutex<Holders>, free: &Waits<Resource>, resource: Resource, token: Token) {
    let mut table = holders.lock().unwrap();
    if table.current.get(resource) == Some(&token) {
        table.current.remove(resource);
    }
    drop(table);
    free.check_and_complete(resource);
}

/// Dropping it releases the resource, also if its future was dropped before it was seen.
struct Lease {
    leases: Leases,
    resource: Resource,
    token: Token,
    ttl: Duration,
}

impl Lease {
    /// Holds it for another `ttl` from now. False if it has expired: then it is lost, and stays so.
    fn renew(&self) -> bool {
        self.leases
            .deadlines
            .touch(&(self.resource, self.token), self.ttl)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let leases = &self.leases;
        // `None`: it has expired, and the resource is not this holder's to release.
        if leases
            .deadlines
            .complete(&(self.resource, self.token))
            .is_some()
        {
            free_up(&leases.holders, &leases.free, self.resource, self.token);
        }
    }
}

/// What the lease protects. It need not be on this machine, nor know of leases: a conditional write is enough.
#[derive(Default)]
struct Store {
    highest: Token,
    writes: Vec<(Token, &'static str)>,
}

impl Store {
    fn write(&mut self, token: Token, what: &'static str) -> Result<(), Token> {
        if token < self.highest {
            return Err(self.highest);
        }
        self.highest = token;
        self.writes.push((token, what));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let leases = Leases::new()?;
    let mut store = Store::default();
    let (ttl, patience) = (Duration::from_millis(300), Duration::from_secs(10));

    let stalled = leases.acquire("disk", ttl, patience).await?;
    println!("A holds the lease with token {}", stalled.token);
    store.write(stalled.token, "by A").map_err(|_| "refused")?;
    println!("A stalls, and does not renew");

    let second = leases.acquire("disk", ttl, patience).await?; // waits until A's has expired
    println!(
        "B holds the lease with token {}, because A's has expired",
        second.token
    );
    store.write(second.token, "by B").map_err(|_| "refused")?;

    let refused = store.write(stalled.token, "late, by A");
    println!(
        "A writes again, with token {}: refused, the store has seen {}",
        stalled.token, store.highest
    );
    assert_eq!(refused, Err(second.token));
    assert!(
        !stalled.renew(),
        "an expired lease cannot be renewed, whoever holds the resource now"
    );
    drop(stalled); // releases nothing: it is B's

    let third = tokio::spawn({
        let leases = leases.clone();
        async move {
            leases
                .acquire("disk", Duration::from_secs(30), patience)
                .await
        }
    });
    drop(second); // B is done: the next holder need not wait for the time to pass
    let third = third.await??;
    println!(
        "C holds the lease with token {}, released by B",
        third.token
    );
    assert!(third.renew());
    store.write(third.token, "by C").map_err(|_| "refused")?;

    assert_eq!(store.writes, [(1, "by A"), (2, "by B"), (3, "by C")]);
    drop(third);
    tokio::task::spawn_blocking(move || drop(leases)).await?; // the last handle: it joins threads
    Ok(())
}
