//~ cannot be sent between threads safely

use request_purgatory::{Completion, DelayedOperation, Purgatory};
use std::rc::Rc;
use std::time::Duration;

struct Fetch(Rc<u32>);

impl DelayedOperation for Fetch {
    type Key = u32;
    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn try_complete(&mut self) -> bool {
        *self.0 > 0
    }
    fn on_complete(self, _: Completion) {}
}

fn main() {
    let purgatory = Purgatory::new("fetch");
    purgatory.try_complete_else_watch(Fetch(Rc::new(1)), [7]).ok();
}
