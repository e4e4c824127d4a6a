//! By which names the page may be asked for. A page of another site can have a name of its own resolve to this
//! machine and then read what is served here (DNS rebinding); but it cannot hide that name.

use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// The name that was given on the command line, beside which addresses and `localhost` are good.
#[derive(Debug, Clone)]
pub(super) struct Host(Arc<str>);

impl Host {
    pub(super) fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return false;
        };
        host.to_str()
            .is_ok_and(|host| self.admits_name(name_of(host)))
    }

    fn admits_name(&self, name: &str) -> bool {
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || name.eq_ignore_ascii_case(&self.0)
    }
}

/// The name without its port, and an IPv6 address without its brackets.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.split(':').next().unwrap_or(host)
}

/// Refuses requests that are meant for another host.
pub(super) async fn check(State(host): State<Host>, request: Request, next: Next) -> Response {
    if host.admits(request.headers()) {
        return next.run(request).await;
    }
    let reason =
        "this name is not served here: use an address, localhost, or the name given to --metrics\n";
    (StatusCode::MISDIRECTED_REQUEST, reason).into_response()
}

#[cfg(test)]
mod tests {
    use super::{HOST, HeaderMap, Host};

    #[test]
    fn addresses_localhost_and_the_given_name_are_good() {
        let host = Host::new("broker.internal");
        let admits = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, value.parse().expect("a header"));
            host.admits(&headers)
        };
        for good in [
            "127.0.0.1:9100",
            "10.1.2.3",
            "[::1]:9100",
            "localhost",
            "LOCALHOST:9100",
            "broker.internal:9100",
        ] {
            assert!(admits(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9100",
            "127.0.0.1.evil.example",
            "",
            "localhost.evil:1",
        ] {
            assert!(!admits(bad), "{bad}");
        }
        assert!(!host.admits(&HeaderMap::new()));
    }
}
