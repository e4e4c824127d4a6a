//! G14: chains, of which each link causes the next one. None nests in another, however long the chain is.

use super::scene::{admit, inside, once_checked, park};
use crate::lost_completion::steps::{FIRST_CHECK, hooked_op};
use crate::support::keys::Census;
use crate::support::{Job, NEVER_IN_A_TEST, Op, PATIENCE, Probe, Tally};
use crate::support::{eventually, lock, manual, on_a_stack_of, within};
use request_purgatory::purgatory::Stats;
use request_purgatory::{Completion, Purgatory, threads::Dispatch, time::ManualClock};
use scopeguard::guard;
use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// In KiB. In a build without optimisation two parks take some 60 of them, and now and then the unwinding of a panic, or
/// the first call of a function of a shared library, as much again. A link has 13 bytes.
const STACK: usize = 256;

thread_local!(static IN_A_LINK: Cell<bool> = const { Cell::new(false) });

/// The operation of a link has the number of the link, which is its key.
struct Chain {
    purgatory: Purgatory<Op>,
    clock: ManualClock,
    /// Ends the operation of this number.
    end: End,
    links: u64,
    run: Tally,
    nested: Tally,
}

type Make = fn(&Arc<Chain>, u64) -> Op;
type End = fn(&Arc<Chain>, u64);

impl Chain {
    /// User code that is called when an operation ends.
    fn link(self: &Arc<Self>, number: u64) {
        if IN_A_LINK.replace(true) {
            self.nested.add();
        }
        self.run.add();
        if number + 1 < self.links {
            (self.end)(self, number + 1);
        }
        IN_A_LINK.set(false);
    }
}

fn completing(chain: &Arc<Chain>, number: u64) -> Op {
    let chain = chain.clone();
    Op::new(SECOND).then(move |_| chain.link(number))
}

/// Its examination at the deadline is the link.
fn examined(chain: &Arc<Chain>, number: u64) -> Op {
    let chain = chain.clone();
    once_checked(SECOND, move || chain.link(number))
}

/// The first check panics, and the destructor is the link.
fn aborted(chain: &Arc<Chain>, number: u64) -> Op {
    let chain = chain.clone();
    let link = guard((), move |()| chain.link(number));
    // Without the hook, which would print it.
    let op = once_checked(SECOND, || resume_unwind(Box::new("intended")));
    op.then(move |_| _ = &link)
}

fn force(chain: &Arc<Chain>, number: u64) {
    assert_eq!(chain.purgatory.force_complete_for_key(&number), 1);
}

fn check(chain: &Arc<Chain>, number: u64) {
    assert_eq!(chain.purgatory.check_and_complete(&number), 0);
}

fn drive(chain: &Arc<Chain>, number: u64) {
    chain.clock.advance(2 * SECOND);
    // The others are left to the pass in progress.
    let expired = if number == 0 { chain.links } else { 0 };
    assert_eq!(chain.purgatory.advance() as u64, expired);
}

fn park_ready(chain: &Arc<Chain>, number: u64) {
    let ready = completing(chain, number).when(|| true);
    assert!(admit(&chain.purgatory, ready, [number]).is_none());
}

fn park_and_check(chain: &Arc<Chain>, number: u64) {
    park(&chain.purgatory, aborted(chain, number), [number]);
    check(chain, number);
}

fn park_and_drive(chain: &Arc<Chain>, number: u64) {
    park(&chain.purgatory, completing(chain, number), [number]);
    chain.clock.advance(2 * SECOND);
    assert_eq!(chain.purgatory.advance(), 1);
}

/// Only the first has to be driven: each of the others is completed by its park.
fn park_and_drive_the_first(chain: &Arc<Chain>, number: u64) {
    let ready_but_first = completing(chain, number).when(move || number > 0);
    admit(&chain.purgatory, ready_but_first, [number]);
    if number == 0 {
        chain.clock.advance(2 * SECOND);
        assert_eq!(chain.purgatory.advance(), 1);
    }
}

/// The operations are made first if there is a `make`; otherwise each `end` parks its own.
fn a_chain_does_not_nest(
    what: &str,
    links: u64,
    dispatch: Dispatch,
    make: Option<Make>,
    end: End,
    counted: fn(&Stats) -> u64,
) {
    let case = format!("{what}, {dispatch:?}");
    let (purgatory, clock) = manual(|builder| builder.dispatch(dispatch));
    let chain = Arc::new(Chain {
        purgatory,
        clock,
        end,
        links,
        run: Tally::default(),
        nested: Tally::default(),
    });
    if let Some(make) = make {
        for number in 0..links {
            park(&chain.purgatory, make(&chain, number), [number]);
        }
    }
    let first = chain.clone();
    on_a_stack_of(STACK, move || end(&first, 0));
    eventually("the end of the chain", || chain.run.count() == links);
    assert_eq!(chain.nested.count(), 0, "{case}");
    let stats = chain.purgatory.stats();
    assert_eq!((stats.parked, counted(&stats)), (0, links), "{case}");
    assert_eq!(stats.panicked, stats.aborted, "{case}");
    // The last one may be about to return, on another thread.
    eventually("no completion is left", || {
        chain.purgatory.stats().completions_pending == 0
    });
}

