//! Stream of request notes from the shards to `forebay record`. A single client reads.

use forebay_admin::{NotePieces, NotesReader};
use forebay_base::RankIndex;
use forebay_base::limits::REQUEST_NOTES_MAX;
use forebay_fleet::worker::{FleetSnapshot, NoteSink, Role, ShardNote, WorkerState};
use forebay_record::{RankEntry, RequestEnd, RequestNote, RequestStart, RequestUsage};
use std::sync::mpsc::Receiver;

/// A reader, and the channel from the shards.
#[derive(Debug)]
pub(super) struct NoteReading {
    sink: NoteSink,
    notes: Receiver<ShardNote>,
    pieces: NotePieces,
    /// Generation of the last fleet sent to the reader.
    sent_generation: u64,
    /// Notes that shards had lost when they were last counted.
    shards_lost: u64,
    /// Lost notes that are not reported to the reader yet.
    lost: u64,
}

impl NoteReading {
    /// Makes the channel from the shards, and the body that a client reads.
    pub(super) fn new(shards_lost: u64) -> (Self, NotesReader) {
        let (sink, notes) = NoteSink::new();
        let (pieces, reader) = NotesReader::new();
        let sent_generation = 0;
        let lost = 0;
        (Self { sink, notes, pieces, sent_generation, shards_lost, lost }, reader)
    }

    /// Has the client gone?
    pub(super) fn is_closed(&self) -> bool {
        self.pieces.is_closed()
    }

    pub(super) fn sink(&self) -> NoteSink {
        self.sink.clone()
    }

    /// Sends received notes to the reader. `shards_lost`: notes that shards have lost by now.
    pub(super) fn pass_on(&mut self, fleet: &FleetSnapshot, shards_lost: u64) {
        let mut piece = Vec::new();
        self.lost += shards_lost.saturating_sub(self.shards_lost);
        self.shards_lost = shards_lost;
        let has_news = self.sent_generation != fleet.generation;
        if has_news {
            put(&RequestNote::Ranks(ranks(fleet)), &mut piece);
        }
        if self.lost > 0 {
            put(&RequestNote::Lost(self.lost), &mut piece);
        }
        let mut count = 0;
        for note in self.notes.try_iter().take(REQUEST_NOTES_MAX) {
            count += 1;
            put(&recorded(note, fleet), &mut piece);
        }
        if piece.is_empty() {
            return;
        }
        if self.pieces.put(piece) {
            self.sent_generation = fleet.generation;
            self.lost = 0;
        } else {
            self.lost += count;
        }
    }
}

/// Appends a note with its length prefix.
fn put(note: &RequestNote, piece: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    note.encode(&mut bytes);
    piece.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    piece.extend(bytes);
}

/// Ranks as a recording lists them. Ranks without prefill get the pool `u32::MAX`.
fn ranks(fleet: &FleetSnapshot) -> Vec<RankEntry> {
    let entry = |index| {
        let (rank, worker) = fleet.rank(index)?;
        let computes = rank.role != Role::Decode && worker.state != WorkerState::Gone;
        Some(RankEntry {
            pool: if computes { rank.pool.0.into() } else { u32::MAX },
            kv_tokens: fleet.kv_capacity_tokens(index),
            name: format!("{} {}", worker.name, rank.dp_rank.0),
        })
    };
    let all = (0..fleet.ranks.len()).filter_map(RankIndex::try_from_index);
    all.map(|index| entry(index).unwrap_or_default()).collect()
}

fn recorded(note: ShardNote, fleet: &FleetSnapshot) -> RequestNote {
    match note {
        ShardNote::Sent(sent) => RequestNote::Sent(RequestStart {
            id: sent.id,
            pool: fleet.ranks.get(sent.rank.index()).map_or(u32::MAX, |rank| rank.pool.0.into()),
            rank: sent.rank.0.into(),
            arrived_ns: sent.arrived_at.0,
            prompt_bytes: sent.prompt_bytes,
            keys: sent.keys,
        }),
        ShardNote::Ended { id, rank, told } => {
            let told = told.map(|told| RequestUsage {
                prompt: told.prompt,
                cached: told.cached,
                output: told.output,
            });
            RequestNote::Ended(RequestEnd { id, rank: rank.0.into(), told })
        }
    }
}
