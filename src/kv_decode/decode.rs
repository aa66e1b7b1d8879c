//! Decodes KV-event payloads. Sans-IO: bytes in, a borrowed event at a time out. Supports both wire
//! forms of events: positional arrays (vLLM up to 0.23, SGLang up to 0.5.19) and maps with the key
//! `type` (later versions). The batch around them is always an array `[ts, events, rank?, …]`.
//! Unknown fields are skipped, unknown event types are reported as such, and the events after a
//! malformed event are decoded. Allocates no more than the payload can fill; never panics, never
//! recurses.

use super::event::{Attention, BlockRemoved, BlockStored, ExtraKeys, KvEvent};
use super::fields::{
    EventFields, array, hash, keyed, optional, positional, read_extra_keys, small,
};
use super::msgpack::{MsgpackError, MsgpackReader, Value};
use forebay_base::limits::BLOCK_BYTES_MAX;

/// Tokens of a usual block; a part has fewer blocks where blocks are larger.
const USUAL_TOKENS: usize = 64;

/// Fields of a batch around its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// The publisher's data-parallel rank, where the batch contains it.
    pub rank: Option<u32>,
}

/// Decodes payloads; reuses its scratch space for the next payload.
#[derive(Debug, Default)]
pub struct Decoder {
    scratch: DecodeScratch,
}

/// A payload that is being decoded, some blocks at a time.
#[derive(Debug)]
pub struct Batch<'p> {
    reader: MsgpackReader<'p>,
    elements: u32,
    events_left: u32,
    pending: Option<PendingEvent<'p>>,
}

/// An event, or a part of a long event: the next part continues behind its last block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventPart<'a> {
    /// The event, with the blocks of this part.
    pub event: KvEvent<'a>,
    /// No further part of the event follows.
    pub is_last: bool,
}

/// An event with blocks that is being read, and the position in it.
#[derive(Debug)]
struct PendingEvent<'p> {
    fields: EventFields<'p>,
    is_store: bool,
    hashes: List<'p>,
    token_ids: List<'p>,
    taken_count: usize,
}

/// The unread items of a list.
#[derive(Clone, Copy, Debug)]
struct List<'p> {
    reader: MsgpackReader<'p>,
    left: usize,
}

impl<'p> List<'p> {
    fn of(reader: Option<MsgpackReader<'p>>) -> Result<Self, MsgpackError> {
        let Some(mut reader) = reader else {
            return Ok(Self { reader: MsgpackReader::new(&[]), left: 0 });
        };
        // Each item takes at least 1 byte.
        let left = usize::try_from(array(&mut reader)?).unwrap_or(usize::MAX);
        Ok(Self { reader, left: left.min(reader.remaining()) })
    }
}

#[derive(Debug, Default)]
struct DecodeScratch {
    hashes: Vec<u64>,
    token_ids: Vec<u32>,
}

impl Decoder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes a payload. Calls `on_event` for the events before a fault of the batch, and then
    /// returns the error.
    pub fn decode(
        &mut self,
        payload: &[u8],
        mut on_event: impl FnMut(KvEvent<'_>),
    ) -> Result<BatchHead, MsgpackError> {
        let mut batch = Batch::begin(payload)?;
        while let Some(part) = self.next(&mut batch, usize::MAX)? {
            on_event(part.event);
        }
        batch.head()
    }

    /// The next event, or the next part of an event with more than `blocks_max` blocks; `None`
    /// after the last.
    pub fn next<'s, 'p: 's>(
        &'s mut self,
        batch: &mut Batch<'p>,
        blocks_max: usize,
    ) -> Result<Option<EventPart<'s>>, MsgpackError> {
        let mut pending = match batch.pending.take() {
            Some(pending) => pending,
            None => match batch.event()? {
                None => return Ok(None),
                Some(Ok(EventHead::Blocks(pending))) => pending,
                Some(Ok(EventHead::Short(event))) => {
                    return Ok(Some(EventPart { event, is_last: true }));
                }
                Some(Err(_)) => return Ok(Some(MALFORMED)),
            },
        };
        let Self { scratch } = self;
        if scratch.read(&mut pending, blocks_max.max(1)).is_err() {
            return Ok(Some(MALFORMED));
        }
        let is_last = pending.hashes.left == 0;
        let event = scratch.part(&pending);
        if !is_last {
            pending.fields.parent = scratch.hashes.last().copied();
            pending.taken_count += scratch.hashes.len();
            pending.fields.images.skip(scratch.hashes.len());
            batch.pending = Some(pending);
        }
        Ok(Some(EventPart { event, is_last }))
    }
}

