//! From a frame to a request.

use crate::wire::apis::Api;
use crate::wire::groups::GroupRequest;
use crate::wire::shape::{self, Extent, Misfit};
use bytes::Bytes;
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, FetchRequest,
    InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest,
};
use kafka_protocol::protocol::Decodable;

/// A request that was understood.
#[derive(Debug)]
pub struct Request {
    pub correlation_id: i32,
    /// What the client calls itself; empty if it does not.
    pub client_id: Bytes,
    /// The version to answer in.
    pub version: i16,
    pub body: Body,
}

/// What is asked.
#[derive(Debug)]
pub enum Body {
    ApiVersions {
        /// The client asked in a version that is not known here; see [`Envelope::open`].
        supported: bool,
    },
    Metadata(MetadataRequest),
    Produce(ProduceRequest),
    Fetch(FetchRequest),
    ListOffsets(ListOffsetsRequest),
    Group(GroupRequest),
    CreateTopics(CreateTopicsRequest),
    DeleteTopics(DeleteTopicsRequest),
    DescribeConfigs(DescribeConfigsRequest),
    InitProducerId(InitProducerIdRequest),
}

/// A request that was not understood. There is no version to answer it in, so its connection is closed.
#[derive(Debug)]
pub enum Malformed {
    NoHeader,
    UnknownApi(i16),
    UnsupportedVersion(ApiKey, i16),
    Layout(ApiKey, i16, Misfit),
    Content(ApiKey, i16, String),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoHeader => write!(f, "frame too short for a request header"),
            Self::UnknownApi(key) => write!(f, "unknown API key {key}"),
            Self::UnsupportedVersion(key, version) => write!(f, "{key:?} v{version} not supported"),
            Self::Layout(key, version, misfit) => {
                write!(f, "malformed {key:?} v{version}: {misfit}")
            }
            Self::Content(key, version, error) => {
                write!(f, "malformed {key:?} v{version}: {error}")
            }
        }
    }
}

/// A request whose bytes are laid out as they should be, not yet decoded.
#[derive(Debug)]
pub struct Envelope {
    api: ApiKey,
    correlation_id: i32,
    client_id: Bytes,
    version: i16,
    /// `None` for an ApiVersions request in a version that is not known here.
    body: Option<Bytes>,
    extent: Extent,
}

impl Envelope {
    /// Looks at the request in `frame`, without allocating.
    ///
    /// ApiVersions is the one request that a client may send in a version unknown to the broker, since it is
    /// how clients learn versions: it is answered in version 0 (KIP-511), and nothing past its correlation id
    /// is looked at.
    ///
    /// Bytes after the last field are let pass, as other brokers do: librdkafka's Metadata request has three.
    pub fn open(frame: &Bytes) -> Result<Self, Malformed> {
        let Some(&[k0, k1, v0, v1, c0, c1, c2, c3]) = frame.first_chunk() else {
            return Err(Malformed::NoHeader);
        };
        let key = i16::from_be_bytes([k0, k1]);
        let version = i16::from_be_bytes([v0, v1]);
        let correlation_id = i32::from_be_bytes([c0, c1, c2, c3]);

        let api = Api::by_key(key).ok_or(Malformed::UnknownApi(key))?;
        if !api.versions.contains(&version) {
            return match api.key {
                ApiKey::ApiVersions => Ok(Self {
                    api: api.key,
                    correlation_id,
                    client_id: Bytes::new(),
                    version: 0,
                    body: None,
                    extent: Extent::default(),
                }),
                key => Err(Malformed::UnsupportedVersion(key, version)),
            };
        }

        let layout = |misfit| Malformed::Layout(api.key, version, misfit);
        let flexible = version >= api.first_flexible;
        let header = shape::header_length(frame, flexible).map_err(layout)?;
        let body = frame.slice(header..);
        let extent = shape::check_body(&body, api.body, version, flexible).map_err(layout)?;
        Ok(Self {
            api: api.key,
            correlation_id,
            client_id: shape::client_id(frame),
            version,
            body: Some(body),
            extent,
        })
    }

    /// What was found in the body.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Which request this is.
    pub(crate) fn api(&self) -> (ApiKey, i16) {
        (self.api, self.version)
    }

    /// Decodes the body.
    pub fn decode(self) -> Result<Request, Malformed> {
        let body = match self.body {
            None => Body::ApiVersions { supported: false },
            Some(mut bytes) => Body::decode(self.api, self.version, &mut bytes)?,
        };
        Ok(Request {
            correlation_id: self.correlation_id,
            client_id: self.client_id,
            version: self.version,
            body,
        })
    }
}

impl Body {
    fn decode(key: ApiKey, version: i16, bytes: &mut Bytes) -> Result<Self, Malformed> {
        let body = match key {
            ApiKey::ApiVersions => Ok(Self::ApiVersions { supported: true }),
            ApiKey::Metadata => Decodable::decode(bytes, version).map(Self::Metadata),
            ApiKey::Produce => Decodable::decode(bytes, version).map(Self::Produce),
            ApiKey::Fetch => Decodable::decode(bytes, version).map(Self::Fetch),
            ApiKey::ListOffsets => Decodable::decode(bytes, version).map(Self::ListOffsets),
            ApiKey::CreateTopics => Decodable::decode(bytes, version).map(Self::CreateTopics),
            ApiKey::DeleteTopics => Decodable::decode(bytes, version).map(Self::DeleteTopics),
            ApiKey::DescribeConfigs => Decodable::decode(bytes, version).map(Self::DescribeConfigs),
            ApiKey::InitProducerId => Decodable::decode(bytes, version).map(Self::InitProducerId),
            _ => GroupRequest::decode(key, version, bytes)
                .ok_or(Malformed::UnknownApi(key as i16))?
                .map(Self::Group),
        };
        body.map_err(|error| Malformed::Content(key, version, error.to_string()))
    }
}
