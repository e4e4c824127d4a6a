//! The ids of requests that ended without a response, as the model of `Requests` knows them.

use std::ops::RangeInclusive;

/// One request that ended without a response.
struct Ended {
    id: u8,
    /// Of those with the same number, no one knows which ended first.
    moment: usize,
    /// It has had its response since, or certainly is not remembered any more.
    over: bool,
    /// It may have had its response.
    doubtful: bool,
}

pub(crate) struct Remembered {
    all: Vec<Ended>,
    moment: usize,
    /// As many are remembered.
    max: usize,
}

impl Remembered {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            all: Vec::new(),
            moment: 0,
            max,
        }
    }

    /// What ends from now on ends later.
    pub(crate) fn next_moment(&mut self) {
        self.moment += 1;
    }

    pub(crate) fn add(&mut self, id: u8) {
        self.all.push(Ended {
            id,
            moment: self.moment,
            over: false,
            doubtful: false,
        });
    }

    /// How many others have ended since this one.
    fn later(&self, ended: &Ended) -> RangeInclusive<usize> {
        let later = self.all.iter().filter(|it| it.moment > ended.moment);
        let equal = self.all.iter().filter(|it| it.moment == ended.moment);
        let later = later.count();
        later..=later + equal.count() - 1
    }

    /// A response has come for this id, and is said to be late.
    pub(crate) fn respond(&mut self, id: u8, is_late: bool) {
        let (mut certain, mut possible) = (0, Vec::new());
        for (at, ended) in self.all.iter().enumerate() {
            let later = self.later(ended);
            if ended.id == id && !ended.over && *later.start() < self.max {
                certain += usize::from(!ended.doubtful && *later.end() < self.max);
                possible.push(at);
            }
        }
        assert!(if is_late {
            !possible.is_empty()
        } else {
            certain == 0
        });
        if !is_late {
            possible.iter().for_each(|at| self.all[*at].over = true);
        } else if certain == possible.len() {
            self.all[possible[0]].over = true;
        } else {
            // It was that of the first, or of one that is remembered.
            self.all[possible[0]].over = true;
            possible.iter().for_each(|at| self.all[*at].doubtful = true);
        }
    }
}
