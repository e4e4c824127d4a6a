//! Where to listen.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::task::Poll;
use tokio::net::{TcpListener, TcpStream};

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = text.rsplit_once(':').ok_or("no port")?;
        let port = port.parse().map_err(|_| "no such port")?;
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) => host,
            None if host.contains(':') => return Err("an IPv6 address needs brackets"),
            None => host,
        };
        if host.is_empty() {
            return Err("no host");
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Endpoint {
    /// A free port of the loopback device.
    pub(crate) fn free_loopback() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
        }
    }

    /// The host as it was given.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Listens on every address of the host: `localhost` usually has two, and clients try either. Port 0 takes a free
    /// one, the same for all. An address that this machine does not have is left out, unless none is left.
    pub(crate) async fn listen(&self) -> io::Result<Listeners> {
        let mut listeners = Vec::new();
        let mut port = self.port;
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        let mut addresses = self.addresses().await?;
        addresses.dedup();
        for address in addresses {
            match TcpListener::bind(SocketAddr::new(address, port)).await {
                Ok(listener) => {
                    port = listener.local_addr()?.port();
                    listeners.push(listener);
                }
                Err(failed) if is_elsewhere(&failed) => error = failed,
                Err(failed) => return Err(failed),
            }
        }
        if listeners.is_empty() {
            return Err(error);
        }
        Ok(Listeners(listeners))
    }

    async fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((&*self.host, self.port)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// The sockets of one endpoint; there is at least one.
#[derive(Debug)]
pub(crate) struct Listeners(Vec<TcpListener>);

impl Listeners {
    /// Where this listens; one of the addresses if there are several.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0[0].local_addr()
    }

    /// The next connection on any of them.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| {
            let mut polled = self.0.iter().map(|listener| listener.poll_accept(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

/// The name has this address, but the machine has not: IPv6 is switched off, say.
fn is_elsewhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
    )
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn hosts_are_names_or_addresses() {
        for text in ["localhost:9092", "127.0.0.1:0", "[::1]:65535"] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), text);
        }
        for text in [
            "localhost",
            ":9092",
            "localhost:",
            "::1:9092",
            "a:65536",
            "[]:1",
            "",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_listened_on_at_all_its_addresses() {
        let endpoint: Endpoint = "localhost:0".parse().expect("an endpoint");
        let listeners = endpoint.listen().await.expect("a free port");
        let addresses = listeners.0.iter().map(|listener| listener.local_addr());
        let ports: Vec<_> = addresses
            .map(|address| address.expect("bound").port())
            .collect();
        assert!(
            ports.iter().all(|port| *port == ports[0] && *port != 0),
            "{ports:?}"
        );
        assert!(
            "no.such.host.invalid:1"
                .parse::<Endpoint>()
                .expect("a name")
                .listen()
                .await
                .is_err()
        );
    }
}
