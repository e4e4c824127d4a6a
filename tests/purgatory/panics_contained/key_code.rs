//! G31: code of a key runs under locks of the library, and must not call it. A debug build says so, where a release
//! build hangs.
#![cfg(debug_assertions)]

use crate::support::keys::Hook;
use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, manual, within};
use request_purgatory::Purgatory;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Parks = Purgatory<Op<Calling>>;

thread_local! {
    /// What the next hook of a key on this thread calls.
    static ARMED: RefCell<Option<(Hook, Parks, fn(&Parks))>> = const { RefCell::new(None) };
}

/// A key of which a hook makes a call.
struct Calling(u64);

fn called(hook: Hook) {
    let armed = ARMED.with_borrow_mut(|armed| armed.take_if(|(wanted, ..)| *wanted == hook));
    if let Some((_, purgatory, call)) = armed {
        call(&purgatory);
    }
}

impl Clone for Calling {
    fn clone(&self) -> Self {
        called(Hook::Clone);
        Self(self.0)
    }
}

impl PartialEq for Calling {
    fn eq(&self, other: &Self) -> bool {
        called(Hook::Eq);
        self.0 == other.0
    }
}

impl Eq for Calling {}

impl Hash for Calling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        called(Hook::Hash);
        self.0.hash(state);
    }
}

/// A call, and the name by which it is noticed.
const CALLS: [(&str, fn(&Parks)); 6] = [
    ("check_and_complete", |all| {
        _ = all.check_and_complete(&Calling(1))
    }),
    ("watchers", |all| _ = all.watchers(&Calling(1))),
    ("resolve", |all| drop(all.resolve(Calling(1)))),
    ("check_later", |all| all.check_later(Calling(1))),
    ("watched_keys", |all| _ = all.watched_keys()),
    ("try_complete_else_watch", |all| {
        drop(all.try_complete_else_watch(Op::new(NEVER_IN_A_TEST), [Calling(1)]));
    }),
];

#[test]
fn g31_a_call_from_the_code_of_a_key_panics_with_its_name_in_a_debug_build() {
    within(PATIENCE, || {
        // The key of a park is hashed; the first key is compared with its own kind, and a new one is cloned.
        for (hook, key) in [(Hook::Hash, 1), (Hook::Eq, 1), (Hook::Clone, 2)] {
            for (name, call) in CALLS {
                let (purgatory, _clock) = manual::<Calling>(|builder| builder);
                let park = |key| {
                    let op = Op::new(NEVER_IN_A_TEST);
                    purgatory.try_complete_else_watch(op, [Calling(key)])
                };
                drop(park(1));
                ARMED.set(Some((hook, purgatory.clone(), call)));
                let panicked = catch_unwind(AssertUnwindSafe(|| park(key))).err();
                let payload = panicked.expect("it hangs in a release build");
                let says = payload.downcast_ref::<String>().expect("it has a message");
                assert!(says.contains(&format!("`{name}`")), "{hook:?}: {says}");
                // No lock is left locked.
                assert_eq!(purgatory.watchers(&Calling(1)), 1);
                assert!(park(3).is_ok());
            }
        }
    });
}