/// The table of links: what causes the next one, which operations are parked before, what ends one of them, and how it
/// is counted.
#[test]
fn g14_a_chain_needs_no_stack_whatever_its_links_are() {
    let completed: fn(&Stats) -> u64 = |stats| stats.completed;
    let at_once: fn(&Stats) -> u64 = |stats| stats.completed_at_once;
    let expired: fn(&Stats) -> u64 = |stats| stats.expired;
    let aborts: fn(&Stats) -> u64 = |stats| stats.aborted;
    let table: [(&str, Option<Make>, End, fn(&Stats) -> u64); 6] = [
        ("completion forces", Some(completing), force, completed),
        ("completion parks", None, park_ready, at_once),
        ("completion drives", None, park_and_drive, expired),
        ("examination drives", Some(examined), drive, expired),
        ("destructor checks", Some(aborted), check, aborts),
        ("destructor parks", None, park_and_check, aborts),
    ];
    for (what, make, end, counted) in table {
        let executor = Dispatch::Executor(Arc::new(|job: Job| job()));
        for dispatch in [Dispatch::Inline, executor] {
            within(PATIENCE, move || {
                a_chain_does_not_nest(what, 20_000, dispatch, make, end, counted);
            });
        }
    }
}

/// What another thread or an executor runs is no callback of the library's caller, and still nothing nests in it.
#[test]
fn g14_a_chain_that_begins_on_a_thread_for_completions_does_not_nest() {
    let spawned = Dispatch::Executor(Arc::new(|job| drop(thread::spawn(job))));
    for dispatch in [Dispatch::OwnThread, spawned] {
        within(PATIENCE, || {
            let end = park_and_drive_the_first;
            let ended = |stats: &Stats| stats.completed_at_once + stats.expired;
            a_chain_does_not_nest("completion parks", 4, dispatch, None, end, ended);
        });
    }
}

/// After the shutdown the thread for completions takes no more: what expires then is completed here, but not in the
/// middle of another completion.
#[test]
fn g14_what_expires_in_a_callback_after_the_shutdown_does_not_nest() {
    within(PATIENCE, || {
        // There is no reaper, but such a thread.
        let (purgatory, clock) = manual(|builder| builder.dispatch(Dispatch::OwnThread));
        let (in_outer, ending) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let expires = inside(&purgatory, move |all| {
            clock.advance(2 * SECOND);
            all.advance();
            all.shutdown();
        });
        let (nests, ended) = (in_outer.clone(), Arc::clone(&ending));
        let inner = once_checked(SECOND, expires).then(move |completion| {
            *lock(&ended) = Some((completion, nests.load(Ordering::SeqCst)));
        });
        let checks = inside(&purgatory, |all| _ = all.check_and_complete(&1));
        let outer = Op::new(NEVER_IN_A_TEST).then(move |_| {
            in_outer.store(true, Ordering::SeqCst);
            checks();
            in_outer.store(false, Ordering::SeqCst);
        });
        park(&purgatory, inner, [1]);
        park(&purgatory, outer, [2]);
        assert_eq!(purgatory.force_complete_for_key(&2), 1);
        assert_eq!(*lock(&ending), Some((Completion::Expired, false)));
    });
}

/// A change that was left for an operation which ended without it: the completion of what its destructor ends waits for
/// the end of the call that drops the change, and nothing is left of it then.
#[test]
fn g14_what_the_destructor_of_a_change_ends_has_gone_when_the_call_returns() {
    within(PATIENCE, || {
        let (other, _clock) = manual(|builder| builder);
        let (census, probe) = (Census::default(), Probe::new());
        let handle = park(&other, probe.op(NEVER_IN_A_TEST), [census.key(1)]);
        let (ending, nested) = (probe.clone(), Arc::new(AtomicBool::new(false)));
        let nests = nested.clone();
        let mut change = Some(guard((), move |()| {
            if handle.force_complete() {
                nests.store(ending.ending().is_some(), Ordering::SeqCst);
            }
        }));
        let (purgatory, _clock) = manual::<u64>(|builder| builder);
        let op = hooked_op(&purgatory, Duration::MAX, move |all, nth| {
            if let Some(change) = change.take_if(|_| nth == FIRST_CHECK) {
                all.force_complete_for_key_with(&1, move |_| _ = &change);
            }
            nth == FIRST_CHECK
        });
        park(&purgatory, op, [1]);
        assert_eq!(purgatory.check_and_complete(&1), 1);
        purgatory.advance();
        assert!(probe.ending().is_some());
        assert!(!nested.load(Ordering::SeqCst), "it nests in the destructor");
        assert_eq!((census.count(), other.stats().panicked), (0, 0));
    });
}
