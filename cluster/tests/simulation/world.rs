//! Virtual time: what happens, one event after the other, and how long everything takes.

use crate::clients::{Answer, Client, Woken};
use crate::store::{KEYS, Store};
use fastrand::Rng;
use request_purgatory_cluster::model::{Next, Rules, Session, Table, Tell, Ticket, attach, pause};
use request_purgatory_cluster::request_purgatory::{
    Waits, threads::Dispatch, threads::Reaper, time::ManualClock,
};
use request_purgatory_cluster::{Change, Config, Epoch, Reading};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: usize = 6;
/// Nothing is committed from then on, or from a rollback on.
const QUIET: Duration = Duration::from_millis(4_000);
/// What is pending then, is lost.
const END: Duration = Duration::from_millis(8_000);
/// From then on, a session that hears nothing must have been replaced.
const LATE_PART: Duration = Duration::from_millis(3_200);
/// Later than any message and read takes.
const LATE: Duration = Duration::from_millis(100);

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub audit: Duration,
    /// The longest pause between two commits, in milliseconds.
    pub pause: u64,
    /// How long the feed takes to watch, or to end that, at the most: milliseconds.
    pub watch: u64,
    /// A wait that ends later than this after its event is lost.
    pub bound: Duration,
    /// Which part of the messages is lost.
    pub loss: f64,
    /// How much later than `watch` returns messages begin to arrive, at the most.
    pub late_interest: Duration,
    pub cuts: bool,
    /// Within these milliseconds.
    pub flushes: Option<(u64, u64)>,
    pub rolls_back: bool,
    /// When the first session falls silent.
    pub mutes_at: Option<Duration>,
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub answered: u64,
    pub lost: u64,
    pub late: u64,
    pub late_at_end: u64,
    pub resets: u64,
    pub wrong: u64,
    pub sessions: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.lost += other.lost;
        self.late += other.late;
        self.late_at_end += other.late_at_end;
        self.resets += other.resets;
        self.wrong += other.wrong;
        self.sessions += other.sessions;
    }
}

enum Event {
    Commit,
    Begin(usize),
    Open(Epoch),
    /// The keys are heard of from now on (or not any more), in this session.
    Effective(u64, Vec<usize>, bool),
    /// The feed has done what it was told.
    Told(u64, Option<Vec<usize>>),
    Served(u64, Ticket<usize>),
    Read(u64, Ticket<usize>, Reading),
    Message(u64, Change<usize>),
    Cut,
    Flush,
    RollBack,
    Tick,
}

/// The connection of one session, as the engine sees it.
struct Connection {
    number: u64,
    session: Session<usize>,
    heard: [bool; KEYS],
    is_telling: bool,
}

pub struct World {
    now: Duration,
    random: Rng,
    scenario: Scenario,
    config: Config,
    /// When each happens, and its place among all events.
    due: BinaryHeap<Reverse<(Duration, usize)>>,
    events: Vec<Option<Event>>,
    store: Store,
    table: Arc<Table<usize>>,
    waits: Waits<usize>,
    clock: ManualClock,
    connection: Option<Connection>,
    sessions: u64,
    clients: Vec<Client>,
    woken: Arc<Woken>,
    next_tick: Duration,
    /// Nothing is committed from then on.
    quiet: Duration,
    outcome: Outcome,
}

impl World {
    pub fn new(seed: u64, scenario: Scenario, rules: Rules) -> Self {
        fastrand::seed(seed);
        let config = Config {
            audit: scenario.audit,
            linger: Duration::from_millis(15),
            settle: Duration::from_millis(50),
            read_batch: 2,
            rules,
            ..Config::default()
        };
        let clock = ManualClock::new();
        let waits = Waits::builder("simulation")
            .clock(clock.clone())
            .reaper(Reaper::Manual)
            .dispatch(Dispatch::Inline)
            .build()
            .expect("the settings are sound");
        let table = Arc::new(Table::new(config.max_keys, rules, || {}));
        attach(&table, &waits);
        let (store, woken) = (Store::new(), Arc::<Woken>::default());
        let clients = (0..CLIENTS).map(|client| Client::new(client, &store, &woken));
        Self {
            now: Duration::ZERO,
            random: Rng::with_seed(seed),
            scenario,
            config,
            due: BinaryHeap::new(),
            events: Vec::new(),
            clients: clients.collect(),
            store,
            table,
            waits,
            clock,
            connection: None,
            sessions: 0,
            woken,
            next_tick: Duration::MAX,
            quiet: QUIET,
            outcome: Outcome::default(),
        }
    }

