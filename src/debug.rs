//! `Debug` of types whose parts do not all have it.

/// Shows the fields that are named, each with what it shows of the value `$it`.
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
