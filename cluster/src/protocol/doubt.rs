//! What ends a session although its feed sees nothing wrong.

use std::fmt;

/// Why a session cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doubt {
    /// The store has another epoch.
    Epoch,
    /// A version went back.
    WentBack,
    /// Two audits in a row found versions of which nothing was heard.
    Unheard,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Epoch => "the store has another epoch: its data was lost",
            Self::WentBack => "a version went back: an older copy of the store took over",
            Self::Unheard => "two audits in a row found versions of which nothing was heard",
        })
    }
}

impl std::error::Error for Doubt {}
