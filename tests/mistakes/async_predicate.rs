//~ a condition answers `Option<T>`

use request_purgatory::{Waits, future::block_on};
use std::time::Duration;

async fn read() -> Option<u32> {
    Some(1)
}

fn main() {
    let waits = Waits::<u32>::new("topics");
    println!("{:?}", block_on(waits.wait([7], Duration::from_secs(1), || read())));
}
