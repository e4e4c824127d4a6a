//! From a frame to a request.

use crate::wire::apis::Api;
use crate::wire::outline;
use bytes::Bytes;
pub use kafka_protocol::messages::RequestKind;
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::{Decodable, StrBytes};

/// A request that was understood.
#[derive(Debug)]
pub struct Request {
    pub correlation_id: i32,
    /// What the client calls itself; empty if it does not.
    pub client_id: StrBytes,
    /// The version to answer in.
    pub version: i16,
    /// What is asked. `None` for an ApiVersions request in a version that is not known here; see [`Envelope::open`].
    pub body: Option<RequestKind>,
}

/// Why a request was not understood. There is no version to answer it in, so its connection is closed.
#[derive(Debug)]
pub struct Malformed(pub String);

impl Malformed {
    /// The text of an error of the decoder may end with a line.
    fn new(key: ApiKey, version: i16, error: &str) -> Self {
        Self(format!(
            "malformed {key:?} v{version}: {}",
            error.trim_end()
        ))
    }
}

/// A request whose bytes are laid out as they should be, not yet decoded.
#[derive(Debug)]
pub struct Envelope {
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    client_id: StrBytes,
    body: Option<Bytes>,
    elements: usize,
}

impl Envelope {
    /// Looks at the request in `frame`, without allocating.
    ///
    /// ApiVersions is the one request that a client may send in a version unknown to the broker, since it is how clients
    /// learn versions: it is answered in version 0 (KIP-511), and nothing past its correlation id is looked at.
    ///
    /// Bytes after the last field are let pass, as other brokers do: librdkafka's Metadata request has three.
    pub fn open(frame: &Bytes) -> Result<Self, Malformed> {
        let Some(&[k0, k1, v0, v1, c0, c1, c2, c3]) = frame.first_chunk() else {
            return Err(Malformed("frame too short for a request header".to_owned()));
        };
        let key = i16::from_be_bytes([k0, k1]);
        let version = i16::from_be_bytes([v0, v1]);
        let api = Api::by_key(key).ok_or_else(|| Malformed(format!("unknown API key {key}")))?;
        let mut envelope = Self {
            api: api.key,
            version,
            correlation_id: i32::from_be_bytes([c0, c1, c2, c3]),
            client_id: StrBytes::new(),
            body: None,
            elements: 0,
        };
        if !api.versions.contains(&version) {
            envelope.version = 0;
            return match api.key {
                ApiKey::ApiVersions => Ok(envelope),
                key => Err(Malformed(format!("{key:?} v{version} not supported"))),
            };
        }

        let mut body = frame.clone();
        let header_version = api.key.request_header_version(version);
        let header = RequestHeader::decode(&mut body, header_version)
            .map_err(|error| Malformed::new(api.key, version, &error.to_string()))?;
        envelope.client_id = header.client_id.unwrap_or_default();
        // From its second version on, the header has tagged fields, and the body has them and compact lengths.
        envelope.elements = outline::check(&body, api.body, version, header_version >= 2)
            .ok_or_else(|| {
                let wrong = "fields end after the frame, or too many";
                Malformed::new(api.key, version, wrong)
            })?;
        envelope.body = Some(body);
        Ok(envelope)
    }

    /// Array elements and tagged fields in the body.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Decodes the body.
    pub fn decode(self) -> Result<Request, Malformed> {
        let (api, version) = (self.api, self.version);
        let decode = |mut body| RequestKind::decode(api, &mut body, version);
        let body = self.body.map(decode).transpose();
        Ok(Request {
            body: body.map_err(|error| Malformed::new(api, version, &error.to_string()))?,
            correlation_id: self.correlation_id,
            client_id: self.client_id,
            version,
        })
    }
}
