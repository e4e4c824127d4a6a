//! In debug builds: reports on stderr a call of an operation's code that does not return. The usual cause is a lock:
//! the caller holds it, and the operation's code waits for it. Without the report, the program would hang silently.
//! Release builds contain none of this.
//!
//! Each thread that calls an operation's code notes the call in a [`Place`] of its own. One watcher thread for the
//! whole process looks at all places once a second. It reports a call that it finds in progress several times in a row.
//! While no call is in progress, the watcher sleeps.
//!
//! If no happens-before orders two calls in a release build, noting the calls must not create one: otherwise a debug
//! build would hide races from the tests. So every atomic operation here is Relaxed, and a calling thread takes no
//! lock. It makes a read-modify-write only at its first call, when it takes its place, and when it wakes the watcher.
//! The names for the report were registered under a lock when the purgatory was made. A call notes their number.
//!
//! The watcher needs no order either: it waits a second before it looks again, and stores become visible long before
//! that. If a store became visible later, a report would be missing, or would have the names of another call.

use crate::threads::worker::Worker;
use parking_lot::Mutex;
use std::any::type_name;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::Write;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread::Thread;
use std::time::Duration;

/// A call that lasts longer than this is reported.
const LIMIT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_secs(1);

/// The maximum number of threads whose calls are noted at the same time. Calls of further threads are not noted.
const PLACES: usize = 1_024;
/// The maximum depth of nested calls that are noted on one thread. Calls are nested if the code of an operation parks
/// another operation.
const DEPTH: usize = 2;

static ALL: [Place; PLACES] = [const { Place::new() }; PLACES];

/// The place where one thread notes its calls of an operation's code, so that the watcher thread can find them: one
/// call for each depth of nesting.
struct Place {
    taken: AtomicBool,
    calls: [Call; DEPTH],
}

/// A noted call, in progress or ended.
struct Call {
    /// Odd while the call is in progress: the beginning and the end of each call add one.
    number: AtomicU64,
    /// The [number of the names](NamesNumber) in the report of the call.
    names: AtomicUsize,
}

/// The names in the report of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Names {
    purgatory: String,
    operation: &'static str,
    key: &'static str,
}

/// The number of each [`Names`] that was ever registered. Purgatories with the same names share a number. Names stay
/// when their purgatory goes, because a report may need them later: a debug build keeps each distinct name.
static REGISTERED: LazyLock<Mutex<HashMap<Names, usize>>> = LazyLock::new(Mutex::default);

/// The number of a purgatory's [`Names`]. Each call notes only this number, because it can take no lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamesNumber(usize);

impl NamesNumber {
    /// Registers the names of a purgatory that is being made, and of its operations `Op` and their keys `K`. Takes a
    /// lock of the whole process.
    pub(super) fn register<Op, K>(purgatory: &str) -> Self {
        let names = Names {
            purgatory: purgatory.to_owned(),
            operation: type_name::<Op>(),
            key: type_name::<K>(),
        };
        let mut registered = REGISTERED.lock();
        let next = registered.len();
        Self(*registered.entry(names).or_insert(next))
    }
}

impl Call {
    const fn new() -> Self {
        Self {
            number: AtomicU64::new(0),
            names: AtomicUsize::new(0),
        }
    }

    /// Notes the beginning or the end of a call: adds one to `number`, which is odd while the call is in progress.
    /// Called only by the thread in whose [`Place`] (its record of calls) this `Call` lies.
    fn turn(&self) {
        // ORDERING: Relaxed: noting calls must create no happens-before between the calls of two threads, which would
        // hide races from the tests (see the head of this file). No other thread stores the number, so a load and a
        // store do instead of a read-modify-write.
        let number = self.number.load(Ordering::Relaxed);
        self.number.store(number.wrapping_add(1), Ordering::Relaxed);
    }

    /// The number of the call, if the call is in progress. `None` if it has ended.
    fn in_progress(&self) -> Option<u64> {
        // ORDERING: Relaxed, because the watcher thread needs no order: it looks once a second, and a store becomes
        // visible long before the next look. If it did not, a report would be missing, or would have the names of
        // another call.
        let number = self.number.load(Ordering::Relaxed);
        (number % 2 == 1).then_some(number)
    }

    /// The names in the report of the call. `None` only if no names were registered, because no purgatory was made.
    fn names(&self) -> Option<Names> {
        // ORDERING: Relaxed, as in `in_progress`.
        let number = self.names.load(Ordering::Relaxed);
        let registered = REGISTERED.lock();
        let mut all = registered.iter();
        all.find_map(|(names, known)| (*known == number).then(|| names.clone()))
    }
}

