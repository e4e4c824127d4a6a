//! The outlines of the requests, and a walk along them before anything is decoded.
//!
//! A Kafka array starts with its element count, and `kafka-protocol` reserves room for that many elements before it
//! reads the first. Twelve bytes from any client are then enough to ask for gigabytes, and an allocation that fails
//! aborts the process. So every request is first walked along its outline, without allocating: only counts and lengths
//! that the bytes in hand really cover get as far as the decoder.

use bytes::Buf;
use std::ops::RangeInclusive;

/// Most array elements and tagged fields that one request may hold, all its arrays together.
///
/// An element takes up to thirty times as much memory decoded as on the wire. This is room for each partition that a
/// broker may have, named alone in its topic.
const MAX_ELEMENTS: usize = 20_000;

/// Walks a request body, which has to be laid out as `outline` says, with no more elements than a request may have:
/// how many it has, or `None`. More bytes may follow.
pub(crate) fn check(body: &[u8], outline: &str, version: i16, flexible: bool) -> Option<usize> {
    let mut walk = Walk {
        rest: body,
        version,
        flexible,
        elements_left: MAX_ELEMENTS,
    };
    walk.fields(outline)?;
    walk.tagged_fields()?;
    Some(MAX_ELEMENTS - walk.elements_left)
}

/// Takes the first field off an outline: what it is, and the versions that have it.
fn first(outline: &str) -> Option<(&str, RangeInclusive<i16>, &str)> {
    let outline = outline.trim_start();
    let mut depth = 0;
    let end = outline.find(|next| {
        depth += i32::from(matches!(next, '[' | '{')) - i32::from(matches!(next, ']' | '}'));
        next == ' ' && depth == 0
    });
    let (field, rest) = outline.split_at(end.unwrap_or(outline.len()));
    let (kind, versions) = field.split_at(field.rfind([']', '}']).map_or(0, |bracket| bracket + 1));
    let at = versions.find(['+', '-']).unwrap_or(versions.len());
    let (plain, versions) = versions.split_at(at);
    let bound = versions.get(1..).and_then(|bound| bound.parse().ok());
    let versions = match (versions.starts_with('+'), bound) {
        (_, None) => 0..=i16::MAX,
        (true, Some(first)) => first..=i16::MAX,
        (false, Some(last)) => 0..=last,
    };
    let kind = if kind.is_empty() { plain } else { kind };
    (!kind.is_empty()).then_some((kind, versions, rest))
}

/// A place in the bytes of a request.
pub(crate) struct Walk<'a> {
    pub(crate) rest: &'a [u8],
    pub(crate) version: i16,
    /// Compact lengths (varint, plus one) and tagged fields after each structure.
    pub(crate) flexible: bool,
    pub(crate) elements_left: usize,
}

impl<'a> Walk<'a> {
    /// Walks along the fields of an outline: a number stands for that many bytes, `s` for a string, `b` for bytes,
    /// `[...]` for an array of structures with these fields, `{...}` for an array of numbers or strings. `+7` behind a
    /// field says that it is there from version 7 on, `-7` that it is there up to version 7. All but numbers may be
    /// null.
    fn fields(&mut self, mut outline: &str) -> Option<()> {
        while let Some((kind, versions, rest)) = first(outline) {
            outline = rest;
            if !versions.contains(&self.version) {
                continue;
            }
            match kind {
                "s" => drop(self.text()?),
                "b" => {
                    let length = self.length(4)?;
                    self.take(length)?;
                }
                _ if kind.starts_with(['[', '{']) => {
                    let inner = &kind[1..kind.len() - 1];
                    for _ in 0..self.elements()? {
                        self.fields(inner)?;
                        if kind.starts_with('[') {
                            self.tagged_fields()?;
                        }
                    }
                }
                size => drop(self.take(size.parse().ok()?)?),
            }
        }
        Some(())
    }

    /// A string; empty for null.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.length(2)?;
        self.take(length)
    }

    /// An element count, charged against what a request may hold.
    pub(crate) fn elements(&mut self) -> Option<usize> {
        let count = self.length(4)?;
        self.charge(count)?;
        Some(count)
    }

    fn charge(&mut self, count: usize) -> Option<()> {
        self.elements_left = self.elements_left.checked_sub(count)?;
        Some(())
    }

    /// A length or count: `width` bytes big-endian where -1 is null, or a varint of length plus one where 0 is.
    fn length(&mut self, width: usize) -> Option<usize> {
        if self.flexible {
            return Some((self.varint()? as usize).saturating_sub(1));
        }
        match self.take(width)?.get_int(width) {
            -1 => Some(0),
            length => usize::try_from(length).ok(),
        }
    }

    fn tagged_fields(&mut self) -> Option<()> {
        if !self.flexible {
            return Some(());
        }
        let count = self.varint()? as usize;
        self.charge(count)?;
        for _ in 0..count {
            self.varint()?;
            let size = self.varint()? as usize;
            self.take(size)?;
        }
        Some(())
    }

    fn varint(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        Some(taken)
    }
}
