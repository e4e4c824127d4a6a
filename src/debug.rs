//! `Debug` for types whose parts do not all implement it.

/// Implements `Debug` for `$type`, under the name `$name`, with the given fields. For each field, the output shows the
/// value of the expression after its name. In that expression, `$it` is the value that is formatted.
macro_rules! debug_fields {
    ([$($generics:tt)*] $type:ty, $name:expr, |$it:ident| $($field:ident: $shown:expr),*) => {
        impl<$($generics)*> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                let _ = $it;
                f.debug_struct($name)$(.field(stringify!($field), &$shown))*.finish_non_exhaustive()
            }
        }
    };
}
