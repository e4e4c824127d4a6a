//! G31: code of a key runs under locks of the library, and must not call it. A debug build says so, where a release
//! build hangs.
#![cfg(debug_assertions)]

use crate::support::{NEVER_IN_A_TEST, Op, PATIENCE, manual, within};
use request_purgatory::Purgatory;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Call = Box<dyn Fn()>;

thread_local! {
    /// What the next hook of a key on this thread calls.
    static ARMED: RefCell<Option<(Hook, Call)>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    Hash,
    Eq,
    Clone,
}

struct Calling(u64);

impl Calling {
    fn hook(hook: Hook) {
        let armed = ARMED.with_borrow_mut(|armed| armed.take_if(|(wanted, _)| *wanted == hook));
        if let Some((_, call)) = armed {
            call();
        }
    }
}

impl Clone for Calling {
    fn clone(&self) -> Self {
        Self::hook(Hook::Clone);
        Self(self.0)
    }
}

impl PartialEq for Calling {
    fn eq(&self, other: &Self) -> bool {
        Self::hook(Hook::Eq);
        self.0 == other.0
    }
}

impl Eq for Calling {}

impl Hash for Calling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Self::hook(Hook::Hash);
        self.0.hash(state);
    }
}

type Parks = Purgatory<Op<Calling>>;

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
        for hook in [Hook::Hash, Hook::Eq, Hook::Clone] {
            for (name, call) in CALLS {
                let (purgatory, _clock) = manual::<Calling>(|builder| builder);
                let park = |key| {
                    let op = Op::new(NEVER_IN_A_TEST);
                    purgatory.try_complete_else_watch(op, [Calling(key)])
                };
                drop(park(1));
                let inside = purgatory.clone();
                let called = Box::new(move || call(&inside));
                ARMED.set(Some((hook, called)));
                // The key of this park is hashed; the first key is compared with its own kind, and a new one is cloned.
                let key = if hook == Hook::Clone { 2 } else { 1 };
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
