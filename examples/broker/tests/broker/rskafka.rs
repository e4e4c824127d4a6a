//! rskafka, a client in Rust, against the broker.

use crate::process::Broker;
use crate::timing::assert_median_below;
use chrono::{DateTime, Utc};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

async fn client(broker: &Broker) -> Client {
    let client = ClientBuilder::new(vec![broker.address().to_string()]);
    client.build().await.expect("connect")
}

async fn partition(broker: &Broker, topic: &str) -> PartitionClient {
    let client = client(broker).await;
    let partition = client.partition_client(topic, 0, UnknownTopicHandling::Error);
    partition.await.expect("find the partition")
}

async fn create(broker: &Broker, topic: &str) {
    let controller = client(broker)
        .await
        .controller_client()
        .expect("controller");
    let created = controller.create_topic(topic, 2, 1, 5_000).await;
    created.expect("create the topic");
}

fn record(value: &[u8], timestamp: DateTime<Utc>) -> Record {
    Record {
        key: Some(b"key".to_vec()),
        value: Some(value.to_vec()),
        headers: BTreeMap::from([("header".to_owned(), b"h".to_vec())]),
        timestamp,
    }
}

#[test]
fn records_come_back_as_they_went() {
    let broker = Broker::start();
    let runtime = Runtime::new().expect("runtime");
    runtime.block_on(async {
        create(&broker, "t").await;
        let partition = partition(&broker, "t").await;
        let at = |second: i64| DateTime::from_timestamp(1_700_000_000 + second, 0).expect("a time");
        let records: Vec<_> = (0..100)
            .map(|number| record(format!("value {number}").as_bytes(), at(number)))
            .collect();
        for chunk in records.chunks(10) {
            let produced = partition.produce(chunk.to_vec(), Compression::NoCompression);
            produced.await.expect("produce");
        }
        let mut fetched = Vec::new();
        while fetched.len() < records.len() {
            let offset = fetched.len() as i64;
            let fetch = partition.fetch_records(offset, 1..2_000, 1_000);
            let (records, high_watermark) = fetch.await.expect("fetch");
            assert_eq!(high_watermark, 100);
            fetched.extend(records);
        }
        let offsets: Vec<_> = fetched.iter().map(|record| record.offset).collect();
        assert_eq!(offsets, (0..100).collect::<Vec<_>>());
        let fetched: Vec<_> = fetched.into_iter().map(|record| record.record).collect();
        assert_eq!(fetched, records);

        let offset = async |at| partition.get_offset(at).await.expect("offset");
        assert_eq!(offset(OffsetAt::Earliest).await, 0);
        assert_eq!(offset(OffsetAt::Latest).await, 100);
        assert_eq!(offset(OffsetAt::Timestamp(at(40))).await, 40);
    });
    drop(runtime);
    broker.assert_clean();
}

#[test]
fn a_long_poll_ends_with_the_produce() {
    let broker = Broker::start();
    let runtime = Runtime::new().expect("runtime");
    runtime.block_on(create(&broker, "t"));
    let consumer = runtime.block_on(partition(&broker, "t"));
    let producer = runtime.block_on(partition(&broker, "t"));
    let consumer = std::sync::Arc::new(consumer);
    let mut offset = 0;
    assert_median_below(Duration::from_millis(50), 7, || {
        let polling = std::sync::Arc::clone(&consumer);
        let poll = runtime.spawn(async move {
            let fetched = polling.fetch_records(offset, 1..1_000, 5_000).await;
            (fetched.expect("fetch").0.len(), Instant::now())
        });
        broker.wait_for_parked(1);
        let produced = Instant::now();
        let records = vec![record(b"value", DateTime::UNIX_EPOCH)];
        let produce = producer.produce(records, Compression::NoCompression);
        runtime.block_on(produce).expect("produce");
        let (count, woken) = runtime.block_on(poll).expect("poll");
        assert_eq!(count, 1);
        offset += 1;
        woken - produced
    });
    drop((consumer, producer));
    drop(runtime);
    broker.assert_clean();
}

#[test]
fn a_long_poll_of_an_idle_partition_ends_in_time() {
    let broker = Broker::start();
    let runtime = Runtime::new().expect("runtime");
    runtime.block_on(create(&broker, "t"));
    let consumer = runtime.block_on(partition(&broker, "t"));
    assert_median_below(Duration::from_millis(550), 3, || {
        let started = Instant::now();
        let fetch = consumer.fetch_records(0, 1..1_000, 500);
        let (records, _) = runtime.block_on(fetch).expect("fetch");
        assert!(records.is_empty());
        assert!(started.elapsed() >= Duration::from_millis(500));
        started.elapsed()
    });
    drop(consumer);
    drop(runtime);
    broker.assert_clean();
}
