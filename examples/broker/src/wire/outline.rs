//! The requests this broker takes, in one table for negotiation and decoder (so that all that is advertised is handled),
//! with their outlines, and a walk along these before anything is decoded.
//!
//! A Kafka array starts with its element count, and `kafka-protocol` reserves room for that many elements before it
//! reads the first. Twelve bytes from any client are then enough to ask for gigabytes, and an allocation that fails
//! aborts the process. So every request is first walked along its outline, without allocating: only counts and lengths
//! that the bytes in hand really cover get as far as the decoder.

use crate::messages::*;
use bytes::Buf;
use std::ops::RangeInclusive;
use std::str::SplitWhitespace;

/// One kind of request, the versions of it that are handled here, and how the bytes of its body are laid out.
pub(crate) type Api = (ApiKey, RangeInclusive<i16>, &'static str);

/// All that is advertised to clients, with the fields in the order of Kafka's schemas, written as [`Walk::fields`] says.
///
/// From version 13 on, Fetch names topics by id only; from version 9 on, OffsetFetch is for members of KIP-848.
/// ConsumerGroupHeartbeat (KIP-848) is here to be refused in words.
#[rustfmt::skip]
pub(crate) static APIS: [Api; 21] = [
    (ApiKey::Produce, 3..=9, "s 6 [ s [ 4 b ] ]"),
    (ApiKey::Fetch, 4..=12, "17 7+ 8 [ s [ 4 9+ 4 8 12+ 4 5+ 8 4 ] ] 7+ [ s { 4 } ] 11+ s"),
    (ApiKey::ListOffsets, 1..=6, "4 2+ 1 [ s [ 4 4+ 4 8 ] ]"),
    (ApiKey::Metadata, 0..=9, "[ s ] 4+ 1 8+ 2"),
    (ApiKey::OffsetCommit, 1..=8, "s 4 s 7+ s 2+ 0-4 8 [ s [ 12 0-1 8 6+ 4 s ] ]"),
    (ApiKey::OffsetFetch, 1..=8, "0-7 s 0-7 [ s { 4 } ] 8+ [ s [ s { 4 } ] ] 7+ 1"),
    (ApiKey::FindCoordinator, 0..=6, "0-3 s 1+ 1 4+ { s }"),
    (ApiKey::JoinGroup, 0..=9, "s 4 1+ 4 s 5+ s s [ s b ] 8+ s"),
    (ApiKey::Heartbeat, 0..=4, "s 4 s 3+ s"),
    (ApiKey::LeaveGroup, 0..=5, "s 0-2 s 3+ [ s s 5+ s ]"),
    (ApiKey::SyncGroup, 0..=5, "s 4 s 3+ s 5+ s 5+ s [ s b ]"),
    (ApiKey::DescribeGroups, 0..=5, "{ s } 3+ 1"),
    (ApiKey::ListGroups, 0..=4, "4+ { s }"),
    (ApiKey::DeleteGroups, 0..=2, "{ s }"),
    (ApiKey::OffsetDelete, 0..=0, "s [ s { 4 } ]"),
    (ApiKey::ApiVersions, 0..=3, "3+ s 3+ s"),
    (ApiKey::CreateTopics, 2..=6, "[ s 6 [ 4 { 4 } ] [ s s ] ] 5"),
    (ApiKey::DeleteTopics, 1..=5, "{ s } 4"),
    (ApiKey::DescribeConfigs, 1..=4, "[ 1 s { s } ] 1 3+ 1"),
    (ApiKey::InitProducerId, 0..=4, "s 4 3+ 10"),
    (ApiKey::ConsumerGroupHeartbeat, 0..=1, "s s 4 s s 4 { s } 1+ s s [ 16 { 4 } ]"),
];

pub(crate) fn by_key(key: i16) -> Option<&'static Api> {
    APIS.iter().find(|(known, ..)| *known as i16 == key)
}

/// Most array elements and tagged fields of one request: each partition that there may be, named alone in its topic. (An
/// element takes up to thirty times as much memory decoded as on the wire.)
const MAX_ELEMENTS: usize = 20_000;

/// A place in the bytes of a request.
pub(crate) struct Walk<'a> {
    pub(crate) client_id: &'a [u8],
    pub(crate) rest: &'a [u8],
    version: i16,
    /// Compact lengths (varint, plus one) and tagged fields after each structure.
    flexible: bool,
    elements_left: usize,
}

impl<'a> Walk<'a> {
    /// Begins behind the header of a request, of which `rest` is what follows the correlation id.
    pub(crate) fn behind_header(rest: &'a [u8], api: ApiKey, version: i16) -> Option<Self> {
        let mut walk = Self::along(rest, version);
        // An old-style string in every header.
        walk.client_id = walk.text()?;
        // From its second version on, the header has tagged fields, and the body has them and compact lengths.
        walk.flexible = api.request_header_version(version) >= 2;
        walk.tagged_fields()?;
        Some(walk)
    }

    /// Begins with the body of a request, in a version without compact lengths.
    pub(crate) fn along(rest: &'a [u8], version: i16) -> Self {
        Self {
            client_id: &[],
            rest,
            version,
            flexible: false,
            elements_left: MAX_ELEMENTS,
        }
    }

    /// How many elements the request has, if its body is as its outline says, with not too many. More bytes may follow.
    pub(crate) fn body(&mut self, outline: &str) -> Option<usize> {
        self.fields(&mut outline.split_whitespace(), true)?;
        self.tagged_fields()?;
        Some(MAX_ELEMENTS - self.elements_left)
    }

    /// Walks along the fields of an outline, up to the bracket that closes it: a number stands for that many bytes, `s`
    /// for a string, `b` for bytes, `[ ... ]` for an array of structures with these fields, `{ ... }` for an array of
    /// numbers or strings. `7+` before a field says that it is there from version 7 on, `0-7` that it is there up to
    /// version 7. All but numbers may be null. Where the structure is not there, only the outline is walked along.
    fn fields(&mut self, outline: &mut SplitWhitespace<'_>, is_there: bool) -> Option<()> {
        let mut has_field = is_there;
        while let Some(token) = outline.next() {
            if let Some(first) = token.strip_suffix('+') {
                has_field &= self.version >= first.parse().ok()?;
                continue;
            }
            if let Some(last) = token.strip_prefix("0-") {
                has_field &= self.version <= last.parse().ok()?;
                continue;
            }
            match token {
                "]" | "}" => break,
                "[" | "{" => {
                    let count = if has_field { self.elements()? } else { 0 };
                    for _ in 0..count {
                        self.fields(&mut outline.clone(), true)?;
                        if token == "[" {
                            self.tagged_fields()?;
                        }
                    }
                    self.fields(outline, false)?;
                }
                _ if !has_field => {}
                "s" => drop(self.text()?),
                "b" => drop(self.sized(4)?),
                size => drop(self.take(size.parse().ok()?)?),
            }
            has_field = is_there;
        }
        Some(())
    }

    /// A string; empty for null.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        self.sized(2)
    }

    /// Bytes behind their length.
    fn sized(&mut self, width: usize) -> Option<&'a [u8]> {
        let length = self.length(width)?;
        self.take(length)
    }

    /// An element count, charged against what a request may hold.
    pub(crate) fn elements(&mut self) -> Option<usize> {
        let count = self.length(4)?;
        self.elements_left = self.elements_left.checked_sub(count)?;
        Some(count)
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
        self.elements_left = self.elements_left.checked_sub(count)?;
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
