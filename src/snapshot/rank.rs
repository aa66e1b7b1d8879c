//! What a snapshot says of one rank before its blocks. Sans-IO.

use crate::framing::{Reader, put_varint};

/// Longest name that is written or believed.
const NAME_BYTES_MAX: usize = 4_096;

/// Whose stream it was. A rank is found again only if all of it is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankName {
    /// The worker, as `host:port`.
    pub worker: String,
    /// The rank's number inside the worker.
    pub dp_rank: u32,
    /// Where its events were published.
    pub endpoint: String,
    /// Prefix of the topics that were asked for.
    pub topic: String,
    /// The name under which its blocks are rooted.
    pub model: String,
}

/// Everything but the blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankHead {
    /// Whose stream it was.
    pub name: RankName,
    /// Of the vocabulary that turned its tokens into bytes.
    pub vocabulary: u64,
    /// Tokens per block, 0 if no event has told.
    pub block_size_tokens: u32,
    /// Sequence number of the last batch that was taken.
    pub sequence: u64,
    /// XXH3-64 of that batch's payload.
    pub payload_hash: u64,
    /// Blocks that follow.
    pub block_count: u64,
}

impl RankHead {
    /// Appends the head; false, and nothing is appended, if a name is too long.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> bool {
        let name = &self.name;
        let texts = [&name.worker, &name.endpoint, &name.topic, &name.model];
        if texts.iter().any(|text| text.len() > NAME_BYTES_MAX) {
            return false;
        }
        for text in texts {
            put_varint(text.len() as u64, out);
            out.extend_from_slice(text.as_bytes());
        }
        put_varint(u64::from(name.dp_rank), out);
        put_varint(u64::from(self.block_size_tokens), out);
        put_varint(self.sequence, out);
        put_varint(self.block_count, out);
        out.extend_from_slice(&self.vocabulary.to_le_bytes());
        out.extend_from_slice(&self.payload_hash.to_le_bytes());
        true
    }

    /// Reads a head that is all of `bytes`; `None` if they do not follow the format.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let mut text = || {
            let length = usize::try_from(reader.varint()?).ok()?;
            let bytes = reader.bytes(length).filter(|_| length <= NAME_BYTES_MAX)?;
            std::str::from_utf8(bytes).ok().map(str::to_owned)
        };
        let (worker, endpoint, topic, model) = (text()?, text()?, text()?, text()?);
        let dp_rank = u32::try_from(reader.varint()?).ok()?;
        let block_size_tokens = u32::try_from(reader.varint()?).ok()?;
        let (sequence, block_count) = (reader.varint()?, reader.varint()?);
        let (vocabulary, payload_hash) = (reader.u64()?, reader.u64()?);
        let name = RankName { worker, dp_rank, endpoint, topic, model };
        let head =
            Self { name, vocabulary, block_size_tokens, sequence, payload_hash, block_count };
        reader.0.is_empty().then_some(head)
    }
}
