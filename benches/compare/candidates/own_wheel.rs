//! This crate's default timer alone: the hierarchical wheel of its `scheme` module, over records in
//! a vector.

use request_purgatory::scheme::{HierarchicalWheel, Position, Records, Scheme};

use super::library::Library;
use crate::candidate::Candidate;
use crate::timer_queue::{Tick, TimerQueue};

/// The library's default.
const SLOTS: u32 = 64;

pub(crate) struct OwnWheel<V> {
    wheel: HierarchicalWheel,
    slots: Slots<V>,
    free: Vec<u32>,
    now: Tick,
}

struct Slots<V>(Vec<Slot<V>>);

struct Slot<V> {
    deadline: Tick,
    position: Position,
    /// `None` once stopped or fired.
    value: Option<V>,
}

impl<V> Records for Slots<V> {
    fn deadline(&self, id: u32) -> Tick {
        self.0[id as usize].deadline
    }

    fn set_position(&mut self, id: u32, position: Position) {
        self.0[id as usize].position = position;
    }
}

impl<V> TimerQueue<V> for OwnWheel<V> {
    /// As the library it belongs to: its values are what the others' are compared with.
    const NAME: &'static str = Library::NAME;

    /// Good until the slot is used again, which is enough for who stops only what has not fired.
    type Token = u32;

    fn new() -> Self {
        Self {
            wheel: HierarchicalWheel::new(SLOTS, 0),
            slots: Slots(Vec::new()),
            free: Vec::new(),
            now: 0,
        }
    }

    fn start(&mut self, value: V, deadline: Tick) -> u32 {
        let id = self.free.pop().unwrap_or(self.slots.0.len() as u32);
        let started = self
            .wheel
            .start(&mut self.slots, id, deadline, self.now)
            .expect("this wheel takes any deadline");
        let slot = Slot {
            deadline,
            position: started.position,
            value: Some(value),
        };
        match self.slots.0.get_mut(id as usize) {
            Some(free) => *free = slot,
            None => self.slots.0.push(slot),
        }
        id
    }

    fn stop(&mut self, token: u32) {
        let slot = &mut self.slots.0[token as usize];
        if slot.value.take().is_some() {
            let position = slot.position;
            self.wheel.stop(&mut self.slots, position);
            self.free.push(token);
        }
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(V)) {
        self.now = now;
        let free = &mut self.free;
        self.wheel.advance(&mut self.slots, now, |_, slots, id, _| {
            if let Some(value) = slots.0[id as usize].value.take() {
                free.push(id);
                fire(value);
            }
        });
    }

    fn len(&self) -> usize {
        self.wheel.len()
    }
}
