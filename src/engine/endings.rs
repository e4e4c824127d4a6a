//! Payloads that a call has ended, until it holds no lock any more.

use super::dispatch::{RunOn, dispatch, dispatch_all};
use super::handler::Handler;
use crate::sync::Arc;
use crate::trampoline::Trampoline;

/// Collects payloads that have ended, and dispatches them when it is dropped: a panic on the way (of a key's `Hash`,
/// say) loses none of them.
pub(crate) struct Endings<'a, H: Handler> {
    handler: &'a Arc<H>,
    trampoline: &'a Trampoline,
    run_on: RunOn,
    /// Most calls end one payload, or none.
    first: Option<H::Ended>,
    rest: Vec<H::Ended>,
}

impl<'a, H: Handler> Endings<'a, H> {
    #[inline(always)]
    pub(crate) fn new(handler: &'a Arc<H>, trampoline: &'a Trampoline, run_on: RunOn) -> Self {
        Self {
            handler,
            trampoline,
            run_on,
            first: None,
            rest: Vec::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, ended: H::Ended) {
        if self.first.is_none() {
            self.first = Some(ended);
        } else {
            self.rest.push(ended);
        }
    }

    /// Takes them back: none of them is dispatched.
    pub(crate) fn into_all(mut self) -> impl Iterator<Item = H::Ended> {
        let rest = std::mem::take(&mut self.rest);
        self.first.take().into_iter().chain(rest)
    }
}

impl<H: Handler> Drop for Endings<'_, H> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            dispatch(self.handler, self.trampoline, first, self.run_on);
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            dispatch_all(self.handler, self.trampoline, rest, self.run_on);
        }
    }
}
