//! Where a client is: a version, and the history of the store that it belongs to.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Names one history of the store: while it stays the same, the version of a key only grows. A store that lost its data
/// has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// In hexadecimal digits.
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A version and the history that it belongs to: what a client keeps between two requests. `Display` and `FromStr` are
/// each other's inverse (`1f-42`), for an HTTP header or a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// The history.
    pub epoch: Epoch,
    /// The version within it.
    pub version: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.version)
    }
}

/// The text is no [`Position`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParsePositionError;

impl fmt::Display for ParsePositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a position is an epoch in hexadecimal digits, `-`, and a version in decimal digits",
        )
    }
}

impl std::error::Error for ParsePositionError {}

impl From<ParseIntError> for ParsePositionError {
    fn from(_: ParseIntError) -> Self {
        Self
    }
}

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (epoch, version) = text.split_once('-').ok_or(ParsePositionError)?;
        Ok(Self {
            epoch: Epoch(u64::from_str_radix(epoch, 16)?),
            version: version.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g24_a_position_is_what_its_text_says() {
        let largest = format!("{:x}-{}", u64::MAX, u64::MAX);
        for (epoch, version, text) in [(0x1f, 42, "1f-42"), (u64::MAX, u64::MAX, &*largest)] {
            let epoch = Epoch(epoch);
            let position = Position { epoch, version };
            assert_eq!(position.to_string(), text);
            assert_eq!(text.parse::<Position>(), Ok(position));
        }
        for text in ["", "1f", "1f-", "-42", "1g-42", "1f-4a"] {
            assert_eq!(text.parse::<Position>(), Err(ParsePositionError), "{text}");
        }
    }
}
