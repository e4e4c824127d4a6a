//! Keys of several parts, by their parts.

use equivalent::Equivalent;
use std::hash::{Hash, Hasher};

/// Finds a key that is a tuple by references to borrowed forms of its parts: `Parts(("orders", &3))` finds
/// `("orders".to_owned(), 3)` without an allocation.
///
/// Every method that finds an operation or a value by its key takes such a form: a type with [`Equivalent`] for the
/// key, and with the same [`Hash`]. [`Borrow`](std::borrow::Borrow) gives `Equivalent`, so `str` finds a `String`; but
/// no tuple can be borrowed as a tuple of borrowed parts. For a key that is a struct of yours, write a struct of the
/// borrowed parts in the same order, derive `Hash`, and implement `Equivalent`.
///
/// ```
/// use request_purgatory::Waits;
/// use request_purgatory::purgatory::{Equivalent, Parts};
/// use std::time::Duration;
///
/// let partitions = Waits::<(String, u32)>::new("partitions");
/// let wait = partitions.wait([("orders".to_owned(), 3)], Duration::MAX, || Some("found"));
/// assert_eq!(partitions.check_and_complete(&Parts(("orders", &4))), 0);
/// # drop(wait);
///
/// #[derive(Clone, PartialEq, Eq, Hash)]
/// struct Partition { topic: String, number: u32 }
///
/// #[derive(Hash)]
/// struct PartitionRef<'a> { topic: &'a str, number: u32 }
///
/// impl Equivalent<Partition> for PartitionRef<'_> {
///     fn equivalent(&self, key: &Partition) -> bool {
///         self.topic == key.topic && self.number == key.number
///     }
/// }
///
/// let partitions = Waits::<Partition>::new("partitions");
/// assert_eq!(partitions.watchers(&PartitionRef { topic: "orders", number: 3 }), 0);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Parts<T>(pub T);

impl<T: Hash> Hash for Parts<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<A, B, P, Q> Equivalent<(A, B)> for Parts<(&P, &Q)>
where
    P: Equivalent<A> + ?Sized,
    Q: Equivalent<B> + ?Sized,
{
    fn equivalent(&self, key: &(A, B)) -> bool {
        let Self((first, second)) = self;
        first.equivalent(&key.0) && second.equivalent(&key.1)
    }
}

impl<A, B, C, P, Q, R> Equivalent<(A, B, C)> for Parts<(&P, &Q, &R)>
where
    P: Equivalent<A> + ?Sized,
    Q: Equivalent<B> + ?Sized,
    R: Equivalent<C> + ?Sized,
{
    fn equivalent(&self, key: &(A, B, C)) -> bool {
        let Self((first, second, third)) = self;
        first.equivalent(&key.0) && second.equivalent(&key.1) && third.equivalent(&key.2)
    }
}
