//! rskafka, a client in Rust, against the broker.

use crate::process::Broker;
use chrono::DateTime;
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::record::Record;
use std::collections::BTreeMap;
use tokio::runtime::Runtime;

#[test]
fn records_come_back_as_they_went() {
    let broker = Broker::start();
    let runtime = Runtime::new().expect("runtime");
    runtime.block_on(async {
        let client = ClientBuilder::new(vec![broker.address.to_string()])
            .build()
            .await;
        let client = client.expect("connect");
        let controller = client.controller_client().expect("controller");
        controller
            .create_topic("t", 2, 1, 5_000)
            .await
            .expect("create the topic");
        let partition = client
            .partition_client("t", 0, UnknownTopicHandling::Error)
            .await;
        let partition = partition.expect("find the partition");
        let at = |second: i64| DateTime::from_timestamp(1_700_000_000 + second, 0).expect("a time");
        let record = |number| Record {
            key: Some(b"key".to_vec()),
            value: Some(format!("value {number}").into_bytes()),
            headers: BTreeMap::from([("header".to_owned(), b"h".to_vec())]),
            timestamp: at(number),
        };
        let records: Vec<_> = (0..100).map(record).collect();
        for chunk in records.chunks(10) {
            let produced = partition.produce(chunk.to_vec(), Compression::NoCompression);
            produced.await.expect("produce");
        }
        let mut fetched = Vec::new();
        while fetched.len() < records.len() {
            let fetch = partition.fetch_records(fetched.len() as i64, 1..2_000, 1_000);
            let (records, high_watermark) = fetch.await.expect("fetch");
            assert_eq!(high_watermark, 100);
            fetched.extend(records.into_iter().map(|record| record.record));
        }
        assert_eq!(fetched, records);
        for (time, expected) in [
            (OffsetAt::Earliest, 0),
            (OffsetAt::Latest, 100),
            (OffsetAt::Timestamp(at(40)), 40),
        ] {
            assert_eq!(partition.get_offset(time).await.expect("offset"), expected);
        }
    });
    drop(runtime);
    broker.assert_clean();
}
