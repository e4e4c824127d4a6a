//~ closure may outlive the current function

use request_purgatory::{Waits, future::block_on};
use std::sync::Mutex;
use std::time::Duration;

fn main() {
    let waits = Waits::<u32>::new("topics");
    let inbox = Mutex::new(vec![1]);
    let wait = waits.wait([7], Duration::from_secs(1), || inbox.lock().unwrap().pop());
    println!("{:?}", block_on(wait));
}
