//! KV events as MessagePack in the map form that SGLang writes since 0.5.20. Pure functions; any
//! thread.

use super::kv_wire::{Written, length, write_null, write_pair};
use crate::batching::prefix_cache::{BlockHash, CacheEvent};
use rmp::encode::{
    ByteBuf, write_array_len, write_f64, write_map_len, write_sint, write_str, write_uint,
};

/// Encodes a batch `[timestamp, [event...], rank]`. `unix_time_s` is seconds since 1970. Merges
/// consecutive removals into an event, as SGLang does.
#[must_use]
pub(crate) fn encode_sglang_batch(
    unix_time_s: f64,
    events: &[CacheEvent],
    dp_rank: u32,
    block_size_tokens: u32,
) -> Vec<u8> {
    let mut out = ByteBuf::new();
    // Writing to memory cannot fail, though the type allows it.
    let _infallible: Written =
        write_batch(&mut out, unix_time_s, events, dp_rank, block_size_tokens);
    out.into_vec()
}

fn write_batch(
    out: &mut ByteBuf,
    unix_time_s: f64,
    events: &[CacheEvent],
    dp_rank: u32,
    block_size_tokens: u32,
) -> Written {
    let is_removal = |event: &CacheEvent| matches!(event, CacheEvent::Removed { .. });
    let groups: Vec<_> = events.chunk_by(|one, next| is_removal(one) && is_removal(next)).collect();
    write_array_len(out, 3)?;
    write_f64(out, unix_time_s)?;
    write_array_len(out, length(groups.len()))?;
    for group in groups {
        match group {
            [CacheEvent::Cleared, ..] | [] => {
                write_map_len(out, 1)?;
                write_pair(out, "type", "AllBlocksCleared")?;
            }
            [stored @ CacheEvent::Stored { .. }, ..] => {
                write_stored(out, stored, block_size_tokens)?;
            }
            [CacheEvent::Removed { .. }, ..] => {
                write_map_len(out, 3)?;
                write_pair(out, "type", "BlockRemoved")?;
                let hashes = group.iter().filter_map(|event| match event {
                    CacheEvent::Removed { hash } => Some(*hash),
                    _ => None,
                });
                write_hashes(out, hashes)?;
                write_pair(out, "medium", MEDIUM)?;
            }
        }
    }
    write_uint(out, dp_rank.into())?;
    Ok(())
}

fn write_stored(out: &mut ByteBuf, event: &CacheEvent, block_size_tokens: u32) -> Written {
    let CacheEvent::Stored { hashes, parent, token_ids, salt } = event else { return Ok(()) };
    // Every event of a salted sequence has the salt.
    let fields = if salt.is_empty() { 7 } else { 8 };
    write_map_len(out, fields)?;
    write_pair(out, "type", "BlockStored")?;
    write_hashes(out, hashes.iter().copied())?;
    write_str(out, "parent_block_hash")?;
    match parent {
        Some(hash) => write_hash(out, *hash)?,
        None => write_null(out)?,
    }
    write_str(out, "token_ids")?;
    write_array_len(out, length(token_ids.len()))?;
    for token_id in token_ids {
        write_uint(out, u64::from(*token_id))?;
    }
    write_str(out, "block_size")?;
    write_uint(out, block_size_tokens.into())?;
    write_str(out, "lora_id")?;
    write_null(out)?;
    write_pair(out, "medium", MEDIUM)?;
    if !salt.is_empty() {
        write_pair(out, "cache_salt", salt)?;
    }
    Ok(())
}

fn write_hashes(out: &mut ByteBuf, hashes: impl Iterator<Item = BlockHash>) -> Written {
    let hashes: Vec<_> = hashes.collect();
    write_str(out, "block_hashes")?;
    write_array_len(out, length(hashes.len()))?;
    hashes.into_iter().try_for_each(|hash| write_hash(out, hash))
}

/// Writes a signed hash; positive hashes have the unsigned form.
fn write_hash(out: &mut ByteBuf, hash: BlockHash) -> Written {
    write_sint(out, hash.0.cast_signed())?;
    Ok(())
}

const MEDIUM: &str = "GPU";

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that SGLang 0.5.23's (removal: 0.5.20's) own classes wrote for the same content.
    const STORED: &str = "93cb41da480e081000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf\
        112210f47de98115d3eeddef0b82167eebb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00206465666768\
        696a6b6c6d6e6f707172737475767778797a7b7c7d7e7fcc80cc81cc82cc83aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d\
        656469756da347505500";
    const REMOVED: &str = "93cb41da480e081000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573\
        92d3eeddef0b82167eebffa66d656469756da347505501";
    const CLEARED: &str = "93cb41da480e081000009181a474797065b0416c6c426c6f636b73436c656172656400";
    const TIME: f64 = 1_763_719_200.25;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn golden(text: &str) -> String {
        text.split_whitespace().collect()
    }

    fn hash(number: i64) -> BlockHash {
        BlockHash(number.cast_unsigned())
    }

    #[test]
    fn events_equal_the_engines_bytes() {
        let stored = CacheEvent::Stored {
            hashes: vec![hash(1_234_567_890_123_456_789), hash(-1_234_567_890_123_456_789)],
            parent: None,
            token_ids: (100..132).collect(),
            salt: String::new(),
        };
        assert_eq!(hex(&encode_sglang_batch(TIME, &[stored], 0, 16)), golden(STORED));
        let removed = [-1_234_567_890_123_456_789, -1]
            .map(|number| CacheEvent::Removed { hash: hash(number) });
        assert_eq!(hex(&encode_sglang_batch(TIME, &removed, 1, 16)), golden(REMOVED));
        let cleared = [CacheEvent::Cleared];
        assert_eq!(hex(&encode_sglang_batch(TIME, &cleared, 0, 16)), golden(CLEARED));
    }
}
