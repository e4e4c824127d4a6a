//! What a thread sees that learns of an ending: all that the thread which asked for it had written before. (`word.rs`
//! models the same for what the holder does to the operation.)

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use loom_tests::{assert_empty, bounded};
use request_purgatory::{
    Completion, DelayedOperation, Handle, Purgatory, threads::Dispatch, threads::Reaper,
    time::ManualClock,
};
use std::sync::Arc;
use std::time::Duration;

/// Written once before an ending is asked for. Relaxed: only the library's own ordering makes it visible.
#[derive(Default)]
struct Note {
    written: AtomicBool,
    completed: AtomicUsize,
    /// Touched by the asking thread and in the middle of an examination, so that loom tries the one within the other.
    steps: AtomicUsize,
}

impl Note {
    fn write(&self) {
        self.written.store(true, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn assert_seen(&self) {
        assert!(self.written.load(Ordering::Relaxed), "the note is not seen");
    }
}

/// Ends only when it is told to, and then must see the note.
struct Reader(Arc<Note>);

impl DelayedOperation for Reader {
    type Key = u64;

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn try_complete(&mut self) -> bool {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn on_complete(self, _: Completion) {
        self.0.assert_seen();
        self.0.completed.fetch_add(1, Ordering::Relaxed);
    }
}

fn park(note: &Arc<Note>) -> (Purgatory<Reader>, Handle<Reader>) {
    let purgatory = Purgatory::builder("model")
        .clock(ManualClock::new())
        .reaper(Reaper::Manual)
        .dispatch(Dispatch::Inline)
        .build()
        .expect("the settings are sound");
    let admission = purgatory.try_complete_else_watch(Reader(note.clone()), [1]);
    let handle = admission.expect("it may park").into_handle();
    (purgatory, handle.expect("it parked"))
}

/// Another thread writes the note and asks for the ending while this one examines the operation.
fn the_completion_sees_the_note(
    ask: impl Fn(&Handle<Reader>) -> Option<Reader> + Copy + Send + Sync + 'static,
) {
    bounded(move || {
        let note = Arc::<Note>::default();
        let (purgatory, handle) = park(&note);
        let asker = {
            let (note, handle) = (note.clone(), handle.clone());
            thread::spawn(move || {
                note.write();
                ask(&handle).is_some()
            })
        };
        handle.check();
        let taken_back = usize::from(asker.join().unwrap());
        assert_eq!(note.completed.load(Ordering::Relaxed) + taken_back, 1);
        assert_empty(&purgatory);
    });
}

/// Catches: a holder that finds the mark by a load without Acquire, or by a failed exchange without.
#[test]
fn g05_the_completion_sees_what_the_forcing_thread_wrote() {
    the_completion_sees_the_note(|handle| {
        handle.force_complete();
        None
    });
}

/// Catches: the same.
#[test]
fn g05_the_completion_sees_what_the_cancelling_thread_wrote() {
    the_completion_sees_the_note(Handle::cancel);
}

/// This thread writes the note and ends the operation. `learns` says whether another thread found that it had ended, or
/// was about to. (That one is the spawned thread: of a first thread that only loads, loom tries one execution.)
fn the_late_thread_sees_the_note(
    learns: impl Fn(&Handle<Reader>) -> bool + Copy + Send + Sync + 'static,
) {
    bounded(move || {
        let note = Arc::<Note>::default();
        let (purgatory, handle) = park(&note);
        let late = {
            let (note, handle) = (note.clone(), handle.clone());
            thread::spawn(move || {
                if learns(&handle) {
                    note.assert_seen();
                }
            })
        };
        note.write();
        handle.force_complete();
        late.join().unwrap();
        assert_empty(&purgatory);
    });
}

/// Catches: a `cancel` that returns `None` for what it saw without Acquire.
#[test]
fn g05_a_cancel_that_returns_nothing_sees_what_the_ending_thread_wrote() {
    the_late_thread_sees_the_note(|handle| handle.cancel().is_none());
}

/// Catches: an `is_parked` without Acquire.
#[test]
fn g05_a_thread_that_finds_it_not_parked_sees_what_the_ending_thread_wrote() {
    the_late_thread_sees_the_note(|handle| !handle.is_parked());
}
