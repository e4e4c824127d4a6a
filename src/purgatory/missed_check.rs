//! Debug builds say on stderr that a check was missed, the mistake that makes requests late and fails nowhere: once for
//! each name of a purgatory. Release builds only count it.

use parking_lot::Mutex;
use std::any::type_name;
use std::collections::HashSet;
use std::io::Write;
use std::sync::LazyLock;

/// An operation with keys `K` could complete at its deadline, and no check had said so. Takes a lock, of the process,
/// and writes to stderr: to be called with no lock held. Runs no code of the user's.
pub(super) fn report<K>(purgatory: &str) {
    static REPORTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    if !REPORTED.lock().insert(purgatory.to_owned()) {
        return;
    }
    // A stderr that is closed can be told nothing.
    let _ = writeln!(
        std::io::stderr(),
        "request-purgatory: in the purgatory `{purgatory}` (keys `{}`), an operation waited until its deadline, where its \
         condition was true: no check of its keys had said so. Is there a change that no `check_and_complete` follows? \
         A check that was in progress at the deadline counts as well. Only debug builds report this, once for each purgatory; \
         `Stats::missed_checks` counts all.",
        type_name::<K>()
    );
}