impl Place {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            calls: [const { Call::new() }; DEPTH],
        }
    }

    fn take(&self) -> bool {
        // ORDERING: Relaxed. The exchange gives a place to only one thread at a time. The thread that takes the place
        // of an ended thread need not see all that the ended thread has written there: at worst, one report is missing
        // or has the names of an earlier call.
        !self.taken.load(Ordering::Relaxed)
            && self
                .taken
                .compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// A thread's own record of its calls: its place, if there was one left, and how many calls are in progress.
struct Mine {
    place: Option<&'static Place>,
    depth: Cell<usize>,
}

std::thread_local! {
    static MINE: Mine = {
        start_watcher();
        Mine {
            place: ALL.iter().find(|place| place.take()),
            depth: Cell::new(0),
        }
    };
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // ORDERING: Relaxed. The next thread that takes this place need not see what this thread has written there:
            // at worst, one report is missing or has the names of an earlier call.
            place.taken.store(false, Ordering::Relaxed);
        }
    }
}

/// A call of an operation's code by this thread. The call is in progress until this guard is dropped.
pub(super) struct NotedCall {
    call: Option<&'static Call>,
    /// Keeps the guard from being `Send`: a call ends on the thread on which it began.
    _of_its_thread: PhantomData<*const ()>,
}

impl NotedCall {
    /// Notes a call of an operation. `names` is the number of the names of its purgatory. Calls by the library's own
    /// threads are not noted, because these threads may run completions of any length.
    pub(super) fn begin(names: NamesNumber) -> Self {
        let call = (!Worker::is_current()).then(|| Self::note(names));
        Self {
            call: call.flatten(),
            _of_its_thread: PhantomData,
        }
    }

    /// Notes a call in this thread's [`Place`] (its record of calls). `None` if the call is not noted: the thread has
    /// no place or too many nested calls, or it is ending and its thread-locals are gone.
    fn note(names: NamesNumber) -> Option<&'static Call> {
        let noted = MINE.try_with(|mine| {
            let depth = mine.depth.get();
            let call = mine.place?.calls.get(depth)?;
            mine.depth.set(depth + 1);
            // ORDERING: Relaxed: noting calls must create no happens-before between the calls of two threads, which
            // would hide races from the tests (see the head of this file).
            call.names.store(names.0, Ordering::Relaxed);
            call.turn();
            Some(call)
        });
        let noted = noted.ok().flatten()?;
        wake_watcher();
        Some(noted)
    }
}

impl Drop for NotedCall {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            call.turn();
            // Ignore the error: the thread is ending, and its thread-locals are gone.
            let _ = MINE.try_with(|mine| mine.depth.set(mine.depth.get() - 1));
        }
    }
}

/// Set by the watcher thread when it is about to sleep until it is woken. Cleared by the thread that wakes the watcher,
/// or by the watcher itself when it finds a call in progress.
static ASLEEP: AtomicBool = AtomicBool::new(false);
static WATCHER: OnceLock<Thread> = OnceLock::new();

/// Starts the watcher, unless it was started before. If the system refuses the thread, there are no reports.
fn start_watcher() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed. The swap lets only one thread start the watcher, and the flag publishes no data.
    if !STARTED.load(Ordering::Relaxed) && !STARTED.swap(true, Ordering::Relaxed) {
        let thread = std::thread::Builder::new().name("stuck-calls".into());
        let _ = thread.spawn(watch);
    }
}

fn wake_watcher() {
    // ORDERING: Relaxed: noting calls must create no happens-before between the calls of two threads. A release build
    // does not have it, so it would hide races from the tests (see the head of this file).
    //
    // If this thread finds `ASLEEP` clear, the watcher is awake, and this thread need not wake it. Before the watcher
    // sleeps, it sets `ASLEEP`, waits a second, and looks once more. That look finds the call of this thread.
    if ASLEEP.load(Ordering::Relaxed) {
        ASLEEP.store(false, Ordering::Relaxed);
        if let Some(watcher) = WATCHER.get() {
            watcher.unpark();
        }
    }
}

/// A call is reported this many looks after the look that has found it first. [`LIMIT`] has passed by then.
const LOOKS: u64 = LIMIT.as_secs() / LOOK.as_secs();

/// What the watcher knows of the calls of one thread after its last look (it looks at all threads once a second). For
/// each depth of nesting: the number of the call that the last look has found in progress (`None` if it has found
/// none), and the number of looks directly before the last one that have found the same.
type Seen = [(Option<u64>, u64); DEPTH];

/// The main function of the watcher thread.
fn watch() {
    WATCHER.get_or_init(std::thread::current);
    let mut seen = [Seen::default(); PLACES];
    let mut was_idle = false;
    loop {
        let is_idle = look(&mut seen, report);
        if is_idle && was_idle {
            // ORDERING: Relaxed. A thread that has noted a call reads `ASLEEP`. If the flag is set, the thread wakes
            // this one. If the flag is clear, either another thread is waking this one, or the call was noted long
            // before the call of `look` above, which then finds it (see `wake_watcher`).
            while ASLEEP.load(Ordering::Relaxed) {
                std::thread::park();
            }
        }
        was_idle = is_idle;
        ASLEEP.store(is_idle, Ordering::Relaxed);
        std::thread::sleep(LOOK);
    }
}

