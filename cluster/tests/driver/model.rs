//! A model of the whole node: several nodes on one store, with settings by chance, do by chance what users, clients, the
//! store and the feed can do. After each step a simple model of each node, which was told the same, says what the node
//! must have asked for, what it knows and counts, and how each wait has ended.

mod engine;
mod node;
mod rig;
mod waits;

use crate::engine::TOO_LONG;
use engine::{Engine, Store};
use fastrand::Rng;
use request_purgatory_cluster::{Change, Config, Epoch, FeedError};
use rig::{HOUR, IS_LOUD, Rig, STEP, say};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CASES: u64 = 250;
const STEPS: usize = 50;
const KEYS: u64 = 5;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn config(random: &mut Rng) -> Config {
    let backoffs = [(10, 80), (80, 10), (20, 20), (1, 60)];
    let (first, longest) = backoffs[random.usize(..4)];
    Config {
        audit: [ms(400), HOUR, Duration::MAX][random.usize(..3)],
        linger: [ms(0), ms(100), HOUR][random.usize(..3)],
        settle: ms(20),
        read_batch: random.usize(1..=3),
        concurrent_reads: random.usize(1..=3),
        max_keys: [3, 100][random.usize(..2)],
        backoff: (ms(first), ms(longest)),
        ..Config::default()
    }
}

/// One step of a case: on one of the nodes, or on the store.
fn step(random: &mut Rng, store: &Arc<Mutex<Store>>, rigs: &mut [Rig]) {
    let nodes = rigs.len();
    let at = random.usize(..nodes);
    let key = random.u64(..KEYS);
    let rig = &mut rigs[at];
    let what = random.u8(..100);
    say(|| {
        format!(
            "{what} on {at}, of key {key}, with {:?}",
            store.lock().unwrap()
        )
    });
    match what {
        0..=9 => {
            let several = random.usize(1..=3);
            let keys = (0..several).map(|_| random.u64(..KEYS));
            let mut keys = keys.collect::<Vec<_>>();
            if random.u8(..4) == 0 {
                keys.insert(0, keys[several - 1]);
            }
            if random.u8(..20) == 0 {
                keys.push(TOO_LONG.0);
            }
            rig.interest(keys);
        }
        10..=15 => rig.lose_interest(random),
        16..=37 => {
            let key = if random.u8(..60) == 0 {
                TOO_LONG.0
            } else {
                key
            };
            let (mark, truth, ends) = {
                let store = store.lock().unwrap();
                (rig.mark(key), store.version(key), (store.floor, store.head))
            };
            let seen = match random.u8(..10) {
                0 => 0,
                1 | 2 => mark,
                3..=5 => truth,
                6 => truth.saturating_sub(1),
                7 => truth + random.u64(1..=3),
                8 => [ends.0, ends.0 + 1, ends.1][random.usize(..3)],
                _ if random.u8(..4) == 0 => u64::MAX,
                _ => mark.saturating_sub(1),
            };
            let present = store.lock().unwrap().epoch;
            let epoch = match random.u8(..16) {
                0..=4 => None,
                5..=10 => Some(present),
                11 => Some(present + 1),
                12 => Some(present - 1),
                _ => Some(rig.epoch().unwrap_or(present)),
            };
            rig.wait(key, seen, epoch.map(Epoch), random);
        }
        38..=42 => rig.drop_wait(random),
        43..=46 => {
            let keys = [key, random.u64(..KEYS)];
            let keys = if keys[0] == keys[1] {
                &keys[..1]
            } else {
                &keys
            };
            rig.operation(keys, random.u64(1..=2));
        }
        47..=63 => {
            let several = if random.bool() {
                1
            } else {
                random.usize(2..=4)
            };
            let changes = (0..several).map(|_| {
                let key = random.u64(..KEYS);
                (key, store.lock().unwrap().commit(key))
            });
            let changes = changes.collect::<Vec<_>>();
            let epoch = store.lock().unwrap().epoch;
            // A node that commits may announce that before it hears of it.
            let is_announced = random.u8(..3) == 0;
            if is_announced {
                let (key, version) = changes[0];
                rig.announce(key, version, random.bool().then_some(Epoch(epoch)));
            }
            // The feed may repeat itself, and need not keep the order.
            let changes = match random.u8(..8) {
                0 => [&changes[..], &changes[..1]].concat(),
                _ => changes,
            };
            let is_reversed = random.u8(..4) == 0;
            for rig in rigs.iter().filter(|it| !it.is_mute) {
                let mut changes = changes.iter().map(|&(key, version)| Change {
                    key,
                    version,
                    epoch: rig.names_epoch.then_some(Epoch(epoch)),
                });
                match is_reversed {
                    true => rig.engine.tell(changes.rev()),
                    false => rig.engine.tell(&mut changes),
                }
            }
        }
        64 | 65 => {
            let (version, epoch) = {
                let store = store.lock().unwrap();
                (store.version(key), store.epoch)
            };
            let epoch = [epoch, epoch - 1, epoch + 1][random.usize(..3)];
            rig.announce(key, version, Some(Epoch(epoch)));
        }
        66..=70 => rig.read_again(key),
        71 => {
            store.lock().unwrap().flush();
        }
        72 | 73 => {
            // An older copy takes over.
            let mut store = store.lock().unwrap();
            let older = store.version(key).saturating_sub(random.u64(1..=2));
            if store.is_stream {
                let head = store
                    .head
                    .saturating_sub(random.u64(1..=2))
                    .max(store.floor);
                store.head = head;
                store.versions.retain(|_, version| *version <= head);
            } else if older > 0 {
                store.versions.insert(key, older);
            }
        }
        74..=77 => {
            let mut store = store.lock().unwrap();
            store.floor = match random.bool() {
                true => store.head,
                false => random.u64(store.floor..=store.head),
            };
        }
        78..=80 => {
            let faults = [
                FeedError::Cut("the connection was cut".into()),
                FeedError::Lagged,
                FeedError::Silent(STEP),
                FeedError::Protocol("what was that".into()),
            ];
            let mut faults = faults.into_iter();
            rig.engine
                .fail(faults.nth(random.usize(..4)).expect("there are four"));
        }
        81 => {
            let mut link = rig.engine.link();
            link.refuses = !link.refuses;
        }
        82..=84 => {
            let mut link = rig.engine.link();
            if link.is_down || link.is_short || link.is_long {
                (link.is_down, link.is_short, link.is_long) = (false, false, false);
            } else {
                match random.u8(..4) {
                    0 => link.is_short = true,
                    1 => link.is_long = true,
                    _ => link.is_down = true,
                }
            }
        }
        85 | 86 => rig.is_mute = !rig.is_mute,
        87 | 88 => rig.engine.link().holds_reads = true,
        89 | 90 => rig.engine.link().holds_watches = true,
        91..=94 => rig.engine.release(),
        95 => rig.expire(),
        96 => rig.replace_second_place(),
        97 if nodes > 1 => rig.shut_down(random.bool()),
        98 => {
            let advices = [None, Some("more memory".into()), Some("more room".into())];
            rig.engine.link().advice = advices[random.usize(..3)].clone();
        }
        99 => {
            let mut link = rig.engine.link();
            link.is_unable = !link.is_unable;
        }
        _ => rig.engine.release(),
    }
}

