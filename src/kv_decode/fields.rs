//! The fields of an event, in either wire form, and their values. Lists stay unread, because they
//! may be long.

use super::event::Medium;
use super::images::{BlockImages, image};
use super::msgpack::{MsgpackError, MsgpackReader, Value};
use std::str::from_utf8;

/// Fields of an event of any type, in either wire form.
#[derive(Debug, Default)]
pub(super) struct EventFields<'a> {
    pub(super) parent: Option<u64>,
    pub(super) block_size_tokens: u32,
    pub(super) medium: Medium,
    pub(super) lora_name: &'a str,
    /// The adapter has a number, which is no name that a request could have.
    pub(super) has_lora_id: bool,
    pub(super) cache_salt: &'a str,
    pub(super) extra_keys: Option<MsgpackReader<'a>>,
    pub(super) group: Option<u32>,
    pub(super) kind: Option<&'a str>,
    pub(super) window_tokens: Option<u32>,
    pub(super) remote: bool,
    pub(super) hashes: Option<MsgpackReader<'a>>,
    pub(super) token_ids: Option<MsgpackReader<'a>>,
    pub(super) opaque_from: Option<usize>,
    pub(super) images: BlockImages<'a>,
}

/// Fields of `BlockStored` and `BlockRemoved` in positional form, after the tag.
const STORED_FIELDS: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED_FIELDS: [&str; 3] = ["block_hashes", "medium", "group_idx"];

pub(super) fn positional<'a>(
    reader: &mut MsgpackReader<'a>,
    length: u32,
    fields: &mut EventFields<'a>,
) -> Result<&'a str, MsgpackError> {
    if length == 0 {
        return Err(MsgpackError::Type);
    }
    let tag = text(reader)?;
    let names: &[&str] = match tag {
        "BlockStored" => &STORED_FIELDS,
        "BlockRemoved" => &REMOVED_FIELDS,
        _ => &[],
    };
    for position in 0..usize::try_from(length - 1).unwrap_or(usize::MAX) {
        match names.get(position) {
            Some(name) => field(reader, name, fields)?,
            None => reader.skip()?,
        }
    }
    Ok(tag)
}

pub(super) fn keyed<'a>(
    reader: &mut MsgpackReader<'a>,
    length: u32,
    fields: &mut EventFields<'a>,
) -> Result<&'a str, MsgpackError> {
    let mut tag = None;
    for _ in 0..length {
        match reader.value()? {
            Value::Text(b"type") => tag = Some(text(reader)?),
            Value::Text(key) => field(reader, from_utf8(key).unwrap_or(""), fields)?,
            Value::Array(_) | Value::Map(_) => return Err(MsgpackError::Type),
            _ => reader.skip()?,
        }
    }
    tag.ok_or(MsgpackError::Type)
}

fn field<'a>(
    reader: &mut MsgpackReader<'a>,
    name: &str,
    fields: &mut EventFields<'a>,
) -> Result<(), MsgpackError> {
    let mut skip_list = |place: &mut Option<MsgpackReader<'a>>| {
        *place = Some(*reader);
        reader.skip()
    };
    match name {
        // Lists may be long: they are read when their blocks are decoded.
        "block_hashes" => skip_list(&mut fields.hashes)?,
        "token_ids" => skip_list(&mut fields.token_ids)?,
        "extra_keys" => skip_list(&mut fields.extra_keys)?,
        "parent_block_hash" => fields.parent = optional(hash)(reader)?,
        "block_size" => fields.block_size_tokens = small(reader)?,
        "medium" => fields.medium = Medium::from_word(optional(text)(reader)?),
        "lora_name" => lora_name(reader, fields)?,
        "lora_id" => {
            // Read on a copy: an odd value stands for an adapter too.
            let mut copy = *reader;
            reader.skip()?;
            let none = [Value::Nil, Value::Integer { bits: 0, negative: false }];
            fields.has_lora_id = !copy.value().is_ok_and(|value| none.contains(&value));
        }
        "cache_salt" => fields.cache_salt = optional(text)(reader)?.unwrap_or(""),
        "group_idx" => fields.group = optional(small)(reader)?,
        "kv_cache_spec_kind" => fields.kind = optional(text)(reader)?,
        "kv_cache_spec_sliding_window" => {
            // Read on a copy: a value that is no number is ignored, and the other fields count.
            let mut copy = *reader;
            reader.skip()?;
            fields.window_tokens = small(&mut copy).ok();
        }
        "locality" => fields.remote = optional(text)(reader)? == Some("REMOTE"),
        _ => reader.skip()?,
    }
    Ok(())
}