/// Marks of unsigned numbers, with the bytes that follow.
const LONG_NUMBERS: [(u8, usize); 4] = [(0xcc, 1), (0xcd, 2), (0xce, 4), (0xcf, 8)];

/// Part of an event that cannot be read; later events are decoded.
const MALFORMED: EventPart<'static> = EventPart { event: KvEvent::Malformed, is_last: true };

/// An event with its fields read, but not its lists.
enum EventHead<'p> {
    Blocks(PendingEvent<'p>),
    Short(KvEvent<'static>),
}

impl<'p> Batch<'p> {
    /// Reads a payload up to its first event.
    pub fn begin(payload: &'p [u8]) -> Result<Self, MsgpackError> {
        let mut reader = MsgpackReader::new(payload);
        let elements = array(&mut reader)?;
        if elements < 2 {
            return Err(MsgpackError::Type);
        }
        reader.skip()?;
        let events_left = array(&mut reader)?;
        Ok(Self { reader, elements, events_left, pending: None })
    }

    /// The rank that the batch names behind its events.
    #[must_use]
    pub fn rank(payload: &[u8]) -> Option<u32> {
        // Small numbers are the last byte, behind no mark of a longer number.
        let back = |count: usize| payload.get(payload.len().checked_sub(count)?).copied();
        let is_short = !LONG_NUMBERS.iter().any(|(mark, bytes)| back(bytes + 1) == Some(*mark));
        match (payload.first(), back(1)) {
            (Some(0x93), Some(small @ 0..=0x7f)) if is_short => return Some(small.into()),
            (Some(0x93), Some(0xc0)) if is_short => return None,
            (Some(0x92), _) => return None,
            _ => {}
        }
        let mut batch = Batch::begin(payload).ok()?;
        for _ in 0..batch.events_left {
            batch.reader.skip().ok()?;
        }
        batch.head().ok()?.rank
    }

    /// Skips the rest of the present event.
    pub fn skip_event(&mut self) {
        self.pending = None;
    }

    /// Reads the fields behind the events.
    fn head(mut self) -> Result<BatchHead, MsgpackError> {
        let mut rank = None;
        for position in 2..self.elements {
            // Read on a copy: an odd value is skipped from its start.
            let mut copy = self.reader;
            self.reader.skip()?;
            if position == 2 {
                rank = optional(small)(&mut copy).unwrap_or(None);
            }
        }
        Ok(BatchHead { rank })
    }

    /// True if the fields behind the events are well-formed.
    #[must_use]
    pub fn ends_well(self) -> bool {
        self.head().is_ok()
    }

    /// Reads the fields of the next event; the inner error is of that event alone.
    fn event(&mut self) -> Result<Option<Result<EventHead<'p>, MsgpackError>>, MsgpackError> {
        let Some(left) = self.events_left.checked_sub(1) else { return Ok(None) };
        self.events_left = left;
        let start = self.reader;
        let begun = begin_event(&mut self.reader);
        if begun.is_err() {
            self.reader = start;
            self.reader.skip()?;
        }
        Ok(Some(begun))
    }
}

