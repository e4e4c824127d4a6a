//~ implementation of `Eq` is not general enough

use request_purgatory::Waits;
use std::time::Duration;

async fn read(waits: Waits<&'static str>) -> Option<u32> {
    waits.wait(["news"], Duration::from_secs(1), || Some(1)).await.ok()
}

#[tokio::main]
async fn main() {
    let waits = Waits::new("topics");
    tokio::spawn(read(waits.clone()));
}
