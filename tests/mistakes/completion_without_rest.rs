//~ non-exhaustive patterns: `_` not covered

use request_purgatory::Completion;

fn main() {
    match Completion::Expired {
        Completion::Satisfied => println!("satisfied"),
        Completion::Expired => println!("expired"),
        Completion::Cancelled => println!("cancelled"),
        Completion::ShutDown => println!("shut down"),
    }
}