/// Reads an entry per block, nil or a list: the LoRA name, the cache salt (first block only), and
/// items that are not text: images as `[name, offset]`, other items as bytes. Names and salts are
/// both bare strings (vLLM 0.17 to 0.33).
pub(super) fn read_extra_keys<'a>(
    reader: &mut MsgpackReader<'a>,
    fields: &mut EventFields<'a>,
) -> Result<(), MsgpackError> {
    let blocks = match reader.value()? {
        Value::Nil => return Ok(()),
        Value::Array(blocks) => blocks,
        _ => return Err(MsgpackError::Type),
    };
    let start = *reader;
    for block in 0..usize::try_from(blocks).unwrap_or(usize::MAX) {
        let keys = match reader.value()? {
            Value::Nil => continue,
            Value::Array(keys) => keys,
            _ => return Err(MsgpackError::Type),
        };
        for _ in 0..keys {
            let mut after = *reader;
            after.skip()?;
            if image(&mut reader.clone()).is_some() {
                fields.images = BlockImages::new(start, blocks);
                *reader = after;
                continue;
            }
            let known = match reader.value()? {
                Value::Text(text) if text == fields.lora_name.as_bytes() => true,
                // In an event with a parent no block is the first of its sequence, so the string
                // is the name of an image (vLLM 0.17 to 0.30).
                Value::Text(text)
                    if block == 0 && fields.parent.is_none() && fields.cache_salt.is_empty() =>
                {
                    fields.cache_salt = from_utf8(text).map_err(|_| MsgpackError::Type)?;
                    true
                }
                Value::Nil => true,
                _ => false,
            };
            if !known && fields.opaque_from.is_none() {
                fields.opaque_from = Some(block);
            }
            *reader = after;
        }
    }
    Ok(())
}

/// Reads a LoRA name; only SGLang 0.5.19 has a map of metadata in its place.
fn lora_name<'a>(
    reader: &mut MsgpackReader<'a>,
    fields: &mut EventFields<'a>,
) -> Result<(), MsgpackError> {
    match reader.value()? {
        Value::Nil => {}
        Value::Text(name) => fields.lora_name = from_utf8(name).map_err(|_| MsgpackError::Type)?,
        Value::Map(length) => {
            for _ in 0..length {
                if text(reader)? == "cache_salt" {
                    fields.cache_salt = optional(text)(reader)?.unwrap_or("");
                } else {
                    reader.skip()?;
                }
            }
        }
        _ => return Err(MsgpackError::Type),
    }
    Ok(())
}

pub(super) fn array(reader: &mut MsgpackReader<'_>) -> Result<u32, MsgpackError> {
    match reader.value()? {
        Value::Array(length) => Ok(length),
        _ => Err(MsgpackError::Type),
    }
}

fn text<'a>(reader: &mut MsgpackReader<'a>) -> Result<&'a str, MsgpackError> {
    match reader.value()? {
        Value::Text(bytes) => from_utf8(bytes).map_err(|_| MsgpackError::Type),
        _ => Err(MsgpackError::Type),
    }
}

pub(super) fn small(reader: &mut MsgpackReader<'_>) -> Result<u32, MsgpackError> {
    match reader.value()? {
        Value::Integer { bits, negative: false } => {
            u32::try_from(bits).map_err(|_| MsgpackError::Type)
        }
        _ => Err(MsgpackError::Type),
    }
}

/// Reads a hash: integers of either sign as their bits, digests as their last 8 bytes, because
/// engines send these bytes as the integer.
pub(super) fn hash(reader: &mut MsgpackReader<'_>) -> Result<u64, MsgpackError> {
    match reader.value()? {
        Value::Integer { bits, .. } => Ok(bits),
        Value::Binary(digest) => {
            let last = digest.last_chunk::<8>().ok_or(MsgpackError::Type)?;
            Ok(u64::from_be_bytes(*last))
        }
        _ => Err(MsgpackError::Type),
    }
}

/// Reads nil as `None`.
pub(super) fn optional<'a, T>(
    read: impl Fn(&mut MsgpackReader<'a>) -> Result<T, MsgpackError>,
) -> impl Fn(&mut MsgpackReader<'a>) -> Result<Option<T>, MsgpackError> {
    move |reader| {
        let mut peek = *reader;
        if peek.value()? == Value::Nil {
            *reader = peek;
            return Ok(None);
        }
        read(reader).map(Some)
    }
}
