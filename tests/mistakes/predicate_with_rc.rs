//~ cannot be sent between threads safely

use request_purgatory::{Waits, future::block_on};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

fn main() {
    let waits = Waits::<u32>::new("topics");
    let inbox = Rc::new(RefCell::new(vec![1]));
    let wait = waits.wait([7], Duration::from_secs(1), move || inbox.borrow_mut().pop());
    println!("{:?}", block_on(wait));
}
