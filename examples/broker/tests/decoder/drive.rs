//! What the broker does with the bytes of a connection, up to the point where it would answer.

use broker::messages::RequestKind;
use broker::storage::batch::Batch;
use broker::wire::frame::{self, MAX_FRAME, PREFIX};
use broker::wire::request::{Envelope, Misfit};
use bytes::{Bytes, BytesMut};

/// Takes frame after frame from a connection on which `bytes` arrive, and decodes each. Nothing may panic, or hold more
/// memory than the bytes justify; what is understood must agree with the bytes.
pub(crate) fn receive(bytes: &[u8]) {
    let mut buffer = BytesMut::from(bytes);
    while buffer.len() >= PREFIX
        && let Ok(length) = frame::length(&buffer)
        && length <= MAX_FRAME.min(buffer.len() - PREFIX)
    {
        let before = buffer.len();
        let frame = frame::take(&mut buffer, length);
        assert_eq!(frame.len(), length);
        assert_eq!(buffer.len(), before - PREFIX - length);
        decode(&frame);
    }
}

fn decode(frame: &Bytes) {
    let decoded = Envelope::open(frame).and_then(|mut envelope| {
        assert_eq!(envelope.correlation_id.to_be_bytes(), frame[4..8]);
        // An element has at least a byte, and is decoded into more than that: so the bytes bound the memory.
        assert!(envelope.elements <= frame.len());
        Ok(envelope.decode()?)
    });
    match decoded {
        Ok(Some(RequestKind::Produce(produce))) => {
            let topics = produce.topic_data.iter();
            let partitions = topics.flat_map(|topic| &topic.partition_data);
            let records = partitions.filter_map(|partition| partition.records.as_ref());
            records.for_each(check_batch);
        }
        Ok(_) => {}
        Err(Misfit::Version(_)) => assert!(frame.len() >= 8),
        // A decoder that says so must be right.
        Err(Misfit::Malformed(why)) => {
            assert_eq!(why.starts_with("frame too short"), frame.len() < 8);
        }
    }
}

/// A batch as it came, and with the checksum put right: no fuzzer finds one by itself.
fn check_batch(bytes: &Bytes) {
    const CHECKSUM: usize = 17;
    const SUMMED: usize = 21;
    let mut right = BytesMut::from(&bytes[..]);
    if let Some(summed) = bytes.get(SUMMED..) {
        right[CHECKSUM..SUMMED].copy_from_slice(&crc32c::crc32c(summed).to_be_bytes());
    }
    for bytes in [bytes, &right.freeze()] {
        let Ok(batch) = Batch::from_producer(bytes) else {
            continue;
        };
        assert!(batch.records >= 1);
        // What goes into the log is what came, at its place, and can be read again.
        let stored = batch.placed_at(77);
        assert_eq!((stored.len(), &stored[16..]), (bytes.len(), &bytes[16..]));
        assert_eq!(stored[..8], 77_i64.to_be_bytes());
        let again = Batch::from_producer(&stored).expect("a stored batch is a batch");
        assert_eq!(again.records, batch.records);
        assert_eq!(again.sequence, batch.sequence);
    }
}
