//! What client and server say to each other: the id of a call, and a number. The response is the number's square.

use std::io::{self, Read, Write};

pub(crate) struct Frame {
    pub(crate) id: u64,
    pub(crate) number: u64,
}

impl Frame {
    pub(crate) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        stream.write_all(&self.id.to_be_bytes())?;
        stream.write_all(&self.number.to_be_bytes())
    }

    /// `None` at the end of the stream.
    pub(crate) fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let mut bytes = [0; size_of::<u64>()];
        match stream.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let id = u64::from_be_bytes(bytes);
        stream.read_exact(&mut bytes)?;
        let number = u64::from_be_bytes(bytes);
        Ok(Some(Self { id, number }))
    }
}
