//! One keep-alive connection of a client.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// Longer than a system on a busy machine takes to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> io::Result<Self> {
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect(address)).await;
        let stream = connected.map_err(|_| io::ErrorKind::TimedOut)??;
        stream.set_nodelay(true)?;
        let (requests, driver) = handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // Its error is that of the request that is under way; it ends with `requests`.
        tokio::spawn(driver);
        let host = address.to_string();
        Ok(Self { requests, host })
    }

    pub(super) async fn get(&mut self, path: &str) -> io::Result<(StatusCode, Bytes)> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(
        &mut self,
        path: &str,
        body: String,
    ) -> io::Result<(StatusCode, Bytes)> {
        self.send(Method::POST, path, body.into()).await
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> io::Result<(StatusCode, Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &*self.host)
            .body(Full::new(body))
            .map_err(io::Error::other)?;
        let exchange = async {
            self.requests.ready().await?;
            let response = self.requests.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>((status, body))
        };
        exchange.await.map_err(io::Error::other)
    }
}
