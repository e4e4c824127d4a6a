//! Causes that wait for the thread that holds an operation.
//!
//! A call that forces operations to complete with a cause hands the cause to each before it ends. An operation that
//! another thread holds is ended by that thread, which finds the cause here.
//!
//! INVARIANT: a cause is left before the mark. A holder that finds the mark therefore finds the cause.

use crate::address::Address;
use crate::sync::{Arc, Mutex};
use crate::trampoline::drop_user_values;
use std::collections::HashMap;

/// Changes an operation that is about to be forced to complete: sets the error that it answers with, for instance.
pub(crate) type ForceCause<Op> = Arc<dyn Fn(&mut Op) + Send + Sync>;

/// By the address of the operation.
pub(crate) struct ForceCauses<Op>(Mutex<HashMap<Address, ForceCause<Op>>>);

impl<Op: 'static> ForceCauses<Op> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// For an operation that will be marked next.
    pub(crate) fn leave(&self, address: Address, cause: &ForceCause<Op>) {
        // A cause that stood there is dropped without the lock: its destructor is the user's.
        let _before = self.0.lock().insert(address, cause.clone());
    }

    pub(crate) fn take(&self, address: Address) -> Option<ForceCause<Op>> {
        self.0.lock().remove(&address)
    }

    /// Forgets the causes of operations that have ended otherwise.
    pub(crate) fn forget(&self, is_parked: impl Fn(Address) -> bool) {
        let mut causes = self.0.lock();
        let ended = causes
            .keys()
            .copied()
            .filter(|address| !is_parked(*address));
        let ended = ended.collect::<Vec<_>>();
        let ended = ended.iter().filter_map(|address| causes.remove(address));
        let ended = ended.collect::<Vec<_>>();
        drop(causes);
        drop_user_values(ended);
    }
}
