//! KV-event payloads to events. Sans-IO: bytes in, one borrowed event at a time out. Understands both shapes that
//! engines send: positional arrays (vLLM up to 0.23, SGLang up to 0.5.19) and maps with the key `type` (later
//! ones); the batch around them is always an array `[ts, events, rank?, …]`. Unknown fields are skipped, unknown
//! event types are reported as such, a malformed event does not hide the ones after it. Allocates at most what the
//! payload can hold; never panics, never recurses.

use super::event::{Event, Medium, Removed, Stored};
use super::msgpack::{MsgpackError, Reader, Value};
use std::str::from_utf8;

/// What a decoded batch says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// The publisher's data-parallel rank, where it is told.
    pub rank: Option<u32>,
}

/// Decodes payloads; keeps its scratch space between them.
#[derive(Debug, Default)]
pub struct Decoder {
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    hashes: Vec<u64>,
    token_ids: Vec<u32>,
}

impl Decoder {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes one payload. Events before a fault of the batch itself have been reported when it returns the error.
    pub fn decode(
        &mut self,
        payload: &[u8],
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<BatchHead, MsgpackError> {
        let mut reader = Reader::new(payload);
        let elements = array(&mut reader)?;
        if elements < 2 {
            return Err(MsgpackError::Type);
        }
        reader.skip()?;
        for _ in 0..array(&mut reader)? {
            let mut after = reader;
            after.skip()?;
            let event = self.scratch.event(&mut reader).unwrap_or(Event::Malformed);
            on_event(event);
            reader = after;
        }
        let mut rank = None;
        for position in 2..elements {
            if position == 2 {
                // Read on a copy: an odd value is skipped from its start.
                let mut after = reader;
                after.skip()?;
                rank = optional(small)(&mut reader).unwrap_or(None);
                reader = after;
            } else {
                reader.skip()?;
            }
        }
        Ok(BatchHead { rank })
    }
}

/// Fields of any event as they are met, in either shape.
#[derive(Default)]
struct Fields<'a> {
    parent: Option<u64>,
    block_size_tokens: u32,
    medium: Medium,
    lora_name: &'a str,
    cache_salt: &'a str,
    extra_keys: Option<Reader<'a>>,
    group: Option<u32>,
    kind: Option<&'a str>,
    remote: bool,
    has_hashes: bool,
}

/// Fields of `BlockStored` and `BlockRemoved` in positional form, after the tag.
const STORED_FIELDS: [&str; 10] = [
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
];
const REMOVED_FIELDS: [&str; 3] = ["block_hashes", "medium", "group_idx"];

impl Scratch {
    fn event<'s, 'p: 's>(&'s mut self, reader: &mut Reader<'p>) -> Result<Event<'s>, MsgpackError> {
        self.hashes.clear();
        self.token_ids.clear();
        let mut fields = Fields::default();
        let tag = match reader.value()? {
            Value::Array(length) => self.positional(reader, length, &mut fields)?,
            Value::Map(length) => self.keyed(reader, length, &mut fields)?,
            _ => return Err(MsgpackError::Type),
        };
        match tag {
            "BlockStored" if fields.has_hashes => Ok(Event::Stored(self.stored(&fields)?)),
            "BlockRemoved" if fields.has_hashes => Ok(Event::Removed(Removed {
                hashes: &self.hashes,
                medium: fields.medium,
                group: fields.group,
                remote: fields.remote,
            })),
            "BlockStored" | "BlockRemoved" => Err(MsgpackError::Type),
            "AllBlocksCleared" => Ok(Event::Cleared),
            _ => Ok(Event::Unknown),
        }
    }

