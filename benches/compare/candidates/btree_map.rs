//! A `BTreeMap` by deadline: the timer that needs no crate. The second half of the key makes it
//! unique, and is what stops the timer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::driven::Driven;
use super::timer_and_map::{Entry, TimerAndMap};
use crate::timer_queue::{Sleepable, Tick, TimerQueue};

pub(crate) type BTreeAndMap = TimerAndMap<Driven<Key, BTree<Arc<Entry<Key>>>>>;

type Key = (Tick, u64);

pub(crate) struct BTree<V> {
    timers: BTreeMap<Key, V>,
    started: u64,
}

impl<V> TimerQueue<V> for BTree<V> {
    const NAME: &'static str = "btree_map";

    type Token = Key;

    fn new() -> Self {
        Self {
            timers: BTreeMap::new(),
            started: 0,
        }
    }

    fn start(&mut self, value: V, deadline: Tick) -> Key {
        let key = (deadline, self.started);
        self.started += 1;
        self.timers.insert(key, value);
        key
    }

    fn stop(&mut self, token: Key) {
        self.timers.remove(&token);
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > now {
                break;
            }
            fire(first.remove());
        }
    }

    fn len(&self) -> usize {
        self.timers.len()
    }
}

impl<V> Sleepable<V> for BTree<V> {
    fn next_wakeup(&mut self) -> Option<Tick> {
        self.timers.first_key_value().map(|(key, _)| key.0)
    }
}
