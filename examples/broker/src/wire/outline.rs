//! The outlines of the requests, and a walk along them before anything is decoded.
//!
//! A Kafka array starts with its element count, and `kafka-protocol` reserves room for that many elements before it
//! reads the first. Twelve bytes from any client are then enough to ask for gigabytes, and an allocation that fails
//! aborts the process. So every request is first walked along its outline, without allocating: only counts and lengths
//! that the bytes in hand really cover get as far as the decoder.

use std::iter::Peekable;
use std::str::Chars;

/// Most array elements and tagged fields that one request may hold, all its arrays together.
///
/// An element takes up to thirty times as much memory decoded as on the wire. This is room for each partition that a
/// broker may have, named alone in its topic.
const MAX_ELEMENTS: usize = 20_000;

/// A field of a request, as far as finding its end needs, and the versions that have it.
#[derive(Debug)]
pub(crate) struct Field {
    kind: Kind,
    since: i16,
    until: i16,
}

#[derive(Debug)]
enum Kind {
    /// This many bytes.
    Fixed(usize),
    /// A string, which may be null.
    Text,
    /// A byte string, which may be null.
    Blob,
    /// An array of structures, which may be null.
    Structs(Vec<Field>),
    /// An array of what has no fields of its own, which may be null.
    Plain(Vec<Field>),
}

/// Reads an outline: a number stands for that many bytes, `s` for a string, `b` for bytes, `[...]` for an array of
/// structures with these fields, `{...}` for an array of numbers or strings. `+7` behind a field says that it is there
/// from version 7 on, `-7` that it is there up to version 7.
pub(crate) fn parse(outline: &str) -> Vec<Field> {
    fields(&mut outline.chars().peekable())
}

/// Reads fields up to the bracket that closes them.
fn fields(outline: &mut Peekable<Chars<'_>>) -> Vec<Field> {
    let mut found = Vec::new();
    while let Some(next) = outline.next() {
        let kind = match next {
            's' => Kind::Text,
            'b' => Kind::Blob,
            '[' => Kind::Structs(fields(outline)),
            '{' => Kind::Plain(fields(outline)),
            '0'..='9' => Kind::Fixed(number(next, outline)),
            ' ' => continue,
            _ => break,
        };
        let mut field = Field {
            kind,
            since: 0,
            until: i16::MAX,
        };
        if outline.next_if_eq(&'+').is_some() {
            field.since = number('0', outline) as i16;
        } else if outline.next_if_eq(&'-').is_some() {
            field.until = number('0', outline) as i16;
        }
        found.push(field);
    }
    found
}

fn number(first: char, outline: &mut Peekable<Chars<'_>>) -> usize {
    let mut number = first.to_digit(10).unwrap_or(0) as usize;
    while let Some(digit) = outline.peek().and_then(|next| next.to_digit(10)) {
        number = 10 * number + digit as usize;
        outline.next();
    }
    number
}

/// What a walk along a request body found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Array elements and tagged fields.
    pub elements: usize,
    /// Bytes after the last field.
    pub left_over: usize,
}

/// Walks a request body, which has to be laid out as `fields` say, with no more elements than a request may have; `None`
/// if it is not. More may follow.
pub(crate) fn check(body: &[u8], fields: &[Field], version: i16, flexible: bool) -> Option<Extent> {
    let mut walk = Walk {
        rest: body,
        version,
        flexible,
        elements_left: MAX_ELEMENTS,
    };
    walk.structure(fields)?;
    Some(Extent {
        elements: MAX_ELEMENTS - walk.elements_left,
        left_over: walk.rest.len(),
    })
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
    fn structure(&mut self, fields: &[Field]) -> Option<()> {
        fields.iter().try_for_each(|field| self.field(field))?;
        self.tagged_fields()
    }

    fn field(&mut self, field: &Field) -> Option<()> {
        if !(field.since..=field.until).contains(&self.version) {
            return Some(());
        }
        match &field.kind {
            Kind::Fixed(size) => self.take(*size).map(|_| ()),
            Kind::Text => self.text().map(|_| ()),
            Kind::Blob => {
                let length = self.length(4)?;
                self.take(length).map(|_| ())
            }
            Kind::Structs(fields) => {
                let count = self.elements()?;
                (0..count).try_for_each(|_| self.structure(fields))
            }
            Kind::Plain(fields) => {
                let count = self.elements()?;
                let mut element = || fields.iter().try_for_each(|field| self.field(field));
                (0..count).try_for_each(|_| element())
            }
        }
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
        let length = match *self.take(width)? {
            [a, b] => i32::from(i16::from_be_bytes([a, b])),
            [a, b, c, d] => i32::from_be_bytes([a, b, c, d]),
            _ => return None,
        };
        match length {
            -1 => Some(0),
            _ => usize::try_from(length).ok(),
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
