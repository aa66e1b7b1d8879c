//! Any messages of replicas, on subjects of NATS and as the stream of a peer. Must hold: what
//! others say never gives this router more of a rank than the rank has, nor makes it know more
//! replicas than there may be, and what it says itself another one takes.

use bytes::Bytes;
use forebay_base::NanosSinceStart;
use forebay_base::limits::REPLICAS_MAX;
use forebay_replicas::{
    KvInUse, Local, LocalRank, MessageKind, MessageLines, Outgoing, Replica, ReplicaId,
};
use std::sync::Arc;

const PLACES_MAX: u64 = 4;
const KV_MAX: u64 = 1_000;
const STEP_NANOS: u64 = 7_000_000;

/// Panics when a rule above is broken. Messages are lines; the first byte of each picks its subject
/// and how much later it comes.
pub(crate) fn check(data: &[u8]) {
    let mut now = NanosSinceStart(1);
    let mut hearing = replica(1, now);
    let mut other = replica(2, now);
    tell(&mut other, hearing.connected(now), now);
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let Some((how, message)) = line.split_first() else { continue };
        let subject = match how % 8 {
            0 => "forebay.v1.hello",
            1 => "forebay.v1.bye",
            2 => "forebay.v1.window",
            3 => "forebay.v2.load",
            _ => "forebay.v1.load",
        };
        hearing.hear(subject, message, now);
        now = NanosSinceStart(now.0 + u64::from(how / 8) * STEP_NANOS);
        turn(&mut hearing, &mut other, now);
        turn(&mut other, &mut hearing, now);
    }
    read_stream(data, &mut hearing, &mut other, now);
}

/// The same bytes as a stream, in chunks of the size that the first byte says.
fn read_stream(data: &[u8], hearing: &mut Replica, other: &mut Replica, now: NanosSinceStart) {
    let Some((size, stream)) = data.split_first() else { return };
    let mut lines = MessageLines::default();
    let mut count = 0;
    for chunk in stream.chunks(usize::from(*size).max(1)) {
        let mut chunk = Bytes::copy_from_slice(chunk);
        while let Ok(Some(message)) = lines.take(&mut chunk) {
            assert!(!message.payload.contains(&b'\n') && !message.subject.contains(' '));
            count += 1;
            hearing.hear(&message.subject, &message.payload, now);
        }
        assert!(chunk.is_empty(), "a short line is read whole");
    }
    assert_eq!(count, stream.iter().filter(|byte| **byte == b'\n').count());
    turn(hearing, other, now);
}

fn replica(id: u64, now: NanosSinceStart) -> Replica {
    let mut replica = Replica::new(ReplicaId(id), format!("router-{id}"), now);
    for dp in 0..2 {
        replica.add_rank(&Arc::from("engine:8000"), dp, now);
    }
    replica
}

fn tell(other: &mut Replica, said: Option<Outgoing>, now: NanosSinceStart) {
    if let Some((kind, bytes)) = said {
        other.hear(&kind.subject("forebay"), &bytes, now);
        assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
        assert!(kind != MessageKind::Bye);
    }
}

fn turn(replica: &mut Replica, other: &mut Replica, now: NanosSinceStart) {
    let local = LocalRank {
        places: Local { max: PLACES_MAX, held: 1, want: 2 },
        kv: Local { max: KV_MAX, held: 100, want: 300 },
        prefill: 64,
        kv_in_use: Some(KvInUse {
            used_tokens: 30,
            at: now,
            counts_until: NanosSinceStart(u64::MAX),
        }),
    };
    let (_, said) = replica.turn(&[local, local], &[], now);
    tell(other, said, now);
    assert!(replica.others_count() <= REPLICAS_MAX);
    for position in 0..2 {
        let elsewhere = replica.elsewhere(position, &local);
        assert!(elsewhere.places <= PLACES_MAX && elsewhere.kv <= KV_MAX, "{elsewhere:?}");
    }
}
