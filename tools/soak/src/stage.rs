//! One purgatory, all that is known about it, and the operations that wait in it: a stage has handles to them, and each
//! of them tells its stage what it goes through.

mod helpers;

pub(crate) use helpers::Helpers;

use crate::key::{BOMB, Key, OFFSETS};
use crate::ledger::{Accounts, Count, Ending, Ledger};
use crate::misbehaviour::{At, Misbehaviour};
use crate::panics::{self, lock};
use crate::plan::Plan;
use crate::record::{NEVER, Record};
use fastrand::Rng;
use request_purgatory::{
    Completion, DelayedOperation, Handle, Purgatory, purgatory::WeakRef, time::Clock,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

const BOARD: usize = 1024;
const SHELVES: usize = 16;
/// An expiry that is later than this is taken for one that was forgotten.
const TOO_LATE: Duration = Duration::from_secs(10);
/// Something worth dropping: a lost operation shows in the memory.
const PAYLOAD: usize = 256;

/// A parked operation that any thread may act on.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) handle: Handle<Operation>,
    pub(crate) record: Arc<Record>,
}

/// Records of one part of the operations; what has ended is thrown out now and then.
#[derive(Debug, Default)]
struct Shelf {
    records: Vec<Arc<Record>>,
    clean_at: usize,
}

/// Makes calls from inside a callback of an operation of this depth, at random from this seed.
pub(crate) type Reenter = fn(&Arc<Stage>, u64, u32);

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) ledger: Arc<Ledger>,
    /// Weak, like all that callbacks have: an operation must not own the purgatory it waits in.
    purgatory: OnceLock<WeakRef<Purgatory<Operation>>>,
    neighbour: OnceLock<Weak<Stage>>,
    reenter: Reenter,
    clock: Instant,
    offsets: Vec<AtomicU64>,
    board: Vec<Mutex<Option<Entry>>>,
    shelves: Vec<Mutex<Shelf>>,
    /// A lock of the user's: taken in callbacks, and held by others while they call `check_later`.
    pub(crate) door: Mutex<()>,
    pub(crate) calls: Count,
    shutdown_claimed: AtomicBool,
    shutdown_began: AtomicU64,
    pub(crate) shutdown_over: AtomicBool,
}

impl Stage {
    /// Its purgatory comes with [`Helpers::start`].
    pub(crate) fn new(plan: Plan, ledger: &Arc<Ledger>, reenter: Reenter) -> Arc<Self> {
        Arc::new(Self {
            accounts: Arc::default(),
            ledger: ledger.clone(),
            purgatory: OnceLock::new(),
            neighbour: OnceLock::new(),
            reenter,
            clock: Instant::now(),
            offsets: (0..OFFSETS).map(|_| AtomicU64::new(0)).collect(),
            board: (0..BOARD).map(|_| Mutex::new(None)).collect(),
            shelves: (0..SHELVES).map(|_| Mutex::default()).collect(),
            door: Mutex::new(()),
            calls: Count::default(),
            shutdown_claimed: AtomicBool::new(false),
            shutdown_began: AtomicU64::new(NEVER),
            shutdown_over: AtomicBool::new(false),
            plan,
        })
    }

    pub(crate) fn purgatory(&self) -> Option<Purgatory<Operation>> {
        self.purgatory.get()?.upgrade()
    }

    /// Callbacks of this stage work on `other` too.
    pub(crate) fn introduce(&self, other: &Arc<Stage>) {
        let _ = self.neighbour.set(Arc::downgrade(other));
    }

    pub(crate) fn neighbour(&self) -> Option<Arc<Stage>> {
        self.neighbour.get()?.upgrade()
    }

    /// Nanoseconds on the purgatory's clock.
    pub(crate) fn now(&self) -> u64 {
        nanos(self.clock.now().since_origin())
    }

    /// When an operation expires at the earliest that is to wait for `timeout` from now.
    pub(crate) fn deadline(&self, timeout: Duration) -> u64 {
        match timeout.min(self.plan.max_timeout) {
            Duration::MAX => NEVER,
            timeout => self.now().saturating_add(nanos(timeout)),
        }
    }

    pub(crate) fn offset(&self, key: u32) -> u64 {
        self.offsets[key as usize].load(Ordering::SeqCst)
    }

