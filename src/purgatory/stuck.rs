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
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::Write;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread::Thread;
use std::time::Duration;

/// A call that lasts longer than this is reported.
const LIMIT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_secs(1);

/// The maximum number of threads whose calls are noted at the same time. Calls of further threads are not noted.
const PLACES: usize = 1_024;

static ALL: [Place; PLACES] = [const {
    Place {
        taken: AtomicBool::new(false),
        number: AtomicU64::new(0),
        names: AtomicU64::new(0),
    }
}; PLACES];

/// The place where one thread notes its calls of an operation's code, so that the watcher thread can find them. Calls
/// are nested if the code of an operation parks another operation: then only the outermost call is noted.
struct Place {
    taken: AtomicBool,
    /// Odd while a call is in progress: the beginning and the end of each noted call add one.
    number: AtomicU64,
    /// The [number of the names](NamesNumber) in the report of the call.
    names: AtomicU64,
}

/// The names of all purgatories that were ever made, of their operations and their keys, as a report has them. Names
/// stay when their purgatory goes, because a report may need them later: a debug build keeps each distinct name.
static REGISTERED: LazyLock<Mutex<HashMap<NamesNumber, String>>> = LazyLock::new(Mutex::default);

/// The number of a purgatory's names: their hash, so that purgatories with the same names share a number. Each call
/// notes only this number, because it can take no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NamesNumber(u64);

impl NamesNumber {
    /// Registers the names of a purgatory that is being made, and of its operations `Op` and their keys `K`. Takes a
    /// lock of the whole process.
    pub(super) fn register<Op, K>(purgatory: &str) -> Self {
        let (operation, key) = (type_name::<Op>(), type_name::<K>());
        let names =
            format!("in the purgatory `{purgatory}`, a call of `{operation}` (keys `{key}`)");
        let number = Self(BuildHasherDefault::<DefaultHasher>::default().hash_one(&names));
        REGISTERED.lock().insert(number, names);
        number
    }
}

impl Place {
    /// Takes the place for the calling thread. Returns `false` if another thread has it.
    fn take(&self) -> bool {
        // ORDERING: Relaxed. The swap gives a place to only one thread at a time. The thread that takes the place of an
        // ended thread need not see all that the ended thread has written there: at worst, one report is missing or has
        // the names of an earlier call.
        !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Relaxed)
    }

    /// The number of the call in progress. `None` if no call is in progress.
    fn in_progress(&self) -> Option<u64> {
        // ORDERING: Relaxed, because the watcher thread needs no order: it looks once a second, and a store becomes
        // visible long before the next look. If it did not, a report would be missing, or would have the names of
        // another call. The thread that has this place reads what it has written itself.
        let number = self.number.load(Ordering::Relaxed);
        (number % 2 == 1).then_some(number)
    }

    /// Notes the beginning or the end of a call: adds one to `number`, which is odd while a call is in progress. Called
    /// only by the thread that has taken this place.
    fn turn(&self) {
        // ORDERING: Relaxed: noting calls must create no happens-before between the calls of two threads, which would
        // hide races from the tests (see the head of this file). No other thread stores the number, so a load and a
        // store do instead of a read-modify-write.
        let number = self.number.load(Ordering::Relaxed);
        self.number.store(number.wrapping_add(1), Ordering::Relaxed);
    }
}

/// The place of this thread, if there was one left. The drop gives it back.
struct Mine(Option<&'static Place>);

std::thread_local! {
    static MINE: Mine = {
        start_watcher();
        Mine(ALL.iter().find(|place| place.take()))
    };
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            // ORDERING: Relaxed. The next thread that takes this place need not see what this thread has written there:
            // at worst, one report is missing or has the names of an earlier call.
            place.taken.store(false, Ordering::Relaxed);
        }
    }
}

/// A call of an operation's code by this thread. The call is in progress until this guard is dropped.
pub(super) struct NotedCall {
    /// The place in which the call is noted. `None` if the call is not noted: it is nested, it is made by a thread of
    /// the library, there was no place left, or the thread is ending and its thread-locals are gone.
    place: Option<&'static Place>,
    /// Keeps the guard from being `Send`: a call ends on the thread on which it began.
    _of_its_thread: PhantomData<*const ()>,
}

