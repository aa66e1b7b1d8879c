//! Load from SGLang's `LoadStat` messages (since 0.5.19): an array with the same first six elements
//! in all versions.

use super::readings::{RankNumber, ReadFault, Readings, requests, tokens};
use forebay_kv_decode::msgpack::{MsgpackReader, Value};

const TAG: &[u8] = b"LoadStat";

/// Reads the payload of a message from the publisher of `dp_rank` into readings that have begun.
/// The publisher determines the rank. The rank in the message must be valid, but is not used: under
/// plain data parallelism it may be the rank inside the publisher's rank.
pub fn read_load_stat(payload: &[u8], dp_rank: u32, readings: &mut Readings) {
    if read(payload, dp_rank, readings).is_none() {
        readings.fault(ReadFault::Malformed);
    }
}

fn read(payload: &[u8], dp_rank: u32, readings: &mut Readings) -> Option<()> {
    let mut reader = MsgpackReader::new(payload);
    let Value::Array(length) = reader.value().ok()? else { return None };
    if length < 6 || reader.value().ok()? != Value::Text(TAG) {
        return None;
    }
    let [running, waiting, used, capacity] =
        [number(&mut reader)?, number(&mut reader)?, number(&mut reader)?, number(&mut reader)?];
    let own_rank = reader.value().ok()?;
    let waiting_tokens = if length > 6 { Some(number(&mut reader)?) } else { None };
    let rank = match own_rank {
        Value::Nil | Value::Integer { negative: false, .. } => RankNumber::Is(u64::from(dp_rank)),
        _ => RankNumber::Invalid,
    };
    if readings.at(rank).is_none() {
        return Some(());
    }
    readings.put(rank, requests(running), |draft, n| draft.running = Some(n));
    readings.put(rank, requests(waiting), |draft, n| draft.waiting = Some(n));
    readings.put(rank, tokens(used), |draft, n| draft.rest.used_tokens = Some(n));
    readings.put(rank, tokens(capacity), |draft, n| draft.rest.capacity_tokens = Some(n));
    if let Some(waiting) = waiting_tokens {
        readings.put(rank, tokens(waiting), |draft, n| draft.rest.waiting_tokens = Some(n));
    }
    Some(())
}

/// Reads a number of any kind; a negative number stays negative.
#[expect(clippy::cast_precision_loss, reason = "counts; above 2^53 they are refused anyway")]
fn number(reader: &mut MsgpackReader<'_>) -> Option<f64> {
    match reader.value().ok()? {
        Value::Integer { bits, negative: false } => Some(bits as f64),
        Value::Integer { .. } => Some(-1.0),
        Value::Float(value) => Some(value),
        _ => None,
    }
}
