//! The port's timer alone: its wheel, its queue of buckets and their locks, without its threads.

use std::sync::Arc;
use std::time::Duration;

use super::operation::{Operation, Task};
use super::system_timer::Buckets;
use crate::request::{Flag, Request};
use crate::timer_queue::{Tick, TimerQueue};

pub(crate) struct ManualTimer {
    buckets: Buckets,
    due: Vec<Arc<Operation>>,
}

/// The value is the request's id. The timeout that an operation carries is not used: the timer
/// alone is given deadlines.
impl TimerQueue<u32> for ManualTimer {
    const NAME: &'static str = "straight_port";

    type Token = Arc<Operation>;

    fn new() -> Self {
        Self {
            buckets: Buckets::default(),
            due: Vec::new(),
        }
    }

    fn start(&mut self, id: u32, deadline: Tick) -> Arc<Operation> {
        static FLAG: Flag = Flag::new();
        let operation = Arc::new(Operation::new(Request::new(id, &FLAG, Duration::ZERO)));
        let task = Task {
            operation: Arc::clone(&operation),
            expiration: deadline,
        };
        self.due.extend(self.buckets.add(task));
        operation
    }

    fn stop(&mut self, token: Arc<Operation>) {
        token.cancel_timer();
    }

    fn advance(&mut self, now: Tick, fire: &mut impl FnMut(u32)) {
        let due = &mut self.due;
        if let Some(first) = self.buckets.poll(now) {
            self.buckets
                .flush(first, now, |operation| due.push(operation));
        }
        for operation in due.drain(..) {
            fire(operation.request_id());
        }
    }

    fn len(&self) -> usize {
        self.buckets.len() + self.due.len()
    }
}
