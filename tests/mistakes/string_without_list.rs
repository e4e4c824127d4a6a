//~ `String` is not an iterator

use request_purgatory::Waits;
use std::time::Duration;

fn main() {
    let waits = Waits::<String>::new("topics");
    drop(waits.wait("news".to_string(), Duration::from_secs(1), || Some(1)));
}
