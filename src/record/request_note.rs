//! Notes of a router about requests. A message of a requests source has a single frame, which is a
//! note. Sans-IO. Notes identify prompts by keyed hashes of their beginnings and contain no text.
//!
//! ```text
//! u8 kind
//! 1 ranks   varint count; each: varint pool, varint KV tokens (0: unknown), varint bytes, name
//! 2 sent    varint id, pool, rank, ns of the arrival on the router's clock, bytes of the prompt;
//!           u64 keys
//! 3 ended   varint id, rank; then varint prompt tokens, cached tokens and output tokens, where
//!           the engine reported them
//! 4 lost    varint notes without room since the note before
//! ```
//!
//! Notes refer to a rank by its position in the newest list. A prompt has parts of
//! [`NOTE_PART_BYTES`] bytes, and the key of a part covers the part with all parts before. Only
//! whole parts have keys, and at most [`NOTE_PARTS_MAX`] parts do.

use forebay_base::limits::{NOTE_PARTS_MAX, RANKS_MAX};
use forebay_snapshot::framing::{NumberReader, put_varint};

const RANKS: u8 = 1;
const SENT: u8 = 2;
const ENDED: u8 = 3;
const LOST: u8 = 4;
const KEY_BYTES: usize = 8;
/// Longest name of a rank; writing cuts longer names.
const NAME_BYTES_MAX: usize = 1_024;

/// A rank that prompts can go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankEntry {
    /// Ranks that serve the same models have the same pool.
    pub pool: u32,
    /// Capacity of the rank's cache in tokens; 0 where the engine does not report it.
    pub kv_tokens: u64,
    /// Worker and number of the rank.
    pub name: String,
}

/// A request was sent to a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestStart {
    /// Id of the request, also in the note of its end.
    pub id: u64,
    /// Pool of the request's model.
    pub pool: u32,
    /// Position of the rank that computes the prompt.
    pub rank: u32,
    /// Arrival of the request, on the router's clock.
    pub arrived_ns: u64,
    pub prompt_bytes: u64,
    /// A key for each whole part, from the beginning.
    pub keys: Vec<u64>,
}

/// A request's answer has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestEnd {
    /// Id of the request, as in [`RequestStart::id`].
    pub id: u64,
    /// The rank that answered after all attempts.
    pub rank: u32,
    /// Token counts, where the engine reported them.
    pub told: Option<RequestUsage>,
}

/// Token counts that an engine has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestUsage {
    pub prompt: u64,
    /// Prompt tokens from the cache.
    pub cached: u64,
    /// Tokens of the response.
    pub output: u64,
}

/// A note of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestNote {
    /// The fleet has these ranks from now on.
    Ranks(Vec<RankEntry>),
    /// A request was sent to a rank.
    Sent(RequestStart),
    /// A request has ended, with success or not.
    Ended(RequestEnd),
    /// So many notes are missing here.
    Lost(u64),
}

impl RequestNote {
    /// Appends the note to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ranks(ranks) => {
                out.push(RANKS);
                let ranks = ranks.get(..ranks.len().min(RANKS_MAX)).unwrap_or_default();
                put_varint(ranks.len() as u64, out);
                for rank in ranks {
                    put_varint(u64::from(rank.pool), out);
                    put_varint(rank.kv_tokens, out);
                    let name = rank.name.as_bytes();
                    let name = name.get(..name.len().min(NAME_BYTES_MAX)).unwrap_or_default();
                    put_varint(name.len() as u64, out);
                    out.extend_from_slice(name);
                }
            }
            Self::Sent(sent) => {
                out.push(SENT);
                let RequestStart { id, pool, rank, arrived_ns, prompt_bytes, keys } = sent;
                let numbers = [*id, u64::from(*pool), u64::from(*rank), *arrived_ns, *prompt_bytes];
                numbers.into_iter().for_each(|number| put_varint(number, out));
                let keys = keys.get(..keys.len().min(NOTE_PARTS_MAX)).unwrap_or_default();
                out.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
            }
            Self::Ended(RequestEnd { id, rank, told }) => {
                out.push(ENDED);
                put_varint(*id, out);
                put_varint(u64::from(*rank), out);
                if let Some(RequestUsage { prompt, cached, output }) = told {
                    [prompt, cached, output]
                        .into_iter()
                        .for_each(|tokens| put_varint(*tokens, out));
                }
            }
            Self::Lost(count) => {
                out.push(LOST);
                put_varint(*count, out);
            }
        }
    }

    /// Reads a note that takes all of the bytes; `None` for other bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = NumberReader(bytes);
        let [kind] = reader.array()?;
        let note = match kind {
            RANKS => Self::Ranks(ranks(&mut reader)?),
            SENT => Self::Sent(sent(&mut reader)?),
            ENDED => Self::Ended(ended(&mut reader)?),
            LOST => Self::Lost(reader.varint()?),
            _ => return None,
        };
        reader.0.is_empty().then_some(note)
    }
}

