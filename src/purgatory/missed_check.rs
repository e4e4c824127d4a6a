//! In debug builds: reports a missed check on stderr. A check was missed if an operation can complete at its deadline,
//! and no check has found that before. The only other symptom is that the request is answered late. Purgatories with
//! the same name are reported once. Release builds only count missed checks.

use parking_lot::Mutex;
use std::any::type_name;
use std::collections::HashSet;
use std::io::Write;
use std::sync::LazyLock;

/// Reports that an operation with keys `K` could complete at its deadline, and that no check had found this before.
/// Does nothing if the name `purgatory` has been reported already. The caller must hold no lock, because this call
/// takes a lock of the whole process and waits for stderr. Runs no user code.
pub(super) fn report<K>(purgatory: &str) {
    static REPORTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    if !REPORTED.lock().insert(purgatory.to_owned()) {
        return;
    }
    // Ignore the error: stderr may be closed.
    let _ = writeln!(
        std::io::stderr(),
        "request-purgatory: in the purgatory `{purgatory}` (keys `{}`), an operation waited until its deadline, where its \
         condition was true: no check of its keys had said so. Is there a change that no `check_and_complete` follows? \
         A check that was in progress at the deadline counts as well. Only debug builds report this, once for each purgatory; \
         `Stats::missed_checks` counts all.",
        type_name::<K>()
    );
}
