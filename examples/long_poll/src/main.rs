//! HTTP long polling: a request for messages that are not there yet waits for them, and costs no thread.
//!
//! ```text
//! cargo run --release -p long_poll -- --listen 127.0.0.1:8080
//! curl 'http://127.0.0.1:8080/topics/news?after=0&wait=30s' &      messages after the first 0, within 30 seconds
//! curl 'http://127.0.0.1:8080/topics/news' -d 'hello'              appends one
//! cargo run --release -p long_poll -- --load 10000          parks 10,000 requests, and answers them all
//! ```
//!
//! A request whose client goes away is dropped by the server, and its wait with it. A client that closes its sending
//! half only (`nc -N`) looks the same from here, and `axum::serve` takes it for one that has gone: a wait of its ends,
//! and it is sent no more, not even the rest of an answer. What it has posted may be done all the same.
//! `examples/gateway` answers such clients, and for that it has to look itself who has gone.
//!
//! The answers are those of the table "What to answer" in `docs/guide/from-polling.md`. The server is in this file;
//! `load` is the clients of the measurement.

mod load;
mod signal;

use anyhow::{Context, Result, anyhow};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use request_purgatory::{Purgatory, Waits, future::WaitError};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How long clients may take, at the shutdown, to read their answers.
const PARTING: Duration = Duration::from_secs(2);

/// The messages of each topic. (Apart from the purgatory, so that what is parked in there does not own it.)
#[derive(Default)]
struct Topics(Mutex<HashMap<String, Vec<String>>>);

impl Topics {
    fn append(&self, topic: &str, message: String) -> usize {
        let mut topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = topics.entry(topic.to_owned()).or_default();
        messages.push(message);
        messages.len()
    }

    /// All messages of `topic` but the first `after`, a line for each. `None` if there are none.
    fn after(&self, topic: &str, after: usize) -> Option<String> {
        let topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = topics.get(topic)?.iter().enumerate().skip(after);
        let lines = messages.map(|(at, message)| format!("{} {message}\n", at + 1));
        Some(lines.collect::<String>()).filter(|lines| !lines.is_empty())
    }
}

#[derive(Clone)]
struct Server {
    topics: Arc<Topics>,
    waits: Waits<String>,
}

/// `GET /topics/x?after=N&wait=30s`
async fn read(
    State(server): State<Server>,
    Path(topic): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let asked = |name, default| query.get(name).map_or(default, String::as_str);
    let (Ok(after), Some(wait)) = (asked("after", "0").parse(), duration(asked("wait", "0s")))
    else {
        let usage = "after is a number, wait is a time such as 30s or 500ms\n";
        return (StatusCode::BAD_REQUEST, usage).into_response();
    };
    let find = {
        let (topics, topic) = (server.topics, topic.clone());
        move || topics.after(&topic, after)
    };
    let answer = match server.waits.wait([topic], wait, find).await {
        Ok(messages) => (StatusCode::OK, messages),
        Err(WaitError::Expired) => (StatusCode::NO_CONTENT, String::new()),
        // Full, or about to end, which is no client's fault. Not all of them come again in the same second.
        Err(refused) => {
            let later = [(
                RETRY_AFTER,
                (1 + RandomState::new().hash_one(after) % 5).to_string(),
            )];
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                later,
                format!("{refused}\n"),
            )
                .into_response();
        }
    };
    answer.into_response()
}

/// `POST /topics/x`
async fn append(
    State(server): State<Server>,
    Path(topic): Path<String>,
    body: String,
) -> (StatusCode, String) {
    let number = server.topics.append(&topic, body);
    server.waits.check_and_complete(&topic);
    (StatusCode::CREATED, format!("{number}\n"))
}

/// `GET /parked`: how many requests wait now.
async fn parked(State(server): State<Server>) -> String {
    format!("{}\n", server.waits.stats().parked)
}

fn duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(millis) => Some(Duration::from_millis(millis.parse().ok()?)),
        None => Some(Duration::from_secs(text.strip_suffix('s')?.parse().ok()?)),
    }
}

async fn serve(address: &str, most: usize) -> Result<()> {
    // A socket for each parked request: as many as we may.
    rlimit::increase_nofile_limit(u64::MAX)?;
    let waits = Purgatory::builder("long-poll")
        .max_timeout(Duration::from_secs(300)) // clients choose timeouts, we bound them
        .max_parked(most)
        .build()?;
    let topics = Arc::default();
    let router = axum::Router::new()
        .route("/topics/{topic}", get(read).post(append))
        .route("/parked", get(parked))
        .with_state(Server {
            topics,
            waits: waits.clone(),
        });
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen at {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    // The shutdown ends every wait, so each parked request gets its answer (503); then the server returns.
    let (ended, end) = oneshot::channel();
    let shutdown = async move {
        signal::terminated().await;
        match waits.shutdown_async() {
            Ok(ended) => ended.await,
            Err(_) => waits.shutdown(), // the system has no thread for it
        }
        let _ = ended.send(());
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown);
    // By itself it would wait for a client that does not read its answer, or does not send the rest of its request.
    let parted = async {
        let _ = end.await;
        tokio::time::sleep(PARTING).await;
    };
    tokio::select! {
        served = serving => served?,
        () = parted => eprintln!("long_poll: some clients did not take their last answers"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let arguments = arguments.iter().map(String::as_str).collect::<Vec<_>>();
    let done = match arguments[..] {
        ["--listen", address] => serve(address, 100_000).await,
        ["--listen", address, "--most", count] => match count.parse() {
            Ok(most) => serve(address, most).await,
            Err(_) => Err(anyhow!("--most takes a number of requests")),
        },
        ["--load", count] => match count.parse() {
            Ok(count @ 1..=100_000) => load::run(count).await,
            _ => Err(anyhow!("--load takes a number from 1 to 100000")),
        },
        _ => Err(anyhow!(
            "usage: long_poll --listen ADDR [--most COUNT] | --load COUNT"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("long_poll: {error:#}");
            ExitCode::FAILURE
        }
    }
}
