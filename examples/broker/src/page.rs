//! What the broker shows of its purgatories: figures for Prometheus, and a page of what waits now.
//!
//! | path | |
//! |---|---|
//! | `/` | the page: what each purgatory has counted, and the requests that have waited longest. It asks again each second |
//! | `/metrics` | what the purgatories told the recorder, as Prometheus reads it |

use crate::broker::Broker;
use crate::broker::delayed::Delayed;
use crate::listen::Listeners;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST};
use axum::http::{StatusCode, uri::Authority};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use request_purgatory::Purgatory;
use request_purgatory::purgatory::Stats;
use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Upper bounds of the histograms, in seconds. Waits are often 100 or 500 ms, or as many seconds, and a little more:
/// so there is a bound close behind these, or a quantile would be taken for the next round number.
#[rustfmt::skip]
const PARK_TIME: [f64; 36] = [
    0.001, 0.001_5, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.11, 0.15, 0.2, 0.3, 0.5,
    0.55, 0.7, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 5.5, 7.0, 10.0, 11.0, 15.0, 20.0, 30.0, 33.0, 60.0, 300.0,
];
#[rustfmt::skip]
const LATENESS: [f64; 11] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0];

/// The page needs nothing from elsewhere, and may get nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const FIGURES: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How often what was recorded is moved to the histograms, which do not grow.
const UPKEEP: Duration = Duration::from_secs(5);

/// Most connections. Who comes when there are as many waits in the backlog of the system.
const CONNECTIONS: usize = 32;

/// How long one lasts, of which its request may take a part. It ends with its answer, which may not be read.
const LASTS: Duration = Duration::from_secs(20);
const HEAD: Duration = Duration::from_secs(10);

/// Pause after a failed accept, as at the other port.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// How many of the oldest requests are shown of each purgatory, and how many keys of each request.
const SHOWN: usize = 8;
const NAMED: usize = 20;

/// What a purgatory counts, by the names under which people are shown it.
pub(crate) const COUNTS: [(&str, Count); 9] = [
    ("completed at once", |it| it.completed_at_once),
    // By a key; a fetch or a produce also as its client left, since it may want the answer still.
    ("completed or client left", |it| it.completed),
    ("expired", |it| it.expired),
    ("cancelled", |it| it.cancelled),
    ("ended by shutdown", |it| it.shut_down),
    ("rejected", |it| it.rejected),
    ("aborted", |it| it.aborted),
    ("panicked", |it| it.panicked),
    ("missed checks", |it| it.missed_checks),
];

type Count = fn(&Stats) -> u64;

/// Becomes the recorder of this process: the purgatories that are built after this tell it.
pub(crate) fn record() -> anyhow::Result<PrometheusHandle> {
    let park_time = Matcher::Full("purgatory_park_time_seconds".to_owned());
    let lateness = Matcher::Full("purgatory_lateness_seconds".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(park_time, &PARK_TIME)?
        .set_buckets_for_metric(lateness, &LATENESS)?;
    Ok(recorder.install_recorder()?)
}

/// Serves the page for as long as the current tokio runtime runs, and returns where. `load`: what the broker has to do.
pub(crate) async fn show(
    endpoint: &str,
    recorded: PrometheusHandle,
    broker: Arc<Broker>,
    load: &'static str,
) -> anyhow::Result<SocketAddr> {
    let listeners = Listeners::bind(endpoint).await?;
    let address = listeners.address()?;
    let figures = recorded.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            figures.run_upkeep();
        }
    });
    let (host, _) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
    let host: Arc<str> = host.into();
    let page = async move || {
        // A snapshot goes over all that is parked: other tasks of this thread go on elsewhere meanwhile.
        let page = tokio::task::block_in_place(|| Page(&broker, load).to_string());
        ([(CONTENT_SECURITY_POLICY, POLICY)], Html(page))
    };
    let metrics = async move || ([(CONTENT_TYPE, FIGURES)], recorded.render());
    let router = Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics))
        .layer(from_fn_with_state(host, check_host));
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    for listener in listeners.0 {
        tokio::spawn(serve(listener, router.clone(), Arc::clone(&room)));
    }
    Ok(address)
}

