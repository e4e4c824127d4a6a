//! The shutdown on a thread of its own, of which an engine has one at most.

use crate::promise::Promise;
use crate::sync::{Arc, Mutex};
use std::io;
use std::mem;

/// Whether the thread was started, and the promises to be kept when the shutdown is over.
pub(crate) struct Background(Mutex<State>);

enum State {
    NotBegun,
    Running(Vec<Arc<Promise<()>>>),
    Over,
}

impl Background {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::NotBegun))
    }

    /// Starts the thread by `spawn`, unless it was started before. `done`, if given, is kept when the shutdown is over.
    pub(crate) fn begin(
        &self,
        done: Option<&Arc<Promise<()>>>,
        spawn: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.0.lock();
        match &mut *state {
            State::NotBegun => {
                spawn()?;
                *state = State::Running(done.cloned().into_iter().collect());
            }
            State::Running(waiting) => waiting.extend(done.cloned()),
            State::Over => {
                drop(state);
                if let Some(done) = done {
                    // No other thread knows of it.
                    let _ = done.keep(());
                }
            }
        }
        Ok(())
    }

    /// The shutdown is over. Returns the promises to be kept.
    pub(crate) fn end(&self) -> Vec<Arc<Promise<()>>> {
        match mem::replace(&mut *self.0.lock(), State::Over) {
            State::Running(waiting) => waiting,
            State::NotBegun | State::Over => Vec::new(),
        }
    }
}
