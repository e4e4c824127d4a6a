//! The engine alone: its own client hears of each commit, with nothing of this crate in between.

use crate::engine::{Kind, key};
use crate::measure::now;
use futures_util::StreamExt;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushKind, cmd};

/// Hears of `count` commits to the first key, one after the other, and says when.
pub async fn hear(kind: Kind, url: &str, count: u32) {
    match kind {
        Kind::RedisTracking | Kind::RedisPublished => hear_redis(kind, url, count).await,
        Kind::Nats => hear_nats(url, count).await,
    }
}

async fn hear_redis(kind: Kind, url: &str, count: u32) {
    let info = url.into_connection_info().expect("the address is sound");
    let settings = info.redis_settings().clone();
    let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
    let client = redis::Client::open(info).expect("the address is sound");
    let (sender, mut pushes) = tokio::sync::mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.expect("it accepts");
    let name = |of: &str| [format!("purgatory:{of}:").into_bytes(), key(0)].concat();
    let mut read = cmd("GET");
    read.arg(name("v"));
    let wanted = match kind {
        Kind::RedisTracking => {
            let tracking = cmd("CLIENT").arg("TRACKING").arg("ON").to_owned();
            let tracking = tracking.query_async::<()>(&mut connection).await;
            tracking.expect("it tracks");
            let read = read.query_async::<Option<u64>>(&mut connection).await;
            read.expect("it reads");
            PushKind::Invalidate
        }
        _ => {
            let subscribed = connection.subscribe(name("c")).await;
            subscribed.expect("it subscribes");
            PushKind::Message
        }
    };
    println!("ready");
    for _ in 0..count {
        while pushes.recv().await.expect("it is connected").kind != wanted {}
        if kind == Kind::RedisTracking {
            // The news is the version, which is read; and what is not read again stays silent.
            let read = read.query_async::<u64>(&mut connection).await;
            read.expect("it reads");
        }
        println!("woken {}", now());
    }
}

async fn hear_nats(url: &str, count: u32) {
    let client = async_nats::connect(url).await.expect("it accepts");
    let mut news = client
        .subscribe("purgatory.out.>")
        .await
        .expect("it subscribes");
    // The server has handled the subscription when it answers.
    client.flush().await.expect("it is connected");
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    println!("ready");
    for _ in 0..count {
        news.next().await.expect("it is connected");
        println!("woken {}", now());
    }
}
