//~ `{integer}` is not an iterator

use request_purgatory::Waits;
use std::time::Duration;

fn main() {
    let waits = Waits::<u32>::new("topics");
    drop(waits.wait(7, Duration::from_secs(1), || Some(1)));
}
