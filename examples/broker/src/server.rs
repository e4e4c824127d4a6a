//! Accepts connections, and brings everything to an end in order.

mod connection;
mod incoming;
mod limits;

use crate::broker::Broker;
use crate::listen::Listeners;
use connection::Context;
use incoming::End;
use limits::Limits;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long clients may take, at the shutdown, to read the last answers.
const PARTING: Duration = Duration::from_secs(5);

/// Pause after a failed accept. It usually means that there are no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves until `stop` resolves, then shuts down: no new connections, no new requests, an answer for every
/// parked one, and the connections closed once their answers are out.
pub(crate) async fn run(listeners: Listeners, broker: Arc<Broker>, stop: impl Future<Output = ()>) {
    let (stopping, stopped) = watch::channel(false);
    let context = Context {
        broker,
        limits: Arc::new(Limits::new()),
        stop: stopped,
    };
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listeners.accept() => match accepted {
                Ok((socket, peer)) => {
                    let mut context = context.clone();
                    tokio::spawn(async move {
                        let served = connection::serve(socket, peer, &mut context).await;
                        if let Err(End::Dropped(reason)) = served {
                            log!("closed the connection of {peer}: {reason}");
                        }
                    });
                }
                Err(error) => {
                    log!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop(listeners);
    stopping.send_replace(true);
    // From here on a request that is still being taken up cannot park, so this reaches all.
    context.broker.shutdown();
    // Each connection holds a receiver until its end, and until that is logged.
    drop(context);
    let parting = tokio::time::timeout(PARTING, stopping.closed());
    if parting.await.is_err() {
        log!("some clients did not take their last answers");
    }
}