    /// What a producer does before it checks the key.
    pub(crate) fn append(&self, key: u32) {
        self.offsets[key as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn is_satisfied(&self, record: &Record) -> bool {
        let reached = |(key, target)| self.offset(key) >= target;
        record.is_ready() || record.wait.is_some_and(reached)
    }

    pub(crate) fn remember(&self, record: &Arc<Record>, random: &mut Rng) {
        let mut shelf = lock(&self.shelves[random.usize(..SHELVES)]);
        if shelf.records.len() >= shelf.clean_at {
            shelf.records.retain(|record| record.is_open());
            shelf.clean_at = 2 * shelf.records.len() + 1_000;
        }
        shelf.records.push(record.clone());
    }

    /// Every operation that has not ended.
    pub(crate) fn open(&self) -> Vec<Arc<Record>> {
        let records = |shelf: &Mutex<Shelf>| lock(shelf).records.clone();
        let all = self.shelves.iter().flat_map(records);
        all.filter(|record| record.is_open()).collect()
    }

    /// Puts a handle where others find it; the handle that was there is dropped.
    pub(crate) fn post(&self, entry: Option<Entry>, random: &mut Rng) {
        let place = &self.board[random.usize(..BOARD)];
        let before = std::mem::replace(&mut *lock(place), entry);
        drop(before);
    }

    pub(crate) fn pick(&self, random: &mut Rng) -> Option<Entry> {
        lock(&self.board[random.usize(..BOARD)]).clone()
    }

    pub(crate) fn posted(&self) -> Vec<Entry> {
        let entry = |place: &Mutex<Option<Entry>>| lock(place).clone();
        self.board.iter().filter_map(entry).collect()
    }

    /// An operation expires now.
    pub(crate) fn expired(&self, record: &Record) {
        let now = self.now();
        let deadline = record.deadline();
        if now < deadline {
            let early = Duration::from_nanos(deadline - now);
            self.complain(format!("expired {early:?} before its deadline"), record);
        }
        if record.should_have_ended_before(deadline) {
            self.complain("expired, though ready and checked in time".into(), record);
        }
        let late = Duration::from_nanos(now.saturating_sub(deadline));
        lock(&self.ledger.lateness).saturating_record(late.as_micros() as u64);
        if late > TOO_LATE {
            self.complain(format!("expired {late:?} late"), record);
        }
        if record.answer() {
            self.accounts.missed.add(1);
        }
    }

    /// An operation is ended by the shutdown.
    pub(crate) fn ended_by_shutdown(&self, record: &Record) {
        let began = self.shutdown_began.load(Ordering::SeqCst);
        if began == NEVER {
            self.complain("shut down, although no call asked for that".into(), record);
        }
        if record.should_have_ended_before(began) {
            self.complain("shut down, though ready and checked before".into(), record);
        }
    }

    /// Whether the caller is to shut the purgatory down. True once.
    pub(crate) fn claim_shutdown(&self) -> bool {
        !self.shutdown_claimed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn shut_down(&self) {
        let Some(purgatory) = self.purgatory() else {
            return;
        };
        self.shutdown_begins();
        purgatory.shutdown();
        // Again, now or while another thread is at it: no harm.
        purgatory.shutdown();
        if !self.shutdown_over.swap(true, Ordering::SeqCst) && !purgatory.is_shut_down() {
            self.ledger
                .discrepancy("not shut down after the shutdown".into());
        }
    }

    pub(crate) fn shutdown_begins(&self) {
        self.shutdown_began.fetch_min(self.now(), Ordering::SeqCst);
    }

    pub(crate) fn complain(&self, what: String, record: &Record) {
        self.ledger
            .discrepancy(format!("{what}: {record:?} in {:?}", self.plan));
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// The operation that is parked, checked and ended: it keeps its own record, and misbehaves as decided when it was made.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) record: Arc<Record>,
    stage: Arc<Stage>,
    misbehaviour: Misbehaviour,
    timeout: Duration,
    /// The number of operations that were parked by callbacks of one another before this one.
    depth: u32,
    payload: Box<[u8; PAYLOAD]>,
}

impl Operation {
    pub(crate) fn new(
        record: Arc<Record>,
        stage: &Arc<Stage>,
        misbehaviour: Misbehaviour,
        timeout: Duration,
        depth: u32,
    ) -> Self {
        stage.accounts.made.add(1);
        Self {
            record,
            stage: stage.clone(),
            misbehaviour,
            timeout,
            depth,
            payload: Box::new([depth as u8; PAYLOAD]),
        }
    }

    /// The library has handed it back.
    pub(crate) fn returned(mut self, ending: Ending) {
        self.end(ending);
        // From here on a panic of its destructor would be ours.
        self.misbehaviour = Misbehaviour::calm();
    }

    fn end(&self, ending: Ending) {
        if let Err(earlier) = self.record.end(ending, &self.stage.accounts) {
            let what = format!("ended twice: {earlier:?}, then {ending:?}");
            self.stage.complain(what, &self.record);
        }
    }

    fn enter(&self, hook: &str) {
        self.stage.ledger.heartbeat.add(1);
        if !self.record.enter() {
            let what = format!("{hook} while another hook was running");
            self.stage.complain(what, &self.record);
        }
    }

    fn misbehave(&self, at: At) {
        if self.misbehaviour.locks == Some(at) {
            drop(lock(&self.stage.door));
        }
        match self.misbehaviour.sleeps {
            Some((when, time)) if when == at => sleep(time),
            _ => {}
        }
        match self.misbehaviour.reenters {
            Some((when, seed)) if when == at => (self.stage.reenter)(&self.stage, seed, self.depth),
            _ => {}
        }
    }
}

fn sleep(time: Duration) {
    if time >= Duration::from_millis(1) {
        return std::thread::sleep(time);
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl DelayedOperation for Operation {
    type Key = Key;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.enter("try_complete");
        if !self.record.is_open() {
            let what = "try_complete after the end".to_owned();
            self.stage.complain(what, &self.record);
        }
        let look = self.record.look();
        let reenters =
            matches!(self.misbehaviour.reenters, Some((at, _)) if at == At::Examination(look));
        // What happens while this sleeps must be seen by another examination. But where it calls the library itself, its
        // answer is the last word on what it does there.
        let mut answer = self.stage.is_satisfied(&self.record);
        self.misbehave(At::Examination(look));
        if reenters {
            answer = self.stage.is_satisfied(&self.record);
        }
        self.record.answered(answer);
        self.record.leave();
        if self.misbehaviour.panics == Some(At::Examination(look)) {
            panics::raise(|| {
                self.stage.accounts.panics.add(1);
                // What panics at its first look is not parked yet.
                self.end(match look {
                    1 => Ending::Rejected,
                    _ => Ending::Aborted,
                });
            });
        }
        answer
    }

    fn on_complete(self, completion: Completion) {
        self.enter("on_complete");
        let ending = match completion {
            Completion::Satisfied if self.record.looks() == 1 => Ending::AtOnce,
            Completion::Satisfied => Ending::Completed,
            Completion::Expired => Ending::Expired,
            Completion::Cancelled => Ending::Cancelled,
            Completion::ShutDown => Ending::ShutDown,
            other => panic!("{other:?} is unknown"),
        };
        match ending {
            Ending::Expired => self.stage.expired(&self.record),
            Ending::ShutDown => self.stage.ended_by_shutdown(&self.record),
            _ => {}
        }
        self.end(ending);
        self.misbehave(At::Completion);
        if self.misbehaviour.shuts_down {
            self.stage.shut_down();
        }
        self.record.leave();
        if self.misbehaviour.panics == Some(At::Completion) {
            panics::raise(|| self.stage.accounts.panics.add(1));
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        std::hint::black_box(&self.payload);
        if self.record.is_open() && self.record.keys.contains(&BOMB) {
            // Its key has panicked when the operation had a slot already.
            self.end(Ending::Aborted);
        }
        if self.record.is_open() {
            let what = "dropped without an ending".to_owned();
            self.stage.complain(what, &self.record);
        }
        self.stage.accounts.dropped.add(1);
        if self.misbehaviour.panics == Some(At::Drop) {
            panics::raise(|| self.stage.accounts.panics.add(1));
        }
    }
}
