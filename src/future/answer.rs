//! What conditions answer.

/// What the condition of a [`wait`](crate::Purgatory::wait) or of [`Listener::until`](super::Listener::until) answers:
/// an `Option<T>`, or a `Result<Option<T>, E>` if it can fail, as the closure of a [`take`](crate::Purgatory::take)
/// does. `None` waits on.
///
/// | it answers | the future resolves to |
/// |---|---|
/// | `Option<T>` | `Result<T, WaitError>` |
/// | `Result<Option<T>, E>` | `Result<Result<T, E>, WaitError>`: `wait.await??` |
#[diagnostic::on_unimplemented(
    message = "a condition answers `Option<T>`, or `Result<Option<T>, E>` if it can fail; not `{Self}`",
    label = "`None` waits on, `Some(value)` ends the wait with `value`",
    note = "a condition that answers yes or no ends in `.then_some(value)`; one that awaits is for `listen` and `until`"
)]
pub trait Answer: sealed::Sealed {
    /// What the future resolves to, if to no [`WaitError`](super::WaitError).
    type Found;

    /// What ends the wait.
    #[doc(hidden)]
    fn found(self) -> Option<Self::Found>;
}

impl<T> Answer for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

impl<T, E> Answer for Result<Option<T>, E> {
    type Found = Result<T, E>;

    fn found(self) -> Option<Result<T, E>> {
        self.transpose()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for Option<T> {}
    impl<T, E> Sealed for Result<Option<T>, E> {}
}
