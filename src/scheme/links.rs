//! Doubly linked lists of timers, out of one pool.
//!
//! The lists are circular. Each has a *head*, which is a node of the pool without a timer: list `n` has node `n`. So to
//! insert or to unlink is to write to two neighbours, whatever they are, and a timer's [`Position`] is its node.

use super::{Position, Tick};

const NIL: u32 = u32::MAX;

/// A timer in its list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) deadline: Tick,
    pub(crate) id: u32,
    /// The node after it; of a free node, the next free one.
    pub(crate) next: u32,
    /// The node before it; of a free node, [`NIL`].
    prev: u32,
}

/// The pool, and the lists.
#[derive(Debug)]
pub(crate) struct Links {
    nodes: Vec<Node>,
    /// How many lists there are: their heads are the first nodes.
    lists: u32,
    free: u32,
    len: usize,
}

impl Links {
    pub(crate) fn new(lists: u32) -> Self {
        let head = |list| Node {
            deadline: Tick::MAX,
            id: NIL,
            next: list,
            prev: list,
        };
        Self {
            nodes: (0..lists).map(head).collect(),
            lists,
            free: NIL,
            len: 0,
        }
    }

    /// How many timers there are in all lists.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first node of `list`: its head if there is no timer.
    pub(crate) fn first(&self, list: u32) -> u32 {
        self.nodes[list as usize].next
    }

    /// The timer in `node`. `None` if that is a head, or free, or no node at all.
    pub(crate) fn timer(&self, node: u32) -> Option<Node> {
        let found = *self.nodes.get(node as usize)?;
        (node >= self.lists && found.prev != NIL).then_some(found)
    }

    /// Inserts a timer at the end of `list`.
    pub(crate) fn push(&mut self, list: u32, id: u32, deadline: Tick) -> Position {
        let last = self.nodes[list as usize].prev;
        self.insert_after(last, id, deadline)
    }

    /// Inserts a timer into `list`, which is sorted by deadline: behind the last that is not later.
    #[cfg(any(test, feature = "reference-schemes"))]
    pub(crate) fn insert(&mut self, list: u32, id: u32, deadline: Tick) -> Position {
        let mut place = self.nodes[list as usize].prev;
        while let Some(node) = self.timer(place).filter(|node| node.deadline > deadline) {
            place = node.prev;
        }
        self.insert_after(place, id, deadline)
    }

    /// Takes the timer in `node` out of its list. `None` as in [`timer`](Self::timer).
    pub(crate) fn unlink(&mut self, node: u32) -> Option<Node> {
        let found = self.timer(node)?;
        self.nodes[found.prev as usize].next = found.next;
        self.nodes[found.next as usize].prev = found.prev;
        let freed = &mut self.nodes[node as usize];
        (freed.next, freed.prev) = (self.free, NIL);
        self.free = node;
        self.len -= 1;
        Some(found)
    }

    fn insert_after(&mut self, prev: u32, id: u32, deadline: Tick) -> Position {
        let next = self.nodes[prev as usize].next;
        let fresh = Node {
            deadline,
            id,
            next,
            prev,
        };
        let node = self.allocate(fresh);
        self.nodes[prev as usize].next = node;
        self.nodes[next as usize].prev = node;
        self.len += 1;
        Position(node)
    }

    fn allocate(&mut self, fresh: Node) -> u32 {
        let node = self.free;
        if let Some(free) = self.nodes.get_mut(node as usize) {
            self.free = free.next;
            *free = fresh;
            return node;
        }
        self.nodes.push(fresh);
        self.nodes.len() as u32 - 1
    }
}