async fn live(random: &mut Rng) {
    let store = Arc::new(Mutex::new(Store {
        epoch: 1,
        is_stream: random.u8(..5) < 2,
        ..Store::default()
    }));
    // Some of them begin on a store that is old.
    for _ in 0..random.u64(..6) {
        store.lock().unwrap().commit(random.u64(..KEYS));
    }
    let mut rigs = (0..random.usize(1..=2))
        .map(|_| Rig::start(Engine::new(&store), config(random), random))
        .collect::<Vec<_>>();
    for _ in 0..STEPS {
        step(random, &store, &mut rigs);
        // Now and then two steps at once, and now and then a pause.
        if random.u8(..8) > 0 {
            let pause = if random.u8(..10) == 0 {
                STEP * 30
            } else {
                STEP
            };
            Rig::settle(&mut rigs, pause).await;
        }
    }
    // Some nodes end while all that waits does so. The others leave nothing behind.
    for rig in &mut rigs {
        if random.u8(..3) == 0 {
            rig.shut_down(random.bool());
        }
    }
    Rig::settle(&mut rigs, STEP).await;
    rigs.iter_mut().for_each(Rig::let_go);
    Rig::settle(&mut rigs, STEP * 30).await;
    rigs.iter().for_each(Rig::has_let_go);
}

fn case(seed: u64) {
    fastrand::seed(seed);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(live(&mut Rng::with_seed(seed)));
}

#[test]
fn g24_nodes_do_what_a_simple_model_of_them_says() {
    for seed in 0..CASES {
        if let Err(panic) = catch_unwind(|| case(seed)) {
            println!("with seed {seed}:");
            IS_LOUD.set(true);
            case(seed);
            resume_unwind(panic);
        }
    }
}