/// Looks at the noted calls of all threads. The watcher thread does so once a second, and `seen` has what the earlier
/// looks have found. Calls `report` with each call that this look and exactly [`LOOKS`] looks directly before it have
/// found in progress. So a call that does not return is reported once. Returns `true` if no call is in progress.
fn look(seen: &mut [Seen; PLACES], mut report: impl FnMut(&Call)) -> bool {
    let mut is_idle = true;
    let seen = seen.iter_mut().flatten();
    for (call, (last, looks)) in ALL.iter().flat_map(|place| &place.calls).zip(seen) {
        let now = call.in_progress();
        *looks = if now == *last {
            looks.saturating_add(1)
        } else {
            0
        };
        *last = now;
        if now.is_some() {
            is_idle = false;
            if *looks == LOOKS {
                report(call);
            }
        }
    }
    is_idle
}

fn report(call: &Call) {
    // Clone the names before stderr is written: no lock is held meanwhile.
    let Some(names) = call.names() else {
        return;
    };
    // Ignore the error: stderr may be closed.
    let _ = writeln!(
        std::io::stderr(),
        "request-purgatory: in the purgatory `{}`, a call of `{}` (keys `{}`) has run for {} s. Does its `try_complete` \
         (of a wait: its predicate) or `on_complete` wait for a lock that the caller of the check holds? (Only debug \
         builds report this.)",
        names.purgatory,
        names.operation,
        names.key,
        LIMIT.as_secs()
    );
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::array;
    use std::sync::mpsc::channel;
    use std::thread;

    /// What [`look`] reports of the purgatory `name`, at each of five looks. Each report calls `meanwhile`.
    fn reports(name: &str, mut meanwhile: impl FnMut()) -> [Vec<&'static str>; 5] {
        let mut seen = [Seen::default(); PLACES];
        array::from_fn(|_| {
            let mut reports = Vec::new();
            let is_idle = look(&mut seen, |call| {
                let names = call.names().expect("registered");
                if names.purgatory == name {
                    reports.push(names.operation);
                    meanwhile();
                }
            });
            assert!(!is_idle);
            reports
        })
    }

    /// A thread can note the beginning and the end of a call while the watcher thread looks at all noted calls, to find
    /// those that do not return. So a calling thread never waits for the watcher thread, and the watcher thread creates
    /// no order between the calls of two threads.
    #[test]
    fn g03_calls_begin_and_end_while_a_look_is_in_progress() {
        let _call = NotedCall::begin(NamesNumber::register::<u8, u16>("stuck"));
        let reports = reports("stuck", || {
            let (ended, end) = channel();
            let other = thread::spawn(move || {
                drop(NotedCall::begin(NamesNumber::register::<u32, u64>("other")));
                ended.send(())
            });
            end.recv_timeout(Duration::from_secs(30))
                .expect("a call waits for the look");
            other.join().expect("no panic").expect("received");
        });
        assert_eq!(reports, [vec![], vec![], vec!["u8"], vec![], vec![]]);
    }

    /// A nested call is noted separately from the outer call, and ends separately. A call that is nested too deep is
    /// not noted.
    #[test]
    fn g03_a_call_inside_of_another_is_noted_to_a_depth() {
        let outer = NotedCall::begin(NamesNumber::register::<u8, u16>("deep"));
        drop(NotedCall::begin(NamesNumber::register::<u32, u16>("deep")));
        let _inner = NotedCall::begin(NamesNumber::register::<u64, u16>("deep"));
        let deeper = NotedCall::begin(NamesNumber::register::<u128, u16>("deep"));
        let reports = reports("deep", || ());
        assert_eq!(reports[LOOKS as usize], ["u8", "u64"]);
        assert!(outer.call.is_some() && deeper.call.is_none());
    }

    /// The place of a thread that has ended is taken again: there need be only as many places as there are threads at
    /// the same time.
    #[test]
    fn the_place_of_a_thread_that_has_ended_is_taken_again() {
        let names = NamesNumber::register::<u8, u16>("many");
        for thread in 0..2 * PLACES {
            let is_noted = thread::spawn(move || NotedCall::begin(names).call.is_some());
            assert!(is_noted.join().expect("no panic"), "{thread}");
        }
    }

    /// Purgatories with the same names share a number, so that the map does not grow with each of them.
    #[test]
    fn the_same_names_have_the_same_number() {
        let [first, again] = [(); 2].map(|()| NamesNumber::register::<u8, u16>("same"));
        let others = [
            NamesNumber::register::<u8, u16>("other"),
            NamesNumber::register::<u32, u16>("same"),
            NamesNumber::register::<u8, u32>("same"),
        ];
        assert_eq!(first.0, again.0);
        assert!(others.iter().all(|other| other.0 != first.0));
    }
}
