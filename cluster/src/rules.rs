//! The rules of the protocol by name, so that a test can leave one out and see waits lost.

/// One rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// Orders of one key are carried out in the order in which its entry gave them.
    OrdersInStep,
    /// When the linger of a key is over, a wait may be interested again: check before forgetting.
    LookAgain,
    /// A key is read after it is watched, not before.
    ReadAfterWatch,
    /// The mark is raised before the operations that wait for it are checked.
    MarkBeforeCheck,
    /// A new session watches all keys.
    WatchAtNewSession,
    /// A new session reads all keys.
    ReadAtNewSession,
    /// All keys are read now and then.
    Audit,
    /// Reads ask for no session.
    ReadWithoutSession,
    /// Discarded events that a wait has not seen end it.
    ResetWhenDiscarded,
    /// Two audits in a row that find what was not heard end the session.
    EndWhenUnheard,
    /// Where `watch` is not exact, keys are read once more.
    ReadAfterSettle,
    /// Another epoch ends the waits.
    ResetOnEpoch,
    /// A version that went back ends the waits.
    ResetWhenBack,
    /// A wait past a version that this node does not know of has the key read.
    VerifySeen,
}

/// Which rules are kept. All of them, but in tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    left_out: u32,
}

impl Rules {
    /// All but this one.
    #[cfg(feature = "rules")]
    #[must_use]
    pub fn without(mut self, rule: Rule) -> Self {
        self.left_out |= 1 << rule as u32;
        self
    }

    #[inline]
    pub(crate) fn keep(self, rule: Rule) -> bool {
        !cfg!(feature = "rules") || self.left_out & (1 << rule as u32) == 0
    }
}
