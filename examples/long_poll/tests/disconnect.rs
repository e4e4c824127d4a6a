//! What axum and hyper do with a handler that waits when its client goes away: the guide's page "From polling" relies on
//! it, and says where it ends.

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use request_purgatory::Waits;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(30);

/// Two handlers that wait: one has read the request's body, the other keeps it unread meanwhile.
fn router(waits: Waits<u32>) -> Router {
    async fn read(State(waits): State<Waits<u32>>, _body: String) {
        wait(&waits).await;
    }
    async fn unread(State(waits): State<Waits<u32>>, request: Request) {
        wait(&waits).await;
        drop(request);
    }
    async fn wait(waits: &Waits<u32>) {
        let never = waits.wait([1], None, || None::<()>);
        assert!(never.await.is_err());
    }
    let router = Router::new().route("/read", post(read));
    router.route("/unread", post(unread)).with_state(waits)
}

struct Server {
    runtime: Runtime,
    waits: Waits<u32>,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let waits = Waits::new("disconnect");
        let bound = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = bound.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let router = router(waits.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            runtime,
            waits,
            address,
        }
    }

    /// A request whose handler waits. Its body has as many bytes as it says, or not yet.
    fn send(&self, path: &str, length: usize, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).expect("connect");
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let request = format!("{head}{body}");
        socket.write_all(request.as_bytes()).expect("send");
        self.wait_for_parked(1);
        socket
    }

    fn wait_for_parked(&self, count: usize) {
        let begun = Instant::now();
        while self.waits.stats().parked != count {
            assert!(begun.elapsed() < PATIENCE, "never {count} parked requests");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn assert_still_parked(self) {
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(
            self.waits.stats().parked,
            1,
            "tell the guide that it is noticed now"
        );
        self.waits.shutdown();
        self.runtime.shutdown_timeout(PATIENCE);
    }
}

#[test]
fn the_wait_of_a_client_that_closes_is_cancelled() {
    let server = Server::start();
    drop(server.send("/read", 4, "body"));
    server.wait_for_parked(0);
    assert_eq!(server.waits.stats().cancelled, 1);
}

/// As `nc -N` does. hyper takes it for a close.
#[test]
fn the_wait_of_a_client_that_will_send_no_more_is_cancelled() {
    let server = Server::start();
    let socket = server.send("/read", 4, "body");
    socket.shutdown(Shutdown::Write).expect("it is open");
    server.wait_for_parked(0);
    assert_eq!(server.waits.stats().cancelled, 1);
}

/// hyper has read the next request by then, and reads no further: it does not come to the end of the stream.
#[test]
fn the_close_of_a_client_that_has_sent_its_next_request_is_not_noticed() {
    let server = Server::start();
    let next = "POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    drop(server.send("/read", 4, &format!("body{next}")));
    server.assert_still_parked();
}

/// hyper reads one piece of a body ahead. What is left lies in front of the end of the stream.
#[test]
fn the_close_of_a_client_whose_body_is_not_read_is_not_noticed() {
    let server = Server::start();
    drop(server.send("/unread", 100_000, "a piece"));
    server.assert_still_parked();
}