fn begin_event<'p>(reader: &mut MsgpackReader<'p>) -> Result<EventHead<'p>, MsgpackError> {
    let mut fields = EventFields::default();
    let tag = match reader.value()? {
        Value::Array(length) => positional(reader, length, &mut fields)?,
        Value::Map(length) => keyed(reader, length, &mut fields)?,
        _ => return Err(MsgpackError::Type),
    };
    let is_store = match tag {
        "BlockStored" => true,
        "BlockRemoved" => false,
        // A type that this version does not know, and that clears some blocks, is taken as a
        // clearing of the rank: blocks that are gone must not be claimed.
        _ if tag.contains("Cleared") => return Ok(EventHead::Short(KvEvent::Cleared)),
        _ => return Ok(EventHead::Short(KvEvent::Unknown)),
    };
    if fields.hashes.is_none() {
        return Err(MsgpackError::Type);
    }
    let hashes = List::of(fields.hashes)?;
    // Groups without whole prefixes name blocks by hashes alone, and often fewer blocks than the
    // tokens cover.
    let attention = Attention::from_word(fields.kind, fields.window_tokens);
    let has_tokens = is_store && attention == Attention::Whole;
    let token_ids = List::of(fields.token_ids.filter(|_| has_tokens))?;
    if let Some(mut keys) = fields.extra_keys.filter(|_| is_store) {
        read_extra_keys(&mut keys, &mut fields)?;
    }
    if fields.has_lora_id && fields.lora_name.is_empty() {
        // vLLM to 0.13 names an adapter by a number alone, which no request can be mapped to.
        fields.opaque_from = Some(0);
    }
    Ok(EventHead::Blocks(PendingEvent { fields, is_store, hashes, token_ids, taken_count: 0 }))
}

impl DecodeScratch {
    /// Reads the next blocks of an event. An event with lists that do not match has a single part.
    fn read(
        &mut self,
        pending: &mut PendingEvent<'_>,
        blocks_max: usize,
    ) -> Result<(), MsgpackError> {
        let hashes = pending.hashes.left;
        let token_ids = pending.token_ids.left;
        let block_tokens = usize::try_from(pending.fields.block_size_tokens).unwrap_or(usize::MAX);
        let blocks_max =
            blocks_max.min((blocks_max.saturating_mul(USUAL_TOKENS) / block_tokens.max(1)).max(1));
        let is_short =
            hashes <= blocks_max && token_ids <= blocks_max.saturating_mul(block_tokens.max(1));
        let (hashes, token_ids) = if is_short {
            (hashes, token_ids)
        } else if token_ids == 0 {
            (hashes.min(blocks_max), 0)
        } else if block_tokens <= BLOCK_BYTES_MAX
            && hashes.checked_mul(block_tokens) == Some(token_ids)
        {
            let blocks = hashes.min(blocks_max);
            (blocks, blocks * block_tokens)
        } else {
            // The fewest items that show the mismatch to the caller.
            pending.hashes.left = 0;
            (0, 1)
        };
        self.read_hashes(&mut pending.hashes, hashes)?;
        self.read_tokens(&mut pending.token_ids, token_ids)
    }

    /// The blocks that were read last, as an event.
    fn part<'s, 'p: 's>(&'s self, pending: &PendingEvent<'p>) -> KvEvent<'s> {
        let PendingEvent { fields, taken_count, .. } = pending;
        let medium = if fields.remote { fields.medium.in_other_process() } else { fields.medium };
        if !pending.is_store {
            let group = fields.group;
            return KvEvent::Removed(BlockRemoved { hashes: &self.hashes, medium, group });
        }
        KvEvent::Stored(BlockStored {
            hashes: &self.hashes,
            parent: fields.parent,
            token_ids: &self.token_ids,
            block_size_tokens: fields.block_size_tokens,
            medium,
            extra_keys: ExtraKeys {
                lora_name: fields.lora_name,
                cache_salt: fields.cache_salt,
                opaque_from: fields.opaque_from.map(|from| from.saturating_sub(*taken_count)),
                images: fields.images,
            },
            group: fields.group,
            attention: Attention::from_word(fields.kind, fields.window_tokens),
        })
    }

    fn read_hashes(&mut self, list: &mut List<'_>, count: usize) -> Result<(), MsgpackError> {
        self.hashes.clear();
        for _ in 0..count {
            self.hashes.push(hash(&mut list.reader)?);
        }
        list.left = list.left.saturating_sub(count);
        Ok(())
    }

    /// Reads tokens, or the pairs that SGLang publishes with EAGLE; in `[a, b]`, the block's token
    /// is `a`.
    fn read_tokens(&mut self, list: &mut List<'_>, count: usize) -> Result<(), MsgpackError> {
        let reader = &mut list.reader;
        self.token_ids.clear();
        self.token_ids.reserve(count);
        for _ in 0..count {
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
        list.left = list.left.saturating_sub(count);
        Ok(())
    }
}