impl NotedCall {
    /// Notes a call of an operation. `names` is the number of the names of its purgatory. Calls by the library's own
    /// threads are not noted, because these threads may run completions of any length.
    pub(super) fn begin(names: NamesNumber) -> Self {
        let mut place = None;
        if !Worker::is_current() {
            place = MINE.try_with(|mine| mine.0).ok().flatten();
        }
        let place = place.filter(|place| place.in_progress().is_none());
        if let Some(place) = place {
            // ORDERING: Relaxed: noting calls must create no happens-before between the calls of two threads, which
            // would hide races from the tests (see the head of this file).
            place.names.store(names.0, Ordering::Relaxed);
            place.turn();
            wake_watcher();
        }
        Self {
            place,
            _of_its_thread: PhantomData,
        }
    }
}

impl Drop for NotedCall {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.turn();
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

/// What the watcher knows of one place after its last look (it looks at all places once a second): the number of the
/// call that the last look has found in progress (`None` if it has found none), and the number of looks directly before
/// the last one that have found the same.
type Seen = (Option<u64>, u64);

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
/// looks have found. Calls `report` with the names of each call that this look and exactly [`LOOKS`] looks directly
/// before it have found in progress. So a call that does not return is reported once. Returns `true` if no call is in
/// progress.
fn look(seen: &mut [Seen; PLACES], mut report: impl FnMut(NamesNumber)) -> bool {
    let mut is_idle = true;
    for (place, (last, looks)) in ALL.iter().zip(seen) {
        let now = place.in_progress();
        *looks = if now == *last { *looks + 1 } else { 0 };
        *last = now;
        if now.is_some() {
            is_idle = false;
            if *looks == LOOKS {
                // ORDERING: Relaxed, as in `in_progress`.
                report(NamesNumber(place.names.load(Ordering::Relaxed)));
            }
        }
    }
    is_idle
}

fn report(names: NamesNumber) {
    // Clone the names before stderr is written: no lock is held meanwhile.
    let Some(names) = REGISTERED.lock().get(&names).cloned() else {
        return;
    };
    // Ignore the error: stderr may be closed.
    let _ = writeln!(
        std::io::stderr(),
        "request-purgatory: {names} has run for {} s. Does its `try_complete` (of a wait: its predicate) or \
         `on_complete` wait for a lock that the caller of the check holds? (Only debug builds report this.)",
        LIMIT.as_secs()
    );
}

#[cfg(all(test, not(request_purgatory_loom)))]
mod tests {
    use super::*;
    use std::array;
    use std::sync::mpsc::channel;
    use std::thread;

    /// Which of the calls with these names each of five looks reports. Each report calls `meanwhile`.
    fn reports(names: &[NamesNumber], mut meanwhile: impl FnMut()) -> [Vec<NamesNumber>; 5] {
        let mut seen = [Seen::default(); PLACES];
        array::from_fn(|_| {
            let mut reports = Vec::new();
            let is_idle = look(&mut seen, |reported| {
                if names.contains(&reported) {
                    reports.push(reported);
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
        let names = NamesNumber::register::<u8, u16>("stuck");
        let _call = NotedCall::begin(names);
        let reports = reports(&[names], || {
            let (ended, end) = channel();
            let other = thread::spawn(move || {
                drop(NotedCall::begin(NamesNumber::register::<u32, u64>("other")));
                ended.send(())
            });
            end.recv_timeout(Duration::from_secs(30))
                .expect("a call waits for the look");
            other.join().expect("no panic").expect("received");
        });
        assert_eq!(reports, [vec![], vec![], vec![names], vec![], vec![]]);
    }

    /// Of nested calls, the outermost one is noted, and its end is the end of the outermost one.
    #[test]
    fn g03_of_nested_calls_the_outermost_is_noted() {
        let names = [
            NamesNumber::register::<u8, u16>("nested"),
            NamesNumber::register::<u32, u16>("nested"),
        ];
        let outer = NotedCall::begin(names[0]);
        let inner = NotedCall::begin(names[1]);
        assert!(outer.place.is_some() && inner.place.is_none());
        drop(inner);
        let reports = reports(&names, || ());
        assert_eq!(reports[LOOKS as usize], names[..1]);
        drop(outer);
        assert!(NotedCall::begin(names[1]).place.is_some());
    }

    /// The place of a thread that has ended is taken again: there need be only as many places as there are threads at
    /// the same time.
    #[test]
    fn the_place_of_a_thread_that_has_ended_is_taken_again() {
        let names = NamesNumber::register::<u8, u16>("many");
        for thread in 0..2 * PLACES {
            let is_noted = thread::spawn(move || NotedCall::begin(names).place.is_some());
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
        assert_eq!(first, again);
        assert!(!others.contains(&first));
    }
}
