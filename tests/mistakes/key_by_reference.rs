//~ the trait bound `Watch<'_, String>: From<&str>` is not satisfied

use request_purgatory::{Waits, future::block_on};
use std::time::Duration;

fn main() {
    let waits = Waits::<String>::new("topics");
    println!("{:?}", block_on(waits.wait(["news"], Duration::from_secs(1), || Some(1))));
}
