//! The head of a rank in a snapshot, before its entries. Sans-IO.

use crate::framing::{NumberReader, put_varint};

/// Longest name that is written or accepted.
const NAME_BYTES_MAX: usize = 4_096;
/// Most attention groups that are written or accepted.
const GROUPS_MAX: usize = 64;

/// Identity of a rank's KV-event stream. A restart restores a rank only if all fields are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankName {
    /// The worker, as `host:port`.
    pub worker: String,
    /// Number of the rank inside the worker.
    pub dp_rank: u32,
    /// Publisher of the rank's events.
    pub endpoint: String,
    /// Prefix of the topics subscribed to.
    pub topic: String,
    /// Model name in the root of the rank's blocks.
    pub model: String,
}

/// All state of a rank but its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankHead {
    pub name: RankName,
    /// Fingerprint of the vocabulary that decoded the rank's tokens.
    pub vocabulary: u64,
    /// Tokens per block as reported in events, 0 without an event.
    pub block_size_tokens: u32,
    /// Sequence number of the last batch applied.
    pub sequence: u64,
    /// XXH3-64 of that batch's payload.
    pub payload_hash: u64,
    /// Trees of the rank in the index, a bit for each tier.
    pub trees: u8,
    /// Attention groups that keep whole prefixes, as far as known; `u32::MAX` for events without a
    /// group.
    pub whole_groups: Vec<u32>,
    /// Attention groups that keep a window or a state only.
    pub forgetful_groups: Vec<u32>,
    /// Number of entries that follow.
    pub entry_count: u64,
}

impl RankHead {
    /// Appends the head. False, without a change of `out`, if a name is too long or there are too
    /// many groups.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> bool {
        let name = &self.name;
        let texts = [&name.worker, &name.endpoint, &name.topic, &name.model];
        let groups = self.whole_groups.len().max(self.forgetful_groups.len());
        if texts.iter().any(|text| text.len() > NAME_BYTES_MAX) || groups > GROUPS_MAX {
            return false;
        }
        for text in texts {
            put_varint(text.len() as u64, out);
            out.extend_from_slice(text.as_bytes());
        }
        put_varint(u64::from(name.dp_rank), out);
        put_varint(u64::from(self.block_size_tokens), out);
        put_varint(self.sequence, out);
        put_varint(self.entry_count, out);
        out.push(self.trees);
        for groups in [&self.whole_groups, &self.forgetful_groups] {
            put_varint(groups.len() as u64, out);
            groups.iter().for_each(|group| put_varint(u64::from(group.wrapping_add(1)), out));
        }
        out.extend_from_slice(&self.vocabulary.to_le_bytes());
        out.extend_from_slice(&self.payload_hash.to_le_bytes());
        true
    }

    /// Reads a head that is all of `bytes`; `None` unless the bytes follow the format.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = NumberReader(bytes);
        let mut text = || {
            let length = usize::try_from(reader.varint()?).ok()?;
            let bytes = reader.bytes(length).filter(|_| length <= NAME_BYTES_MAX)?;
            std::str::from_utf8(bytes).ok().map(str::to_owned)
        };
        let worker = text()?;
        let endpoint = text()?;
        let topic = text()?;
        let model = text()?;
        let dp_rank = u32::try_from(reader.varint()?).ok()?;
        let block_size_tokens = u32::try_from(reader.varint()?).ok()?;
        let sequence = reader.varint()?;
        let entry_count = reader.varint()?;
        let [trees] = reader.array()?;
        let whole_groups = groups(&mut reader)?;
        let forgetful_groups = groups(&mut reader)?;
        let vocabulary = reader.u64()?;
        let payload_hash = reader.u64()?;
        let name = RankName { worker, dp_rank, endpoint, topic, model };
        let head = Self {
            name,
            vocabulary,
            block_size_tokens,
            sequence,
            payload_hash,
            trees,
            whole_groups,
            forgetful_groups,
            entry_count,
        };
        reader.0.is_empty().then_some(head)
    }
}

fn groups(reader: &mut NumberReader<'_>) -> Option<Vec<u32>> {
    let count = usize::try_from(reader.varint()?).ok().filter(|count| *count <= GROUPS_MAX)?;
    let group = |_| Some(u32::try_from(reader.varint()?).ok()?.wrapping_sub(1));
    (0..count).map(group).collect()
}
