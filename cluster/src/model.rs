//! The protocol without a driver, for the simulation and for random schedules. Not part of the API.

pub use crate::protocol::{Applied, Doubt, Next, Protocol, Tell, Ticket, enter, hear};
pub use crate::rules::{Rule, Rules};
pub use crate::table::entry::{Entry, History, Known, Learned};
pub use crate::table::{Order, Table, Time, Waiting};
pub use crate::waits::{wait_past, wait_past_position};

use crate::key::Key;
use crate::library::{Attached, Waits};
use crate::sync::Arc;

/// Has `table` check `waits`, as a cluster does.
pub fn attach<K: Key>(table: &Table<K>, waits: &Waits<K>) {
    table.attach(Arc::new(Attached::new(waits, true)));
}
