//! The outlines of the requests, and a walk along them before anything is decoded.
//!
//! A Kafka array starts with its element count, and a decoder reserves room for that many elements before
//! it reads the first. Twelve bytes from any client are then enough to ask for gigabytes, and an allocation that
//! fails aborts the process. So every request is first walked along its outline, without allocating: only
//! counts and lengths that the bytes in hand really cover get as far as the decoder.

use bytes::Bytes;

/// Most array elements and tagged fields that one request may hold, all its arrays together.
///
/// An element takes up to thirty times as much memory decoded as on the wire. This is room for each partition that a
/// broker may have, named alone in its topic.
const MAX_ELEMENTS: usize = 20_000;

/// One field of a request, as far as finding its end needs.
#[derive(Debug)]
pub(crate) enum Field {
    /// This many bytes.
    Fixed(usize),
    /// A string, which may be null.
    Text,
    /// A byte string, which may be null: record batches.
    Blob,
    /// An array of structures with these fields; may be null.
    Structs(&'static [Field]),
    /// An array of scalars of this many bytes each; may be null.
    Scalars(usize),
    /// An array of strings; may be null.
    Texts,
    /// The field is there from this version on.
    Since(i16, &'static Field),
    /// The field is there up to this version.
    Until(i16, &'static Field),
}

/// Why bytes do not fit an outline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    Truncated,
    NegativeLength,
    TooManyElements,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "a field ends after the frame does",
            Self::NegativeLength => "a length is negative",
            Self::TooManyElements => "more array elements than a request may have",
        })
    }
}

/// What a walk along a request body found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    /// Array elements and tagged fields.
    pub elements: usize,
    /// Bytes after the last field.
    pub left_over: usize,
}

/// Walks a request body, which has to be laid out as `fields` say. More may follow.
pub(crate) fn check_body(
    body: &[u8],
    fields: &[Field],
    version: i16,
    flexible: bool,
) -> Result<Extent, Misfit> {
    let mut walk = Walk::new(body, version, flexible);
    walk.structure(fields)?;
    Ok(Extent {
        elements: MAX_ELEMENTS - walk.elements_left,
        left_over: walk.rest.len(),
    })
}

/// Walks a request header (key, version, correlation id, client id, tagged fields) and returns its length.
///
/// The client id is an old-style string in every header version; only the tagged fields are new.
pub(crate) fn header_length(frame: &[u8], flexible: bool) -> Result<usize, Misfit> {
    let mut walk = Walk::new(frame, 0, false);
    walk.skip(8)?;
    walk.field(&Field::Text)?;
    walk.flexible = flexible;
    walk.tagged_fields()?;
    Ok(frame.len() - walk.rest.len())
}

/// The client id in a header that was [walked](header_length) before; empty if it is null.
pub(crate) fn client_id(frame: &Bytes) -> Bytes {
    let length = match frame.get(8..10) {
        Some(&[high, low]) => i16::from_be_bytes([high, low]),
        _ => 0,
    };
    let end = 10 + usize::try_from(length).unwrap_or(0);
    match end <= frame.len() {
        true => frame.slice(10..end),
        false => Bytes::new(),
    }
}

struct Walk<'a> {
    rest: &'a [u8],
    version: i16,
    /// Compact lengths (varint, plus one) and tagged fields after each structure.
    flexible: bool,
    elements_left: usize,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], version: i16, flexible: bool) -> Self {
        Self {
            rest: bytes,
            version,
            flexible,
            elements_left: MAX_ELEMENTS,
        }
    }

    fn structure(&mut self, fields: &[Field]) -> Result<(), Misfit> {
        for field in fields {
            self.field(field)?;
        }
        self.tagged_fields()
    }

    fn field(&mut self, field: &Field) -> Result<(), Misfit> {
        match field {
            Field::Fixed(size) => self.skip(*size),
            Field::Text => {
                let length = self.length(2)?;
                self.skip(length)
            }
            Field::Blob => {
                let length = self.length(4)?;
                self.skip(length)
            }
            Field::Structs(fields) => {
                for _ in 0..self.elements()? {
                    self.structure(fields)?;
                }
                Ok(())
            }
            Field::Scalars(size) => {
                let count = self.elements()?;
                self.skip(count * size)
            }
            Field::Texts => {
                for _ in 0..self.elements()? {
                    self.field(&Field::Text)?;
                }
                Ok(())
            }
            Field::Since(first, field) if self.version >= *first => self.field(field),
            Field::Until(last, field) if self.version <= *last => self.field(field),
            Field::Since(..) | Field::Until(..) => Ok(()),
        }
    }

    /// An element count, charged against what a request may hold.
    fn elements(&mut self) -> Result<usize, Misfit> {
        let count = self.length(4)?;
        self.charge(count)?;
        Ok(count)
    }

    fn charge(&mut self, count: usize) -> Result<(), Misfit> {
        self.elements_left = self
            .elements_left
            .checked_sub(count)
            .ok_or(Misfit::TooManyElements)?;
        Ok(())
    }

    /// A length or count: `width` bytes big-endian where -1 is null, or a varint of length plus one where 0 is.
    fn length(&mut self, width: usize) -> Result<usize, Misfit> {
        if self.flexible {
            return Ok((self.varint()? as usize).saturating_sub(1));
        }
        let bytes = self.take(width)?;
        let length = match *bytes {
            [a, b] => i32::from(i16::from_be_bytes([a, b])),
            [a, b, c, d] => i32::from_be_bytes([a, b, c, d]),
            _ => return Err(Misfit::Truncated),
        };
        match length {
            -1 => Ok(0),
            _ => usize::try_from(length).map_err(|_| Misfit::NegativeLength),
        }
    }

    fn tagged_fields(&mut self) -> Result<(), Misfit> {
        if !self.flexible {
            return Ok(());
        }
        let count = self.varint()? as usize;
        self.charge(count)?;
        for _ in 0..count {
            self.varint()?;
            let size = self.varint()? as usize;
            self.skip(size)?;
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u32, Misfit> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Misfit::NegativeLength)
    }

    fn skip(&mut self, size: usize) -> Result<(), Misfit> {
        self.take(size).map(|_| ())
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], Misfit> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(Misfit::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}