/// Clients of the page take no more files of the broker than there is `room` for, whatever they send or do not send.
async fn serve(listener: TcpListener, router: Router, room: Arc<Semaphore>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false);
    let service = TowerToHyperService::new(router);
    // Nothing closes the semaphore.
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        match listener.accept().await {
            Ok((socket, _)) => {
                let serving = http.serve_connection(TokioIo::new(socket), service.clone());
                tokio::spawn(async move {
                    // The client has left, or its request makes no sense: there is no one to tell.
                    let _ = timeout(LASTS, serving).await;
                    drop(place);
                });
            }
            Err(error) => {
                log!("cannot accept a connection to the page: {error}");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Refuses what is meant for another host. A page from elsewhere can have a name of its own resolve to this machine, and
/// would read what is served here (DNS rebinding); but its browser says that name.
async fn check_host(State(given): State<Arc<str>>, request: Request, next: Next) -> Response {
    let asked = request.headers().get(HOST);
    let asked = asked.and_then(|it| Authority::try_from(it.as_bytes()).ok());
    let is_here = asked.is_some_and(|asked| {
        let host = asked.host();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let is_name = |name: &str| host.eq_ignore_ascii_case(name);
        address.parse::<IpAddr>().is_ok() || is_name("localhost") || is_name(&given)
    });
    let why =
        "this host is not served here: use an address, localhost, or the host given to --metrics\n";
    match is_here {
        true => next.run(request).await,
        false => (StatusCode::MISDIRECTED_REQUEST, why).into_response(),
    }
}

struct Page<'a>(&'a Broker, &'a str);

/// (Names of topics have no letter that means something in HTML.)
impl Display for Page<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(broker, load) = self;
        let purgatories = &broker.purgatories;
        let [rebalances, sessions] = broker.groups.stats();
        let all = [
            ("produce", purgatories.produce.stats()),
            ("fetch", purgatories.fetch.stats()),
            ("rebalances", rebalances),
            ("sessions", sessions),
        ];
        write!(f, "{START}<p>{load}</p>")?;
        f.write_str("<table><tr><th>purgatory<th>parked<th>watch entries")?;
        for (name, _) in COUNTS {
            write!(f, "<th>{name}")?;
        }
        for (name, stats) in all {
            write!(f, "\n<tr><th>{name}<td>{}", stats.parked)?;
            write!(f, "<td>{}", stats.watched)?;
            for (_, count) in COUNTS {
                write!(f, "<td>{}", count(&stats))?;
            }
        }
        f.write_str("</table>")?;
        write_oldest(f, "produce", &purgatories.produce)?;
        write_oldest(f, "fetch", &purgatories.fetch)
    }
}

const START: &str = "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=1>
<title>Purgatories of the broker</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 24px; color-scheme: light dark }
td, th { padding: 2px 12px 2px 0; text-align: right; font-weight: 400; font-variant-numeric: tabular-nums }
th:first-child, .keys { text-align: left }
</style>
<h1>Purgatories of the broker</h1>
<p>What waits now, and what was counted since the start. For rates, distributions and alerts, have Prometheus read <a
href=metrics>the metrics</a>.</p>
";

/// Those that have waited longest, with their keys.
fn write_oldest(f: &mut Formatter<'_>, name: &str, purgatory: &Purgatory<Delayed>) -> fmt::Result {
    write!(f, "\n<h2>Oldest of {name}</h2><table>")?;
    f.write_str("<tr><th>parked for<th>time left<th class=keys>keys")?;
    for mut operation in purgatory.snapshot().into_iter().take(SHOWN) {
        let keys = &mut operation.keys;
        keys.sort();
        let age = operation.age;
        // Their timeouts are bounded, so each has an end.
        let left = operation.remaining.unwrap_or_default();
        write!(f, "\n<tr><td>{age:.1?}<td>{left:.1?}<td class=keys>")?;
        for key in keys.iter().take(NAMED) {
            write!(f, "{}-{} ", key.topic, key.partition)?;
        }
        if let Some(more @ 1..) = keys.len().checked_sub(NAMED) {
            write!(f, "and {more} more")?;
        }
    }
    f.write_str("</table>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// Or they would take all files that the broker may open, and it could accept no client.
    #[tokio::test(start_paused = true)]
    async fn half_open_connections_are_few_and_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let answer = "x".repeat(20 << 20);
        let router = Router::new().route("/", get(async || answer));
        let room = Arc::new(Semaphore::new(3));
        tokio::spawn(serve(listener, router, Arc::clone(&room)));

        let request = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let mut clients = Vec::new();
        // Silent, in the middle of its request, with an answer that it does not read; and one too many.
        for sent in ["", &request[..20], request, request] {
            let mut client = TcpStream::connect(address).await.expect("connect");
            client.write_all(sent.as_bytes()).await.expect("it is sent");
            clients.push(client);
        }
        let mut received = [0; 12];
        let mut last = clients.pop().expect("four clients");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(room.available_permits(), 0);
        let early = timeout(Duration::from_secs(1), last.read(&mut received)).await;
        assert!(early.is_err(), "there was room for it");
        let read = timeout(2 * LASTS, last.read_exact(&mut received)).await;
        read.expect("room").expect("an answer");
        assert_eq!(&received, b"HTTP/1.1 200");
        drop(last);
        sleep(LASTS).await;
        // The third is for who comes next.
        assert_eq!(room.available_permits(), 2);
    }
}
