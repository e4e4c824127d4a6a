//! A tracing subscriber that writes down what it hears.

use request_purgatory_cluster::Cluster;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub type Fields = BTreeMap<&'static str, String>;

/// What was told of one span.
#[derive(Debug, Default)]
pub struct Told {
    pub name: &'static str,
    pub fields: Fields,
    pub events: Vec<Fields>,
    pub is_closed: bool,
    references: usize,
}

pub type Heard = Arc<Mutex<Vec<Told>>>;

/// Hears of sessions only: not of the purgatory's operations.
pub struct Notes(Heard, Lines);

/// What was told of no span.
pub type Lines = Arc<Mutex<Vec<Fields>>>;

impl Notes {
    pub fn new() -> (Self, Heard, Lines) {
        let (heard, lines) = (Heard::default(), Lines::default());
        (Self(heard.clone(), lines.clone()), heard, lines)
    }

    fn of<R>(&self, id: &Id, note: impl FnOnce(&mut Told) -> R) -> R {
        let place = usize::try_from(id.into_u64() - 1).expect("one of ours");
        let mut spans = self.0.lock().expect("no test panics with it");
        note(&mut spans[place])
    }
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

/// Whom the subscriber asks for the statistics when it hears of advice.
pub static NODE: OnceLock<Cluster<u64>> = OnceLock::new();

/// On a thread of its own, so that the test fails, and does not hang, where it is not answered.
fn is_answered() -> bool {
    let (answer, answered) = channel();
    let node = NODE.get().expect("it was started").clone();
    std::thread::spawn(move || answer.send(node.stats().lag));
    answered.recv_timeout(Duration::from_secs(20)).is_ok()
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "request_purgatory_cluster"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut told = Told {
            name: attributes.metadata().name(),
            references: 1,
            ..Told::default()
        };
        attributes.record(&mut Reader(&mut told.fields));
        let mut spans = self.0.lock().expect("no test panics with it");
        spans.push(told);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.of(span, |told| values.record(&mut Reader(&mut told.fields)));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        if fields.contains_key("advice") {
            fields.insert("is_answered", is_answered().to_string());
        }
        match event.parent() {
            Some(span) => self.of(span, |told| told.events.push(fields)),
            None => self.1.lock().expect("no test panics with it").push(fields),
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn clone_span(&self, span: &Id) -> Id {
        self.of(span, |told| told.references += 1);
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        self.of(&span, |told| {
            told.references -= 1;
            told.is_closed = told.references == 0;
            told.is_closed
        })
    }
}
