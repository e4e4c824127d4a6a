//! What the server sends unasked, on its way from the connection's task to the session.

use crate::config::channel_capacity;
use ::redis::{PushInfo, PushKind};
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    waiting: VecDeque<PushInfo>,
    /// Something was dropped.
    lagged: bool,
    /// The connection is lost.
    cut: bool,
}

/// A bounded queue. The connection's task must not wait for room in it, since the answers to what the session asks come
/// over the same connection.
pub(super) struct Pushes {
    state: Mutex<State>,
    capacity: usize,
    arrived: Notify,
}

/// What arrived.
pub(super) enum Arrived {
    Pushes(Vec<PushInfo>),
    Lagged,
    Cut,
}

impl Pushes {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State::default()),
            capacity: channel_capacity(capacity),
            arrived: Notify::new(),
        }
    }

    pub(super) fn push(&self, push: PushInfo) {
        let mut state = self.state.lock();
        match push.kind {
            PushKind::Disconnection => state.cut = true,
            PushKind::Invalidate | PushKind::Message if state.waiting.len() >= self.capacity => {
                state.lagged = true;
            }
            PushKind::Invalidate | PushKind::Message => state.waiting.push_back(push),
            // Confirmations: the client has matched them with their commands.
            _ => return,
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for something, and takes up to `limit` of it. May be dropped while it waits: then nothing is taken.
    pub(super) async fn next(&self, limit: usize) -> Arrived {
        loop {
            {
                let mut state = self.state.lock();
                if state.lagged {
                    return Arrived::Lagged;
                }
                if state.cut {
                    return Arrived::Cut;
                }
                if !state.waiting.is_empty() {
                    let count = state.waiting.len().min(limit);
                    return Arrived::Pushes(state.waiting.drain(..count).collect());
                }
            }
            self.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::Value;
    use futures_util::FutureExt;

    /// A session that can keep nothing would end with the first message.
    #[tokio::test]
    async fn g24_there_is_room_for_one_push() {
        let pushes = Pushes::new(0);
        let push_of = |kind| PushInfo {
            kind,
            data: Vec::new(),
        };
        let push = || push_of(PushKind::Message);
        // A confirmation takes none of it.
        pushes.push(push_of(PushKind::Subscribe));
        pushes.push(push());
        assert!(matches!(pushes.next(9).await, Arrived::Pushes(it) if it.len() == 1));
        // And for no more than that.
        pushes.push(push());
        pushes.push(push());
        assert!(matches!(pushes.next(9).await, Arrived::Lagged));
    }

    #[test]
    fn g24_what_is_not_taken_at_once_is_taken_next() {
        let pushes = Pushes::new(9);
        for number in 0..5 {
            pushes.push(PushInfo {
                kind: PushKind::Invalidate,
                data: vec![Value::Int(number)],
            });
        }
        let mut taken = Vec::new();
        while taken.len() < 5 {
            let Some(Arrived::Pushes(some)) = pushes.next(2).now_or_never() else {
                panic!("the rest is gone after {taken:?}");
            };
            assert!(some.len() <= 2);
            taken.extend(some.into_iter().flat_map(|it| it.data));
        }
        assert_eq!(taken, [0, 1, 2, 3, 4].map(Value::Int));
    }
}
