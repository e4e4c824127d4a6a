//! From a frame to a request.

use crate::messages::*;
use crate::wire::frame::encode;
use crate::wire::outline::{Walk, by_key};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// How many bytes are kept of a client's name. Each connection has the last one, also while it is idle.
const MAX_CLIENT_ID: usize = 1_024;

/// Why a request was not understood. There is no version to answer it in, so its connection is to be closed.
#[derive(Debug)]
pub enum Misfit {
    /// A call of Kafka's that is known here, in a version that is not.
    Version(String),
    Malformed(String),
}

impl<S: Into<String>> From<S> for Misfit {
    fn from(why: S) -> Self {
        Self::Malformed(why.into())
    }
}

/// A request whose bytes are laid out as they should be, not yet decoded.
#[derive(Debug)]
pub struct Envelope {
    api: ApiKey,
    /// The version to answer in.
    pub version: i16,
    pub correlation_id: i32,
    /// What the client calls itself, or the start of it; empty if it does not.
    pub client_id: String,
    /// Array elements and tagged fields in it.
    pub elements: usize,
    body: Option<Bytes>,
}

impl Envelope {
    /// Looks at the request in `frame`, without allocating more than its client's name.
    ///
    /// ApiVersions is the one request that a client may send in a version unknown to the broker, since it is how clients
    /// learn versions: it is answered in version 0 (KIP-511), and nothing past its correlation id is looked at.
    ///
    /// Bytes after the last field are let pass, as other brokers do: librdkafka's Metadata request has three.
    ///
    /// # Errors
    /// See [`Misfit`].
    pub fn open(frame: &Bytes) -> Result<Self, Misfit> {
        let start = frame.get(..8);
        let mut start = start.ok_or("frame too short for a request header")?;
        let (key, version, correlation_id) = (start.get_i16(), start.get_i16(), start.get_i32());
        let known = by_key(key).ok_or_else(|| format!("unknown API key {key}"))?;
        let (api, versions, outline) = known;
        let mut envelope = Self {
            api: *api,
            version,
            correlation_id,
            client_id: String::new(),
            body: None,
            elements: 0,
        };
        if !versions.contains(&version) {
            envelope.version = 0;
            return match api {
                ApiKey::ApiVersions => Ok(envelope),
                key => Err(Misfit::Version(format!("{key:?} v{version} not supported"))),
            };
        }

        let walked = Walk::behind_header(&frame[8..], *api, version).and_then(|mut walk| {
            envelope.client_id = start_of(walk.client_id);
            envelope.body = Some(frame.slice_ref(walk.rest));
            walk.body(outline)
        });
        let wrong = "fields end after the frame, or too many";
        envelope.elements = walked.ok_or_else(|| malformed(*api, version, wrong))?;
        Ok(envelope)
    }

    /// Decodes what is asked. `None` for an ApiVersions request in a version that is not known here.
    pub fn decode(&mut self) -> Result<Option<RequestKind>, String> {
        if (self.api, self.version) == (ApiKey::OffsetCommit, 1) {
            // The decoder does not know it any more. It is answered as the next one is.
            self.version = 2;
            self.body = self.body.as_deref().and_then(with_retention_time);
        }
        let (api, version) = (self.api, self.version);
        let decode = |mut body| RequestKind::decode(api, &mut body, version);
        let body = self.body.take().map(decode).transpose();
        body.map_err(|error| malformed(api, version, &error.to_string()))
    }
}

fn start_of(client_id: &[u8]) -> String {
    let start = &client_id[..client_id.len().min(MAX_CLIENT_ID)];
    // What is no UTF-8 becomes longer.
    let start = String::from_utf8_lossy(start);
    start[..start.floor_char_boundary(MAX_CLIENT_ID)].to_owned()
}

/// An OffsetCommit request of version 1, which has a time for each offset, as one of version 2, which has one for all.
/// Both leave it to the broker.
fn with_retention_time(body: &[u8]) -> Option<Bytes> {
    const OF_THE_BROKER: i64 = -1;
    let mut walk = Walk::along(body, 1);
    let (_group, _generation, _member) = (walk.text()?, walk.take(4)?, walk.text()?);
    let (before, mut rest) = body.split_at(body.len() - walk.rest.len());
    let mut bytes = BytesMut::from(before);
    bytes.put_i64(OF_THE_BROKER);
    for _topic in 0..walk.elements()? {
        walk.text()?;
        for _partition in 0..walk.elements()? {
            walk.take(12)?;
            bytes.put_slice(&rest[..rest.len() - walk.rest.len()]);
            let _time = walk.take(8)?;
            rest = walk.rest;
            walk.text()?;
        }
    }
    bytes.put_slice(rest);
    Some(bytes.freeze())
}

/// The text of an error of the decoder may end with a line.
fn malformed(key: ApiKey, version: i16, error: &str) -> String {
    format!("malformed {key:?} v{version}: {}", error.trim_end())
}

/// The start of a request has this many bytes: enough for the names up to its first batch.
pub(crate) const START: usize = 2 * 1024;

/// Longest request whose bytes are read to the end, and thrown away.
pub(crate) const LONGEST: usize = 1 << 30;

/// The frame that answers a request which starts like this and is longer than any that is taken. Its producer is told so
/// with a Kafka error: it would send the request again and again if the connection were just closed. `None` if it is no
/// produce request, or one for several partitions, or one that wants no answer.
pub(crate) fn refuse(start: &[u8]) -> Option<BytesMut> {
    let (mut start, rest) = start.split_at_checked(8)?;
    let (key, version, correlation_id) = (start.get_i16(), start.get_i16(), start.get_i32());
    let (api, versions, _) = by_key(key)?;
    let is_taken = *api == ApiKey::Produce && versions.contains(&version);
    let mut walk = Walk::behind_header(rest, *api, version)?;
    walk.text()?;
    let (acks_and_timeout, topics) = (walk.take(6)?, walk.elements()?);
    let topic = String::from_utf8_lossy(walk.text()?).into_owned();
    let (partitions, index) = (walk.elements()?, walk.take(4)?.get_i32());
    let is_answered = acks_and_timeout[..2] != [0, 0] && topics == 1 && partitions == 1;
    if !is_taken || !is_answered {
        return None;
    }
    let partition = PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(Code::MessageTooLarge.code())
        .with_base_offset(-1);
    let topic = TopicProduceResponse::default()
        .with_name(TopicName(StrBytes::from_string(topic)))
        .with_partition_responses(vec![partition]);
    let response = ProduceResponse::default().with_responses(vec![topic]);
    // (It is short, and so can be encoded.)
    encode(&response.into(), correlation_id, version, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_client_id_the_start_is_kept() {
        for (byte, length, kept) in [
            (b'a', 7_u16, 7),
            (b'a', 32_000, 1_024),
            (0xff, 7, 21),
            (0xff, 32_000, 1_023),
        ] {
            let mut frame = BytesMut::from(&[0, 18, 0, 0, 0, 0, 0, 1][..]);
            frame.put_u16(length);
            frame.put_bytes(byte, length.into());
            let id = Envelope::open(&frame.freeze())
                .expect("a request")
                .client_id;
            assert_eq!((id.len(), id.capacity()), (kept, kept));
        }
    }
}