    pub fn run(mut self) -> Outcome {
        self.after(0..=5, Event::Open(self.store.epoch));
        self.after(0..=40, Event::Commit);
        for client in 0..CLIENTS {
            self.after(0..=30, Event::Begin(client));
        }
        if self.scenario.cuts {
            for _ in 0..4 {
                self.after(200..=3_900, Event::Cut);
            }
        }
        if let Some((from, to)) = self.scenario.flushes {
            self.after(from..=to, Event::Flush);
        }
        if self.scenario.rolls_back {
            self.after(1_000..=3_000, Event::RollBack);
        }
        while let Some(Reverse((at, number))) = self.due.pop() {
            if at > END {
                break;
            }
            self.clock.advance(at - self.now);
            self.now = at;
            if let Some(event) = self.events[number].take() {
                self.happen(event);
                self.pump();
                self.answer();
            }
        }
        let lost = self
            .clients
            .iter()
            .filter(|client| client.is_lost(&self.store));
        self.outcome.lost += lost.count() as u64;
        self.outcome.sessions = self.sessions;
        self.outcome
    }

    /// Lets `event` happen this many milliseconds from now, to the microsecond by chance.
    fn after(&mut self, millis: std::ops::RangeInclusive<u64>, event: Event) -> Duration {
        let micros = self
            .random
            .u64(millis.start() * 1_000..=millis.end() * 1_000);
        let at = self.now + Duration::from_micros(micros);
        self.at(at, event);
        at
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.due.push(Reverse((at, self.events.len())));
        self.events.push(Some(event));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Commit => {
                let key = self.random.usize(..KEYS);
                self.commit(key);
                if self.now < self.quiet {
                    self.after(0..=self.scenario.pause, Event::Commit);
                }
            }
            Event::Begin(client) => {
                let key = self.random.usize(..KEYS);
                self.clients[client].begin(key, &self.table, &self.waits, self.now);
                self.answer_one(client);
            }
            Event::Open(epoch) => {
                self.sessions += 1;
                let is_exact = self.scenario.late_interest.is_zero();
                let table = self.table.clone();
                self.connection = Some(Connection {
                    number: self.sessions,
                    session: Session::begin(table, &self.config, epoch, is_exact, self.now),
                    heard: [false; KEYS],
                    is_telling: false,
                });
            }
            Event::Effective(session, keys, heard) => {
                if let Some(connection) = self.current(session) {
                    keys.iter().for_each(|&key| connection.heard[key] = heard);
                }
            }
            Event::Told(session, watched) => {
                let now = self.now;
                if let Some(connection) = self.current(session) {
                    connection.is_telling = false;
                    if let Some(keys) = watched {
                        connection.session.watched(keys, now);
                    }
                }
            }
            Event::Served(session, ticket) => {
                let reading = self.store.read(&ticket.keys);
                self.after(0..=6, Event::Read(session, ticket, reading));
            }
            Event::Read(session, ticket, reading) => {
                let now = self.now;
                let doubt = self
                    .current(session)
                    .and_then(|it| it.session.read(ticket, &reading, now).err());
                if doubt.is_some() {
                    self.end_session();
                }
            }
            Event::Message(session, change) => {
                let doubt = self
                    .current(session)
                    .and_then(|it| it.session.heard(&[change]).err());
                if doubt.is_some() {
                    self.end_session();
                }
            }
            Event::Cut => {
                if self.connection.is_some() {
                    self.end_session();
                }
            }
            Event::Flush => self.store.flush(self.now),
            Event::RollBack => {
                // The engine that had the newer copy is gone, and its connections with it.
                let lag = Duration::from_millis(self.random.u64(20..200));
                self.store.roll_back(self.now.saturating_sub(lag), self.now);
                // So that no new commit hides what was lost.
                self.quiet = self.now + Duration::from_millis(50);
                if self.connection.is_some() {
                    self.end_session();
                }
            }
            Event::Tick => self.next_tick = Duration::MAX,
        }
    }

    fn current(&mut self, session: u64) -> Option<&mut Connection> {
        self.connection.as_mut().filter(|it| it.number == session)
    }

    fn commit(&mut self, key: usize) {
        let version = self.store.commit(key, self.now);
        let Some(connection) = &self.connection else {
            return;
        };
        let number = connection.number;
        let is_mute = number == 1 && self.scenario.mutes_at.is_some_and(|at| at <= self.now);
        if connection.heard[key] && !is_mute && self.random.f64() >= self.scenario.loss {
            let change = Change {
                key,
                version,
                epoch: Some(self.store.epoch),
            };
            // Each takes its own time, so they arrive in disorder; some twice.
            if self.random.u8(..) < 25 {
                self.after(1..=20, Event::Message(number, change.clone()));
            }
            self.after(1..=20, Event::Message(number, change));
        }
    }

    fn end_session(&mut self) {
        self.connection = None;
        // The epoch is read as the last step of opening one.
        let pause = pause(&self.config, 0).as_millis() as u64;
        let opens = self.after(pause..=pause + 10, Event::Tick);
        self.at(opens, Event::Open(self.store.epoch));
    }

    /// Does what the session asks for.
    fn pump(&mut self) {
        let now = self.now;
        let mut next = None::<Duration>;
        let mut broken = false;
        loop {
            let Some(connection) = &mut self.connection else {
                return;
            };
            let number = connection.number;
            if !connection.is_telling {
                match connection.session.next_tell(now) {
                    Next::Do(tell) => {
                        connection.is_telling = true;
                        self.tell(number, tell);
                        continue;
                    }
                    Next::Wait(until) => next = [next, until].into_iter().flatten().min(),
                }
            }
            let Some(connection) = &mut self.connection else {
                return;
            };
            match connection.session.next_read(now) {
                Ok(Next::Do(ticket)) => {
                    self.after(0..=6, Event::Served(number, ticket));
                }
                Ok(Next::Wait(until)) => {
                    next = [next, until].into_iter().flatten().min();
                    break;
                }
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            self.end_session();
        } else if let Some(next) = next.filter(|next| *next < self.next_tick) {
            self.next_tick = next;
            self.at(next.max(now), Event::Tick);
        }
    }

    fn tell(&mut self, session: u64, tell: Tell<usize>) {
        let (keys, watches) = match tell {
            Tell::Watch(keys) => (keys, true),
            Tell::Unwatch(keys) => (keys, false),
        };
        let told = self.after(
            1..=self.scenario.watch,
            Event::Told(session, watches.then(|| keys.clone())),
        );
        let spread = self.scenario.late_interest.as_micros() as u64;
        let on_the_way = self.random.u64(0..=(told - self.now).as_micros() as u64);
        let effective = match watches && spread > 0 {
            true => told + Duration::from_micros(self.random.u64(0..=spread)),
            false => self.now + Duration::from_micros(on_the_way),
        };
        self.at(effective, Event::Effective(session, keys, watches));
    }

    fn answer(&mut self) {
        for client in self.woken.take() {
            self.answer_one(client);
        }
    }

    fn answer_one(&mut self, client: usize) {
        let late = match self.clients[client].poll(&self.store, self.now) {
            Answer::Pending => return,
            Answer::Expired => Duration::MAX,
            Answer::News { late, is_wrong } => {
                self.outcome.wrong += u64::from(is_wrong);
                late
            }
            Answer::Reset { late } => {
                self.outcome.resets += 1;
                late
            }
        };
        self.outcome.answered += 1;
        self.outcome.lost += u64::from(late > self.scenario.bound);
        self.outcome.late += u64::from(late > LATE);
        self.outcome.late_at_end += u64::from(late > LATE && self.now > LATE_PART);
        self.after(0..=30, Event::Begin(client));
    }
}
