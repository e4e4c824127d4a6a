//! HTTP.
//!
//! ```text
//! POST /topics/{topic}                  201 {"position":"1f-42"}
//! GET  /topics/{topic}?after=N&wait=S   200 {"position":"1f-43","skipped":0,"events":[{"version":43,"body":"..."}]}
//!                                       204 nothing in this time
//!                                       410 {"position":"2a-7","why":"..."} what was seen, or came after it, is lost
//! GET  /stats                           200, figures of this node     GET / a page     GET /metrics for Prometheus
//! ```
//!
//! A refusal is one sentence of plain text: 400 for bad input, 413 for a body that is too large, 503 when this node is
//! full, leaves, or cannot reach the store.

mod query;

use crate::gateway::{Client, Gateway, PollError};
use crate::page;
use crate::store::Topic;
use axum::Router;
use axum::extract::rejection::{QueryRejection, StringRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use query::Poll;
use request_purgatory_cluster::Position;
use serde_json::json;
use std::sync::Arc;
use tower_http::timeout::RequestBodyTimeoutLayer;

/// The largest body of a post, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
/// The longest topic, in bytes. (A subject of NATS holds it also when each byte is written as three.)
pub const MAX_TOPIC: usize = 256;

const NO_STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

/// The routes of a node. Each request has a [`Client`] among its extensions.
pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/topics/{topic}", get(poll).post(post))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(RequestBodyTimeoutLayer::new(gateway.patience().body))
        .route("/stats", get(stats))
        .route("/metrics", get(metrics))
        .merge(page::routes())
        .fallback(async || Refusal::Plain(StatusCode::NOT_FOUND, "there is no such path".into()))
        .method_not_allowed_fallback(async || {
            let why = "this path does not take this method".into();
            Refusal::Plain(StatusCode::METHOD_NOT_ALLOWED, why)
        })
        .with_state(gateway)
}

/// An answer other than what was asked for, and why in one sentence.
#[derive(Debug)]
pub(crate) enum Refusal {
    Plain(StatusCode, String),
    /// The client goes on from this position.
    Gone(String, Position),
}

impl Refusal {
    pub(crate) fn bad(why: impl Into<String>) -> Self {
        Self::Plain(StatusCode::BAD_REQUEST, why.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::Plain(status, why) => (status, why),
            Self::Gone(why, position) => {
                let json = json!({ "position": position.to_string(), "why": why });
                return (StatusCode::GONE, [NO_STORE], axum::Json(json)).into_response();
            }
        };
        let text = format!("{why}\n");
        match status {
            StatusCode::SERVICE_UNAVAILABLE => {
                (status, [NO_STORE, (header::RETRY_AFTER, "1")], text).into_response()
            }
            _ => (status, [NO_STORE], text).into_response(),
        }
    }
}

impl From<PollError> for Refusal {
    fn from(error: PollError) -> Self {
        match error {
            PollError::Expired => Self::Plain(StatusCode::NO_CONTENT, String::new()),
            PollError::Gone(why, position) => Self::Gone(why, position),
            PollError::Refused(why) => Self::Plain(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
}

type Named = Result<Path<String>, axum::extract::rejection::PathRejection>;

fn topic(path: Named) -> Result<Topic, Refusal> {
    let Path(topic) = path.map_err(|_| Refusal::bad("the topic is not UTF-8"))?;
    match topic.len() {
        1..=MAX_TOPIC => Ok(topic.into()),
        length => Err(Refusal::bad(format!(
            "the topic has {length} bytes, and may have 1 to {MAX_TOPIC}"
        ))),
    }
}

async fn post(
    State(gateway): State<Arc<Gateway>>,
    path: Named,
    body: Result<String, StringRejection>,
) -> Result<Response, Refusal> {
    let topic = topic(path)?;
    let body = body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let why = format!("the body has more than {MAX_BODY} bytes");
            Refusal::Plain(StatusCode::PAYLOAD_TOO_LARGE, why)
        }
        _ => Refusal::bad("the body is not UTF-8 text, or ended too early"),
    })?;
    match gateway.post(&topic, &body).await {
        Ok(position) => {
            let json = json!({ "position": position.to_string() });
            Ok((StatusCode::CREATED, axum::Json(json)).into_response())
        }
        Err(error) => Err(Refusal::Plain(
            StatusCode::SERVICE_UNAVAILABLE,
            error.to_string(),
        )),
    }
}

async fn poll(
    State(gateway): State<Arc<Gateway>>,
    path: Named,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    Extension(client): Extension<Client>,
) -> Result<Response, Refusal> {
    let topic = topic(path)?;
    let Query(pairs) = query.map_err(|error| Refusal::bad(error.body_text()))?;
    let asked = Poll::parse(&pairs, gateway.max_wait());
    let Poll { seen, wait } = asked.map_err(Refusal::bad)?;
    let answer = gateway.poll(topic, seen, wait, &client).await?;
    let json = (header::CONTENT_TYPE, "application/json");
    Ok(([NO_STORE, json], answer.json.clone()).into_response())
}

/// Figures only; so pages of other nodes may read them.
async fn stats(State(gateway): State<Arc<Gateway>>) -> Response {
    let anyone = (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    ([NO_STORE, anyone], axum::Json(gateway.stats())).into_response()
}

async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let format = (
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    );
    ([NO_STORE, format], gateway.metrics()).into_response()
}
