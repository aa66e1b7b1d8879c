//! KV events as MessagePack, exactly as vLLM 0.33 writes them (map form, GPU medium, a single
//! full-attention group). Pure functions; any thread.

use crate::batching::prefix_cache::{BlockHash, CacheEvent};
use rmp::encode::{
    ByteBuf, RmpWrite, write_array_len, write_f64, write_nil, write_str, write_uint,
};

pub(crate) type Written = Result<(), rmp::encode::ValueWriteError<<ByteBuf as RmpWrite>::Error>>;

/// Encodes a batch `[timestamp, [event...], rank]`, the third frame of a message. `unix_time_s` is
/// seconds since 1970.
#[must_use]
pub fn encode_batch(
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
    write_array_len(out, 3)?;
    write_f64(out, unix_time_s)?;
    write_array_len(out, length(events.len()))?;
    for event in events {
        match event {
            CacheEvent::Stored { .. } => write_stored(out, event, block_size_tokens)?,
            CacheEvent::Removed { hash } => write_removed(out, *hash)?,
            CacheEvent::Cleared => {
                rmp::encode::write_map_len(out, 1)?;
                write_pair(out, "type", "AllBlocksCleared")?;
            }
        }
    }
    write_uint(out, dp_rank.into())?;
    Ok(())
}

fn write_stored(out: &mut ByteBuf, event: &CacheEvent, block_size_tokens: u32) -> Written {
    let CacheEvent::Stored { hashes, parent, token_ids, salt } = event else { return Ok(()) };
    // A 16-bit map header for 11 entries: not minimal, but this release sends it.
    let Ok(()) = out.write_bytes(&[0xde, 0x00, 0x0b]);
    write_pair(out, "type", "BlockStored")?;
    write_str(out, "block_hashes")?;
    write_array_len(out, length(hashes.len()))?;
    for hash in hashes {
        write_uint(out, hash.0)?;
    }
    write_str(out, "parent_block_hash")?;
    match parent {
        Some(hash) => {
            write_uint(out, hash.0)?;
        }
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
    write_str(out, "lora_name")?;
    write_null(out)?;
    write_extra_keys(out, hashes.len(), parent.is_none().then_some(salt.as_str()))?;
    write_str(out, "group_idx")?;
    write_uint(out, 0)?;
    write_pair(out, "kv_cache_spec_kind", "full_attention")
}

/// Writes an entry per block; only the first block of a sequence has the salt.
fn write_extra_keys(out: &mut ByteBuf, block_count: usize, salt: Option<&str>) -> Written {
    write_str(out, "extra_keys")?;
    write_array_len(out, length(block_count))?;
    let mut salt = salt.filter(|salt| !salt.is_empty());
    for _ in 0..block_count {
        match salt.take() {
            Some(salt) => {
                write_array_len(out, 1)?;
                write_str(out, salt)?;
            }
            None => write_null(out)?,
        }
    }
    Ok(())
}

fn write_removed(out: &mut ByteBuf, hash: BlockHash) -> Written {
    rmp::encode::write_map_len(out, 4)?;
    write_pair(out, "type", "BlockRemoved")?;
    write_str(out, "block_hashes")?;
    write_array_len(out, 1)?;
    write_uint(out, hash.0)?;
    write_pair(out, "medium", MEDIUM)?;
    write_str(out, "group_idx")?;
    write_uint(out, 0)?;
    Ok(())
}

pub(crate) fn write_pair(out: &mut ByteBuf, key: &str, value: &str) -> Written {
    write_str(out, key)?;
    write_str(out, value)
}

pub(crate) fn write_null(out: &mut ByteBuf) -> Written {
    let Ok(()) = write_nil(out);
    Ok(())
}

pub(crate) fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const MEDIUM: &str = "GPU";

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that vLLM 0.33.0's own classes wrote for the same content.
    const STORED: &str = "93cb41da480e0810000091de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368\
        657392cf0123456789abcdefcffedcba9876543210b1706172656e745f626c6f636b5f68617368cfffffffffffffffffa9746f6b656e\
        5f696473dc00206465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7fcc80cc81cc82cc83aa626c6f636b5f73697a65\
        10a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c0c0a967726f75705f69\
        647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00";
    const REMOVED: &str = "93cb41da480e081000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573\
        91cffedcba9876543210a66d656469756da3475055a967726f75705f6964780003";
    const CLEARED: &str = "93cb41da480e081000009181a474797065b0416c6c426c6f636b73436c656172656400";
    const TIME: f64 = 1_763_719_200.25;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn golden(text: &str) -> String {
        text.split_whitespace().collect()
    }

    #[test]
    fn stored_equals_the_engines_bytes() {
        let event = CacheEvent::Stored {
            hashes: vec![BlockHash(0x0123_4567_89ab_cdef), BlockHash(0xfedc_ba98_7654_3210)],
            parent: Some(BlockHash(u64::MAX)),
            token_ids: (100..132).collect(),
            salt: "unused past the first block".into(),
        };
        assert_eq!(hex(&encode_batch(TIME, &[event], 0, 16)), golden(STORED));
    }

    #[test]
    fn removed_and_cleared_equal_the_engines_bytes() {
        let removed = CacheEvent::Removed { hash: BlockHash(0xfedc_ba98_7654_3210) };
        assert_eq!(hex(&encode_batch(TIME, &[removed], 3, 16)), golden(REMOVED));
        assert_eq!(hex(&encode_batch(TIME, &[CacheEvent::Cleared], 0, 16)), golden(CLEARED));
    }

    #[test]
    fn salt_is_on_the_first_block_of_a_sequence_only() {
        let event = CacheEvent::Stored {
            hashes: vec![BlockHash(1), BlockHash(2)],
            parent: None,
            token_ids: vec![1, 2],
            salt: "s1".into(),
        };
        let text = hex(&encode_batch(TIME, &[event], 0, 1));
        // "extra_keys": [["s1"], nil]
        assert!(text.contains("aa65787472615f6b6579739291a27331c0a967"), "{text}");
    }
}
