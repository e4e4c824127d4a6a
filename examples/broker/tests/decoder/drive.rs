//! What the broker does with the bytes of a connection, up to the point where it would answer.

use broker::storage::batch::Batch;
use broker::wire::frame;
use broker::wire::request::{Body, Envelope, Malformed};
use bytes::{Bytes, BytesMut};

/// Takes frame after frame from a connection on which `bytes` arrive, and decodes each. Nothing may panic, or hold more
/// memory than the bytes justify; what is understood must agree with the bytes.
pub(crate) fn receive(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    loop {
        let complete = frame::missing(&buffer).map(|missing| missing == Some(0));
        let before = buffer.len();
        let taken = frame::take(&mut buffer);
        assert_eq!(
            complete,
            taken.as_ref().map(Option::is_some).map_err(|bad| *bad)
        );
        let Ok(Some(frame)) = taken else {
            assert_eq!(buffer.len(), before, "what is no frame stays");
            return;
        };
        assert_eq!(buffer.len() + frame.len() + size_of::<i32>(), before);
        decode(&frame);
    }
}

fn decode(frame: &Bytes) {
    let opened = Envelope::open(frame);
    if let Ok(envelope) = &opened {
        let extent = envelope.extent();
        // An element has at least a byte, and is decoded into more than that: so the bytes bound the memory.
        assert!(extent.elements + extent.left_over <= frame.len());
    }
    let request = match opened.and_then(Envelope::decode) {
        Ok(request) => request,
        Err(malformed) => {
            assert!(!malformed.to_string().is_empty());
            // A decoder that says so must be right.
            assert_eq!(matches!(malformed, Malformed::NoHeader), frame.len() < 8);
            return;
        }
    };
    assert_eq!(request.correlation_id.to_be_bytes(), frame[4..8]);
    if let Body::Produce(produce) = request.body {
        let topics = produce.topic_data.iter();
        let partitions = topics.flat_map(|topic| &topic.partition_data);
        partitions
            .filter_map(|partition| partition.records.as_ref())
            .for_each(check_batch);
    }
}

/// A batch as it came, and with the checksum put right: no fuzzer finds one by itself.
fn check_batch(bytes: &Bytes) {
    const CHECKSUM: usize = 17;
    const SUMMED: usize = 21;
    take_batch(bytes);
    if bytes.len() >= SUMMED {
        let mut right = BytesMut::from(&bytes[..]);
        let checksum = crc32c::crc32c(&bytes[SUMMED..]);
        right[CHECKSUM..SUMMED].copy_from_slice(&checksum.to_be_bytes());
        take_batch(&right.freeze());
    }
}

fn take_batch(bytes: &Bytes) {
    let Ok(batch) = Batch::from_producer(bytes) else {
        return;
    };
    assert!(batch.records >= 1);
    // What goes into the log is what came, at its place, and can be read again.
    let stored = batch.placed_at(77);
    assert_eq!(stored.len(), bytes.len());
    assert_eq!(stored[..8], 77_i64.to_be_bytes());
    assert_eq!(stored[16..], bytes[16..]);
    let again = Batch::from_producer(&stored).expect("a stored batch is a batch");
    assert_eq!(
        (again.records, again.sequence),
        (batch.records, batch.sequence)
    );
}
