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
    only: Option<H::Ended>,
    /// All of them, if there are several.
    several: Vec<H::Ended>,
}

impl<'a, H: Handler> Endings<'a, H> {
    #[inline(always)]
    pub(crate) fn new(handler: &'a Arc<H>, trampoline: &'a Trampoline, run_on: RunOn) -> Self {
        Self {
            handler,
            trampoline,
            run_on,
            only: None,
            several: Vec::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, ended: H::Ended) {
        if self.only.is_none() && self.several.is_empty() {
            self.only = Some(ended);
        } else {
            self.several.extend(self.only.take());
            self.several.push(ended);
        }
    }

    /// Takes them back: none of them is dispatched.
    pub(crate) fn into_all(mut self) -> impl Iterator<Item = H::Ended> {
        let several = std::mem::take(&mut self.several);
        self.only.take().into_iter().chain(several)
    }
}

impl<H: Handler> Drop for Endings<'_, H> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(only) = self.only.take() {
            dispatch(self.handler, self.trampoline, only, self.run_on);
        } else if !self.several.is_empty() {
            let several = std::mem::take(&mut self.several);
            dispatch_all(self.handler, self.trampoline, several, self.run_on);
        }
    }
}