    fn positional<'a>(
        &mut self,
        reader: &mut Reader<'a>,
        length: u32,
        fields: &mut Fields<'a>,
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
        for name in names.iter().take(usize::try_from(length - 1).unwrap_or(usize::MAX)) {
            self.field(reader, name, fields)?;
        }
        Ok(tag)
    }

    fn keyed<'a>(
        &mut self,
        reader: &mut Reader<'a>,
        length: u32,
        fields: &mut Fields<'a>,
    ) -> Result<&'a str, MsgpackError> {
        let mut tag = None;
        for _ in 0..length {
            match reader.value()? {
                Value::Text(b"type") => tag = Some(text(reader)?),
                Value::Text(key) => self.field(reader, from_utf8(key).unwrap_or(""), fields)?,
                Value::Array(_) | Value::Map(_) => return Err(MsgpackError::Type),
                _ => reader.skip()?,
            }
        }
        tag.ok_or(MsgpackError::Type)
    }

    fn field<'a>(
        &mut self,
        reader: &mut Reader<'a>,
        name: &str,
        fields: &mut Fields<'a>,
    ) -> Result<(), MsgpackError> {
        match name {
            "block_hashes" => {
                self.read_hashes(reader)?;
                fields.has_hashes = true;
            }
            "parent_block_hash" => fields.parent = optional(hash)(reader)?,
            "token_ids" => self.read_tokens(reader)?,
            "block_size" => fields.block_size_tokens = small(reader)?,
            "medium" => fields.medium = Medium::from_word(optional(text)(reader)?),
            "lora_name" => lora_name(reader, fields)?,
            "cache_salt" => fields.cache_salt = optional(text)(reader)?.unwrap_or(""),
            "extra_keys" => {
                fields.extra_keys = Some(*reader);
                reader.skip()?;
            }
            "group_idx" => fields.group = optional(small)(reader)?,
            "kv_cache_spec_kind" => fields.kind = optional(text)(reader)?,
            "locality" => fields.remote = optional(text)(reader)? == Some("REMOTE"),
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn stored<'s, 'p: 's>(&'s self, fields: &Fields<'p>) -> Result<Stored<'s>, MsgpackError> {
        let mut stored = Stored {
            hashes: &self.hashes,
            parent: fields.parent,
            token_ids: &self.token_ids,
            block_size_tokens: fields.block_size_tokens,
            medium: fields.medium,
            lora_name: fields.lora_name,
            cache_salt: fields.cache_salt,
            opaque_from: None,
            group: fields.group,
            whole_prefix: matches!(
                fields.kind,
                None | Some("full_attention" | "mla_attention" | "sink_full_attention")
            ),
            remote: fields.remote,
        };
        if let Some(mut reader) = fields.extra_keys {
            read_extra_keys(&mut reader, &mut stored)?;
        }
        Ok(stored)
    }

    fn read_hashes(&mut self, reader: &mut Reader<'_>) -> Result<(), MsgpackError> {
        let length = array(reader)?;
        self.hashes.clear();
        self.hashes.reserve(bounded(length, reader));
        for _ in 0..length {
            self.hashes.push(hash(reader)?);
        }
        Ok(())
    }

    /// Tokens, or the pairs that SGLang publishes with EAGLE: of `[a, b]` the block's own token is `a`.
    fn read_tokens(&mut self, reader: &mut Reader<'_>) -> Result<(), MsgpackError> {
        let length = array(reader)?;
        self.token_ids.clear();
        self.token_ids.reserve(bounded(length, reader));
        for _ in 0..length {
            if let Some(token) = reader.short_unsigned() {
                self.token_ids.push(token);
                continue;
            }
            let token = match reader.value()? {
                Value::Array(2) => {
                    let first = small(reader)?;
                    reader.skip()?;
                    first
                }
                Value::Integer { bits, negative: false } => {
                    u32::try_from(bits).map_err(|_| MsgpackError::Type)?
                }
                _ => return Err(MsgpackError::Type),
            };
            self.token_ids.push(token);
        }
        Ok(())
    }
}

/// Most items that can really follow: each takes at least a byte.
fn bounded(claimed: u32, reader: &Reader<'_>) -> usize {
    usize::try_from(claimed).unwrap_or(usize::MAX).min(reader.remaining())
}

/// One entry per block, each nil or a list: the LoRA name, the cache salt (first block only), and items that are
/// not text, as `[id, offset]` pairs or bytes. Names and salts are both bare strings (vLLM 0.17 to 0.33).
fn read_extra_keys<'a>(
    reader: &mut Reader<'a>,
    stored: &mut Stored<'a>,
) -> Result<(), MsgpackError> {
    let blocks = match reader.value()? {
        Value::Nil => return Ok(()),
        Value::Array(blocks) => blocks,
        _ => return Err(MsgpackError::Type),
    };
    for block in 0..usize::try_from(blocks).unwrap_or(usize::MAX) {
        let keys = match reader.value()? {
            Value::Nil => continue,
            Value::Array(keys) => keys,
            _ => return Err(MsgpackError::Type),
        };
        for _ in 0..keys {
            let mut after = *reader;
            after.skip()?;
            let known = match reader.value()? {
                Value::Text(text) if text == stored.lora_name.as_bytes() => true,
                // Behind a parent no block is the first of its sequence: there it is an image's name (vLLM 0.17 to 0.30).
                Value::Text(text)
                    if block == 0 && stored.parent.is_none() && stored.cache_salt.is_empty() =>
                {
                    stored.cache_salt = from_utf8(text).map_err(|_| MsgpackError::Type)?;
                    true
                }
                Value::Nil => true,
                _ => false,
            };
            if !known && stored.opaque_from.is_none() {
                stored.opaque_from = Some(block);
            }
            *reader = after;
        }
    }
    Ok(())
}

/// SGLang 0.5.19 alone puts a map of metadata in the place of the LoRA name.
fn lora_name<'a>(reader: &mut Reader<'a>, fields: &mut Fields<'a>) -> Result<(), MsgpackError> {
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

fn array(reader: &mut Reader<'_>) -> Result<u32, MsgpackError> {
    match reader.value()? {
        Value::Array(length) => Ok(length),
        _ => Err(MsgpackError::Type),
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, MsgpackError> {
    match reader.value()? {
        Value::Text(bytes) => from_utf8(bytes).map_err(|_| MsgpackError::Type),
        _ => Err(MsgpackError::Type),
    }
}

fn small(reader: &mut Reader<'_>) -> Result<u32, MsgpackError> {
    match reader.value()? {
        Value::Integer { bits, negative: false } => {
            u32::try_from(bits).map_err(|_| MsgpackError::Type)
        }
        _ => Err(MsgpackError::Type),
    }
}

/// Integers of either sign as their bits; digests as their last 8 bytes, which is what engines send as integer.
fn hash(reader: &mut Reader<'_>) -> Result<u64, MsgpackError> {
    match reader.value()? {
        Value::Integer { bits, .. } => Ok(bits),
        Value::Binary(digest) => {
            let last = digest.last_chunk::<8>().ok_or(MsgpackError::Type)?;
            Ok(u64::from_be_bytes(*last))
        }
        _ => Err(MsgpackError::Type),
    }
}

/// Nil as `None`.
fn optional<'a, T>(
    read: impl Fn(&mut Reader<'a>) -> Result<T, MsgpackError>,
) -> impl Fn(&mut Reader<'a>) -> Result<Option<T>, MsgpackError> {
    move |reader| {
        let mut peek = *reader;
        if peek.value()? == Value::Nil {
            *reader = peek;
            return Ok(None);
        }
        read(reader).map(Some)
    }
}
