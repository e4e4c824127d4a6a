//! `Debug` for types whose parts do not all implement it.

/// Implements `Debug` with the named fields. Each field shows the expression after its name; in the expression, `$it`
/// is the value.
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
