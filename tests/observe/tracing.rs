//! A subscriber of the `tracing` facade.

use crate::scenario::{Found, LATE, STAY, Scenario, TIMEOUT, assert_the_reaper_goes_on, panics};
use crate::scenario::{listen_for_what_is_not_checked, listener_that_calls_back};
use crate::support::{PATIENCE, Tally, lock, quietly, within};
use request_purgatory::Purgatory;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

type Fields = BTreeMap<&'static str, String>;

/// What was told of one span.
#[derive(Debug, Default, Clone)]
struct Told {
    parent: Option<u64>,
    name: String,
    fields: Fields,
    events: Vec<Fields>,
    /// References that are held to it.
    held: usize,
    closings: usize,
}

/// Writes down what it hears from the library up to a level; spans of the tests' own at any.
struct Notes {
    level: Level,
    spans: Mutex<Vec<Told>>,
    /// Events outside of any span.
    loose: Mutex<Vec<(Level, Fields)>>,
    entered: Mutex<Vec<u64>>,
}

impl Notes {
    fn up_to(level: Level) -> Arc<Self> {
        Arc::new(Self {
            level,
            spans: Mutex::default(),
            loose: Mutex::default(),
            entered: Mutex::default(),
        })
    }

    fn of<R>(&self, id: &Id, note: impl FnOnce(&mut Told) -> R) -> R {
        let place = usize::try_from(id.into_u64() - 1).expect("one of ours");
        note(&mut lock(&self.spans)[place])
    }

    /// The operations' spans. Fails if one is still open, or was closed twice.
    fn closed(&self) -> Vec<Told> {
        let spans = lock(&self.spans).clone().into_iter();
        let operations = spans
            .filter(|span| span.name == "delayed_operation")
            .collect::<Vec<_>>();
        assert!(operations.iter().all(|span| span.closings == 1));
        operations
    }
}

/// Lets `subscriber` hear what this thread does meanwhile.
///
/// While there is just one subscriber in the process, `tracing` asks that of whichever thread comes to a span first,
/// and keeps the answer, which is no where tests run side by side. So there are always more.
fn listen<S: Subscriber + Send + Sync + 'static>(subscriber: S, run: impl FnOnce()) {
    static OTHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| Notes::up_to(Level::ERROR).into()));
    with_default(subscriber, run);
}

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() != "request_purgatory" || *metadata.level() <= self.level
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut told = Told {
            parent: lock(&self.entered).last().copied(),
            name: attributes.metadata().name().to_owned(),
            held: 1,
            ..Told::default()
        };
        attributes.record(&mut Reader(&mut told.fields));
        let mut spans = lock(&self.spans);
        spans.push(told);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.of(span, |told| values.record(&mut Reader(&mut told.fields)));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        assert_eq!(event.metadata().target(), "request_purgatory");
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        match event.parent() {
            Some(span) => self.of(span, |told| told.events.push(fields)),
            None => lock(&self.loose).push((*event.metadata().level(), fields)),
        }
    }

    fn enter(&self, span: &Id) {
        lock(&self.entered).push(span.into_u64());
    }

    fn exit(&self, _: &Id) {
        lock(&self.entered).pop();
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.of(id, |told| told.held += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.of(&id, |told| {
            told.held = told.held.wrapping_sub(1);
            told.closings += usize::from(told.held == 0);
            told.held == 0
        })
    }
}

