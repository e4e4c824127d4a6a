//! A `BinaryHeap` by deadline. It cannot remove from its middle: a stopped timer gives up its value
//! and leaves its place in the heap, which is rid of such places when they are half of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use slab::Slab;

use super::driven::Driven;
use super::timer_and_map::{Entry, TimerAndMap};
use crate::timer_queue::{Sleepable, Tick, TimerQueue};

pub(crate) type HeapAndMap = TimerAndMap<Driven<Place, Heap<Arc<Entry<Place>>>>>;

/// Below this, dead places are not worth a thought.
const SMALL: usize = 64;

pub(crate) struct Heap<V> {
    places: BinaryHeap<Reverse<(Tick, Place)>>,
    values: Slab<(u64, V)>,
    started: u64,
}

/// Where a timer's value is, and which of those that were ever there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    started: u64,
    index: usize,
}

fn is_live<V>(values: &Slab<(u64, V)>, place: Place) -> bool {
    let value = values.get(place.index);
    value.is_some_and(|&(started, _)| started == place.started)
}

impl<V> Heap<V> {
    /// Drops dead places off the top; the first that lives.
    fn first(&mut self) -> Option<(Tick, Place)> {
        while let Some(&Reverse((deadline, place))) = self.places.peek() {
            if is_live(&self.values, place) {
                return Some((deadline, place));
            }
            self.places.pop();
        }
        None
    }
}

impl<V> TimerQueue<V> for Heap<V> {
    const NAME: &'static str = "binary_heap";

    type Token = Place;

    fn new() -> Self {
        Self {
            places: BinaryHeap::new(),
            values: Slab::new(),
            started: 0,
        }
    }

    fn start(&mut self, value: V, deadline: Tick) -> Place {
        let started = self.started;
        self.started += 1;
        let index = self.values.insert((started, value));
        let place = Place { started, index };
        self.places.push(Reverse((deadline, place)));
        place
    }

    fn stop(&mut self, token: Place) {
        if !is_live(&self.values, token) {
            return;
        }
        self.values.remove(token.index);
        if self.places.len() > SMALL && self.places.len() > 2 * self.values.len() {
            let values = &self.values;
            self.places
                .retain(|&Reverse((_, place))| is_live(values, place));
        }
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        while let Some((deadline, place)) = self.first() {
            if deadline > now {
                break;
            }
            self.places.pop();
            fire(self.values.remove(place.index).1);
        }
    }

    fn len(&self) -> usize {
        self.values.len()
    }
}

impl<V> Sleepable<V> for Heap<V> {
    fn next_wakeup(&mut self) -> Option<Tick> {
        self.first().map(|(deadline, _)| deadline)
    }
}
