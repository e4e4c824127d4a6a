//! A process that is a node.

use crate::cli::ServeArgs;
use crate::cpu::Cpu;
use crate::deaf_switch::DeafSwitch;
use crate::gateway::{Gateway, Patience, Settings};
use crate::node;
use crate::store::Store;
use anyhow::{Context, Result, anyhow, ensure};
use axum::http::Uri;
use request_purgatory_cluster::Config;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// `gateway serve`: a node, until SIGTERM or SIGINT.
///
/// # Errors
/// The node cannot start, or did not end in order.
pub fn serve(args: ServeArgs) -> Result<()> {
    to_its_end(run(args, None))
}

/// `gateway node`: a node of the demo. It does as its standard input says, and ends with it, so that none is left
/// behind.
///
/// # Errors
/// As [`serve`].
pub fn node(args: ServeArgs) -> Result<()> {
    to_its_end(run(args, Some(DeafSwitch::default())))
}

/// Runs a node. What cannot be given up is not waited for: a name server that does not answer, which may take half a
/// minute; a read of the standard input.
fn to_its_end(node: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = Runtime::new()?;
    let done = runtime.block_on(node);
    runtime.shutdown_background();
    done
}

async fn run(args: ServeArgs, deaf: Option<DeafSwitch>) -> Result<()> {
    let peers = args.peer.iter().map(|peer| base_url(peer));
    let peers = peers.collect::<Result<Vec<_>>>()?;
    // A socket for each parked poll: as many as the system allows. (If it allows no more, there are as many as there
    // are.)
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let stop = CancellationToken::new();
    end_on_signals(&stop)?;
    let begin = async {
        let store = Store::connect(args.engine, &args.url).await;
        let (engine, url) = (args.engine, args.url.join(", "));
        let store = store.with_context(|| format!("cannot reach {engine} at {url} (`--url`)"))?;
        anyhow::Ok((store, node::listen(&args.listen).await?))
    };
    let (store, listener) = tokio::select! {
        biased;
        // Servers that do not answer are asked one after the other, for seconds each; so are those of names.
        () = stop.cancelled() => return Ok(()),
        begun = begin => begun?,
    };
    let gateway = Gateway::start(store, settings(&args, Cpu::Process, deaf.clone()))?;
    gateway.set_peers(peers);
    println!("listening on http://{}", listener.local_addr()?);
    if let Some(deaf) = deaf {
        let (gateway, stop) = (gateway.clone(), stop.clone());
        tokio::task::spawn_blocking(move || obey(&gateway, &deaf, &stop));
    }
    node::run(listener, gateway, stop).await
}

/// What the command line says of a node.
pub(crate) fn settings(args: &ServeArgs, cpu: Cpu, deaf: Option<DeafSwitch>) -> Settings {
    Settings {
        name: args.name.clone(),
        max_wait: args.max_wait,
        max_polls: args.max_polls,
        patience: Patience::default(),
        cluster: Config {
            name: args.name.clone(),
            audit: args.audit,
            ping: args.ping,
            ..Config::default()
        },
        cpu,
        deaf,
    }
}

/// Scheme, host and port: no more goes into a header of the page.
fn base_url(text: &str) -> Result<String> {
    let uri = text.parse::<Uri>();
    let uri = uri.with_context(|| format!("{text} is no URL (`--peer`)"))?;
    let (scheme, authority) = (uri.scheme_str(), uri.authority());
    let is_base = matches!(scheme, Some("http" | "https")) && matches!(uri.path(), "" | "/");
    let (true, Some(authority)) = (is_base, authority) else {
        return Err(anyhow!(
            "{text} is no base URL such as http://10.0.0.2:8080 (`--peer`)"
        ));
    };
    let is_plain = |it: char| it.is_ascii_alphanumeric() || ".-:[]".contains(it);
    ensure!(
        authority.as_str().chars().all(is_plain),
        "{text} has more than a host and a port (`--peer`)"
    );
    Ok(format!("{}://{authority}", scheme.unwrap_or("http")))
}

fn end_on_signals(stop: &CancellationToken) -> Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signal = signal(kind)?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signal.recv().await;
            stop.cancel();
        });
    }
    Ok(())
}

/// The demo's commands: `deaf`, `hear`, `peers URL...`.
fn obey(gateway: &Gateway, deaf: &DeafSwitch, stop: &CancellationToken) {
    // An input that cannot be read has ended.
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("deaf") => deaf.set(true),
            Some("hear") => deaf.set(false),
            Some("peers") => gateway.set_peers(words.map(str::to_owned).collect()),
            _ => eprintln!("gateway node: there is no command `{line}`"),
        }
    }
    stop.cancel();
}

#[cfg(test)]
mod tests {
    use super::{base_url, to_its_end};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_peer_is_scheme_host_and_port() {
        assert_eq!(base_url("http://a:1/").unwrap(), "http://a:1");
        for bad in [
            "",
            "a:1",
            "ftp://a",
            "http://a/b",
            "http://a;b",
            "http://u@a",
            "http://*",
        ] {
            assert!(base_url(bad).is_err(), "{bad}");
        }
    }

    /// A look at a name server that does not answer is a thread that cannot be stopped.
    #[test]
    fn f8_a_node_ends_though_a_name_server_does_not_answer() {
        let (answer, answered) = channel::<()>();
        let (ends, ended) = channel();
        std::thread::spawn(move || {
            let node = async {
                let (begins, begun) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    let told = begins.send(());
                    (told, answered.recv())
                });
                Ok(begun.await?)
            };
            ends.send(to_its_end(node))
        });
        let done = ended.recv_timeout(Duration::from_secs(20));
        done.expect("in time").expect("an orderly end");
        drop(answer);
    }
}
