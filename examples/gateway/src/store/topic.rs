//! What an event is about.

use std::sync::Arc;

/// The key of the cluster.
pub type Topic = Arc<str>;
