//! The types that the condition of a wait may return.

/// The return type of the condition of a [`wait`](crate::Purgatory::wait) or of
/// [`Listener::until`](super::Listener::until): an `Option<T>`, or a `Result<Option<T>, E>` if the condition can fail.
/// With `None` or `Ok(None)` the wait continues. A value or an error ends the wait.
///
/// | the condition answers | the future resolves to |
/// |---|---|
/// | `Option<T>` | `Result<T, WaitError>` |
/// | `Result<Option<T>, E>` | `Result<Result<T, E>, WaitError>`: `wait.await??` |
#[diagnostic::on_unimplemented(
    message = "a condition answers `Option<T>`, or `Result<Option<T>, E>` if it can fail; not `{Self}`",
    label = "`None` waits on, `Some(value)` ends the wait with `value`",
    note = "a condition that answers yes or no ends in `.then_some(value)`; one that awaits is for `listen` and `until`"
)]
pub trait Answer: sealed::Sealed {
    /// The result of a wait that ends because of its condition: a value, or the condition's own error. Every other wait
    /// resolves to a [`WaitError`](super::WaitError).
    type Found;

    /// Converts the answer into the result that ends the wait. `None`: the wait continues.
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

pub(super) mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for Option<T> {}
    impl<T, E> Sealed for Result<Option<T>, E> {}
}
