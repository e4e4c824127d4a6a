//! What an engine keeps of a commit.

/// One committed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its version. (In NATS its sequence in the stream.)
    pub version: u64,
    /// What was committed.
    pub body: Vec<u8>,
}
