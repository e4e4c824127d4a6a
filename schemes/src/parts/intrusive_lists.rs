//! Doubly linked lists whose links lie in the nodes of one pool.
//!
//! The lists are circular. Each list has a *head*, a node without a timer: node `n` is the head of list `n`. So each
//! node has two neighbours, and no insertion or removal needs a special case for an empty list or for the end of a
//! list. The [`Position`] of a timer is the number of its node.

use crate::record::{Position, Tick};

const NIL: u32 = u32::MAX;

/// A timer in its list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) deadline: Tick,
    pub(crate) id: u32,
    /// The next node of the list. In a free node: the next node of the free list.
    pub(crate) next: u32,
    /// The previous node of the list. In a free node: [`NIL`].
    prev: u32,
}

/// The lists and the pool of their nodes.
#[derive(Debug)]
pub(crate) struct IntrusiveLists {
    nodes: Vec<Node>,
    /// The number of lists. Their heads are the first nodes.
    lists: u32,
    /// The first node of the free list, or [`NIL`].
    free: u32,
    len: usize,
}

impl IntrusiveLists {
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

    /// The number of timers in all lists.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first node of `list`, or the head if the list is empty.
    pub(crate) fn first(&self, list: u32) -> u32 {
        self.nodes[list as usize].next
    }

    /// The timer in `node`. `None` if `node` is a head, a free node, or not a node.
    pub(crate) fn timer(&self, node: u32) -> Option<Node> {
        let found = *self.nodes.get(node as usize)?;
        (node >= self.lists && found.prev != NIL).then_some(found)
    }

    /// Appends a timer to `list`.
    pub(crate) fn push(&mut self, list: u32, id: u32, deadline: Tick) -> Position {
        let last = self.nodes[list as usize].prev;
        self.insert_after(last, id, deadline)
    }

    /// Inserts a timer into `list`, which is sorted by deadline. The timer comes after all timers with the same
    /// deadline.
    pub(crate) fn insert(&mut self, list: u32, id: u32, deadline: Tick) -> Position {
        let mut prev = self.nodes[list as usize].prev;
        while let Some(node) = self.timer(prev).filter(|node| node.deadline > deadline) {
            prev = node.prev;
        }
        self.insert_after(prev, id, deadline)
    }

    /// Removes the timer in `node` from its list, and returns the timer. `None` if `node` has no timer.
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
        Position::new(node)
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