fn small(reader: &mut NumberReader<'_>) -> Option<u32> {
    u32::try_from(reader.varint()?).ok()
}

fn ranks(reader: &mut NumberReader<'_>) -> Option<Vec<RankEntry>> {
    let count = usize::try_from(reader.varint()?).ok().filter(|count| *count <= RANKS_MAX)?;
    let mut ranks = Vec::new();
    for _ in 0..count {
        let pool = small(reader)?;
        let kv_tokens = reader.varint()?;
        let length = usize::try_from(reader.varint()?).ok()?;
        let name = reader.bytes(length.min(NAME_BYTES_MAX + 1))?;
        let name = String::from_utf8_lossy(name).into_owned();
        ranks.push(RankEntry { pool, kv_tokens, name });
    }
    Some(ranks)
}

fn sent(reader: &mut NumberReader<'_>) -> Option<RequestStart> {
    let id = reader.varint()?;
    let pool = small(reader)?;
    let rank = small(reader)?;
    let arrived_ns = reader.varint()?;
    let prompt_bytes = reader.varint()?;
    let (keys, rest) = reader.0.as_chunks::<KEY_BYTES>();
    if keys.len() > NOTE_PARTS_MAX || !rest.is_empty() {
        return None;
    }
    let keys = keys.iter().map(|key| u64::from_le_bytes(*key)).collect();
    reader.0 = &[];
    Some(RequestStart { id, pool, rank, arrived_ns, prompt_bytes, keys })
}

fn ended(reader: &mut NumberReader<'_>) -> Option<RequestEnd> {
    let id = reader.varint()?;
    let rank = small(reader)?;
    if reader.0.is_empty() {
        return Some(RequestEnd { id, rank, told: None });
    }
    let prompt = reader.varint()?;
    let cached = reader.varint()?;
    let output = reader.varint()?;
    Some(RequestEnd { id, rank, told: Some(RequestUsage { prompt, cached, output }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_and_nothing_else_is() {
        let rank = RankEntry { pool: 1, kv_tokens: 9_000, name: "a:1 0".to_owned() };
        let keys = vec![7, u64::MAX];
        let notes = [
            RequestNote::Ranks(vec![rank.clone(), rank]),
            RequestNote::Sent(RequestStart {
                id: u64::MAX,
                pool: 1,
                rank: 3,
                arrived_ns: 5,
                prompt_bytes: 600,
                keys,
            }),
            RequestNote::Ended(RequestEnd {
                id: 4,
                rank: 3,
                told: Some(RequestUsage { prompt: 150, cached: 128, output: 9 }),
            }),
            RequestNote::Ended(RequestEnd { id: 4, rank: 3, told: None }),
            RequestNote::Lost(2),
        ];
        for note in notes {
            let mut bytes = Vec::new();
            note.encode(&mut bytes);
            assert_eq!(RequestNote::decode(&bytes).as_ref(), Some(&note));
            bytes.push(0);
            assert_ne!(RequestNote::decode(&bytes), Some(note), "bytes behind it");
        }
        assert_eq!(RequestNote::decode(&[]), None);
        assert_eq!(RequestNote::decode(&[9, 0]), None);
        assert_eq!(RequestNote::decode(&[RANKS, 0xff, 0xff, 0x7f]), None, "more than a fleet has");
    }
}
