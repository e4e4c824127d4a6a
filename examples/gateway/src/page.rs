//! The page: plain HTML, one script, one style sheet, nothing from elsewhere.

use crate::gateway::Gateway;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use std::sync::Arc;

const NO_SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

pub(crate) fn routes() -> Router<Arc<Gateway>> {
    let script = (header::CONTENT_TYPE, "text/javascript; charset=utf-8");
    let style = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    Router::new()
        .route("/", get(page))
        .route(
            "/page.js",
            get(async move || ([script, NO_SNIFF], include_str!("page/page.js"))),
        )
        .route(
            "/page.css",
            get(async move || ([style, NO_SNIFF], include_str!("page/page.css"))),
        )
}

async fn page(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    // Peers are scheme, host and port: nothing in them ends the directive.
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' {}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        gateway.peers().join(" ")
    );
    let policy = [(header::CONTENT_SECURITY_POLICY, policy)];
    (policy, [NO_SNIFF], Html(include_str!("page/page.html")))
}