fn fields<const N: usize>(fields: [(&'static str, &str); N]) -> Fields {
    fields.map(|(name, value)| (name, value.to_owned())).into()
}

/// The last event of an operation.
fn ended(cause: &str, parked_for: Duration) -> Fields {
    fields([
        ("message", "ended"),
        ("cause", cause),
        ("parked_for", &format!("{parked_for:?}")),
        ("missed_check", "false"),
    ])
}

fn expired(parked_for: Duration, missed_check: bool) -> Fields {
    let mut fields = ended("expired", parked_for);
    fields.insert("missed_check", missed_check.to_string());
    fields
}

fn parked(keys: usize) -> Fields {
    fields([("message", "parked"), ("keys", &keys.to_string())])
}

fn rejected(reason: &str) -> Fields {
    fields([("message", "rejected"), ("reason", reason)])
}

/// A scenario, and how many panics were counted in it.
fn run(name: &str) -> u64 {
    let scenario = Scenario::new(name);
    scenario.run();
    scenario.assert_complete()
}

#[test]
fn each_operation_has_a_span_and_an_end() {
    let notes = Notes::up_to(Level::DEBUG);
    listen(notes.clone(), || assert_eq!(run("fetch"), 1));
    let zero = Duration::ZERO;
    let cancelled = || ended("cancelled", zero);
    let expected = [
        vec![fields([("message", "completed at once")])],
        vec![parked(2), ended("satisfied", STAY)],
        vec![parked(1), ended("forced", zero)],
        vec![parked(1), expired(TIMEOUT + LATE, false)],
        vec![parked(1), expired(TIMEOUT, true)],
        vec![parked(3), cancelled()],
        vec![parked(1), ended("panicked", zero)],
        vec![rejected("NoKeys")],
        vec![parked(1), cancelled()],
        vec![parked(1), cancelled()],
        vec![parked(1), cancelled()],
        vec![rejected("Full")],
        vec![parked(2), ended("shut_down", zero)],
    ];
    let spans = notes.closed();
    let of_fetch = fields([("purgatory", "fetch")]);
    assert!(spans.iter().all(|span| span.fields == of_fetch));
    let events = spans.into_iter().map(|span| span.events);
    assert_eq!(events.collect::<Vec<_>>(), expected);
    assert!(lock(&notes.loose).is_empty());
}

/// It tells which purgatory it was, and needs no span.
#[test]
fn a_listeners_missed_check_is_a_warning() {
    for found in [Found::ByARecheck, Found::AtTheDeadline] {
        let notes = Notes::up_to(Level::WARN);
        listen(notes.clone(), || {
            let waits = listen_for_what_is_not_checked("news", found);
            assert_eq!(waits.stats().missed_checks, 1);
        });
        let message = "missed check: an event was found that no check of its key announced";
        let warning = fields([("message", message), ("purgatory", "news")]);
        assert_eq!(*lock(&notes.loose), [(Level::WARN, warning)], "{found:?}");
        assert!(lock(&notes.spans).is_empty());
    }
}

#[test]
fn an_operation_belongs_to_the_request_that_parks_it() {
    let notes = Notes::up_to(Level::DEBUG);
    listen(notes.clone(), || {
        let scenario = Scenario::new("fetch");
        let request = tracing::error_span!("request");
        request.in_scope(|| scenario.park(&[1]));
        scenario.cancel(1);
        scenario.park(&[1]);
    });
    let request = lock(&notes.spans)
        .iter()
        .position(|span| span.name == "request");
    let request = request.map(|place| place as u64 + 1);
    let parents = notes.closed().into_iter().map(|span| span.parent);
    assert_eq!(parents.collect::<Vec<_>>(), [request, None]);
}

#[test]
fn nothing_is_told_above_the_debug_level() {
    let notes = Notes::up_to(Level::INFO);
    listen(notes.clone(), || assert_eq!(run("fetch"), 1));
    assert!(lock(&notes.spans).is_empty());
}

/// Does something whenever it is told something.
struct Doing<F>(F);

impl<F: Fn() + Send + Sync + 'static> Subscriber for Doing<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "request_purgatory"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        (self.0)();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        (self.0)();
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn clone_span(&self, id: &Id) -> Id {
        (self.0)();
        id.clone()
    }

    fn try_close(&self, _: Id) -> bool {
        (self.0)();
        true
    }
}

#[test]
fn g12_a_subscriber_that_panics_at_a_warning_harms_no_listener() {
    quietly();
    listen(Doing(panics), || {
        let stats = listen_for_what_is_not_checked("loud", Found::ByARecheck).stats();
        assert_eq!((stats.missed_checks, stats.completed), (1, 3));
        // Once for each listener, which has no span then, and for the warning.
        assert_eq!(stats.panicked, 3 + 1);
    });
}

/// Whichever of its calls panics first: a span is made, cloned, has its events, is closed.
#[test]
fn g12_a_subscriber_that_panics_at_once_or_later_harms_no_operation() {
    for calm in 0..80 {
        let calls = Tally::new();
        let count = calls.clone();
        let panics_from_then_on = move || {
            count.add();
            if count.count() > calm {
                panics();
            }
        };
        listen(Doing(panics_from_then_on), || {
            let panicked = run("loud");
            // At once: once for each operation, which has no span then, and the scenario's own.
            assert!(calm > 0 || panicked == 13 + 1, "{panicked}");
        });
        assert!(calls.count() > 12);
    }
}

/// The subscriber of the parking thread hears of the end on the reaper, and of the panics there.
#[test]
fn g12_a_subscriber_that_panics_does_not_end_the_reaper() {
    quietly();
    let tested = std::thread::current().id();
    let panics_elsewhere = move || {
        if std::thread::current().id() != tested {
            panics();
        }
    };
    listen(Doing(panics_elsewhere), || {
        assert_the_reaper_goes_on(&Purgatory::new("loud"));
    });
}

#[test]
fn g03_a_subscriber_may_call_the_purgatory() {
    within(PATIENCE, || {
        listener_that_calls_back(1, |listener, run| {
            listen(Doing(listener), || run(&Scenario::new("re-entrant")));
        });
    });
}
