//! The operation of [`Waits`](super::Waits): a predicate with its future, or one of a listener's operations.

use super::reply::Reply;
use super::signal::Signal;
use super::wait_error::WaitError;
use crate::callbacks::panics::Panics;
use crate::callbacks::promise::Promise;
use crate::hash::Key;
use crate::operation::{Cause, Completion, DelayedOperation};
use crate::sync::Arc;
use std::time::Duration;

/// The operation parked in [`Waits`](super::Waits): a predicate and the reply to its future, or the reply to a
/// listener.
///
/// Made by [`Purgatory::wait`](crate::Purgatory::wait) and the calls beside it. A cancel by key or handle returns it;
/// its destructor tells its future or listener of the cancel. Do not park it again: its future would not cancel the
/// second park, and checks of the second park would wake its listener.
pub struct WaitOperation<K> {
    timeout: Duration,
    role: Role<K>,
}

enum Role<K> {
    Predicate(Box<dyn Condition<K>>),
    Listener(Reply<Signal>),
}

impl<K: Key> WaitOperation<K> {
    pub(super) fn predicate<T: Send + 'static>(
        timeout: Duration,
        predicate: impl FnMut(Cause<'_, K>) -> Option<T> + Send + 'static,
        promise: Arc<Promise<Result<T, WaitError>>>,
    ) -> Self {
        let condition = Predicate {
            predicate,
            found: None,
            reply: Reply::new(promise, WaitError::Cancelled),
        };
        Self {
            timeout,
            role: Role::Predicate(Box::new(condition)),
        }
    }

    pub(super) fn listener(timeout: Duration, signal: Arc<Signal>) -> Self {
        Self {
            timeout,
            role: Role::Listener(Reply::new(signal, WaitError::Cancelled)),
        }
    }
}

/// A predicate of any type, for a value of any type.
trait Condition<K>: Send {
    fn holds(&mut self, cause: Cause<'_, K>) -> bool;
    fn end(self: Box<Self>, completion: Completion);
}

struct Predicate<T: 'static, P> {
    predicate: P,
    found: Option<T>,
    reply: Reply<Promise<Result<T, WaitError>>>,
}

impl<K, T, P> Condition<K> for Predicate<T, P>
where
    T: Send + 'static,
    P: FnMut(Cause<'_, K>) -> Option<T> + Send,
{
    fn holds(&mut self, cause: Cause<'_, K>) -> bool {
        self.found = self.reply.running(|_| (self.predicate)(cause));
        self.found.is_some()
    }

    fn end(self: Box<Self>, completion: Completion) {
        let condition = *self;
        // Keep a value that was found, even if the examination at the deadline found it.
        let result = condition.found.ok_or(completion.into());
        let mut panics = Panics::default();
        // Drop the predicate before the future is told. If its destructor panics, the future is told all the same.
        panics.catch(|| drop(condition.predicate));
        panics.catch(|| condition.reply.answer(result));
        panics.resume();
    }
}

impl<K: Key> DelayedOperation for WaitOperation<K> {
    type Key = K;

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn try_complete(&mut self) -> bool {
        self.try_complete_for(Cause::NONE)
    }

    fn try_complete_for(&mut self, cause: Cause<'_, K>) -> bool {
        match &mut self.role {
            Role::Predicate(condition) => condition.holds(cause),
            Role::Listener(reply) => {
                // Signal only checks. An event before the end of the park is seen by the evaluation that follows the
                // park. At the deadline the listener is told of its end in a moment. A waker is user code.
                if cause.is_check() {
                    reply.running(Signal::check);
                }
                let recheck = cause.as_recheck();
                recheck.is_some_and(|last| reply.running(|signal| signal.recheck(last)))
            }
        }
    }

    fn on_complete(self, completion: Completion) {
        match self.role {
            Role::Predicate(condition) => condition.end(completion),
            Role::Listener(reply) => reply.tell(|signal| signal.end(completion.into())),
        }
    }
}

debug_fields!([K] WaitOperation<K>, "WaitOperation", |it| timeout: it.timeout);
