//! Writes snapshots: periodically, and at the end. The loop's task copies rank after rank, each at
//! a moment between two of its messages, and waits until the writing thread has taken the copy. So
//! each rank is whole, and copies of at most three ranks exist at once. After all ranks, the thread
//! reads the links between blocks from the index. The copies bring the newest links.

use super::super::super::file_faults::names_folder;
use super::setup::{SnapshotSetup, give_way};
use forebay_admin::{SavedSnapshot, SnapshotFigures};
use forebay_base::{Clock, NanosSinceStart, ShardIndex};
use forebay_index::{IndexReader, KeySeed};
use forebay_kv_events::{BlocksCopy, RankState, SharedState};
use forebay_snapshot::{Header, Link, RankHead, RankName, SnapshotWriter};
use forebay_text::Vocabulary;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tracing::{debug, info, warn};

/// A rank that can be copied.
pub(in super::super) struct CopySource {
    pub(in super::super) name: RankName,
    pub(in super::super) vocabulary: Arc<Vocabulary>,
    pub(in super::super) state: SharedState,
}

/// Copy of a rank at a moment.
struct RankCopy {
    name: RankName,
    vocabulary: Arc<Vocabulary>,
    state: RankState<BlocksCopy>,
    copy_ns: u64,
}

/// Parts for the writing thread.
enum SnapshotPart {
    Rank(Box<RankCopy>),
    /// End of the snapshot. Without this part the snapshot is incomplete.
    End,
}

/// Result of a snapshot.
pub(super) type SnapshotEnd = oneshot::Receiver<io::Result<SavedSnapshot>>;

/// Time of the next snapshot, and the result of the last.
pub(super) struct SnapshotSaver {
    target: SnapshotTarget,
    every: Duration,
    due_at: NanosSinceStart,
    under_way: Option<SnapshotEnd>,
    last: Option<SavedSnapshot>,
    /// Counts of failed and of whole snapshots.
    counts: [u64; 2],
    /// `None`: the last snapshot was written.
    fault: Option<SnapshotFault>,
}

/// Why snapshots fail, and since when.
struct SnapshotFault {
    reason: String,
    since: NanosSinceStart,
}

/// Place and content of snapshots.
#[derive(Clone)]
pub(super) struct SnapshotTarget {
    path: PathBuf,
    clock: Clock,
    seed: KeySeed,
    slice_count: u16,
    index: IndexReader,
}

impl SnapshotSaver {
    pub(super) fn new(setup: &SnapshotSetup<'_>, path: &Path) -> Self {
        let every = setup.config.snapshot_every;
        Self {
            target: SnapshotTarget::new(setup, path),
            every,
            due_at: setup.clock.now().plus(every),
            under_way: None,
            last: None,
            counts: [0; 2],
            fault: None,
        }
    }

    /// Counts of written and failed snapshots, and the last snapshot.
    pub(super) fn figures(&self) -> SnapshotFigures {
        let [failed_count, written_count] = self.counts;
        SnapshotFigures { written_count, failed_count, last: self.last }
    }

    /// The fault of the last snapshot, for callers without a token.
    pub(super) fn concern(&self) -> Option<String> {
        let SnapshotFault { reason, since } = self.fault.as_ref()?;
        let seconds = self.target.clock.now().since(*since) / 1_000_000_000;
        let file = self.target.path.file_name().unwrap_or_default().display();
        let reason = if names_folder(reason) { "the log has the reason" } else { reason };
        Some(format!("`index.snapshot` {file} cannot be written for {seconds} s: {reason}"))
    }

    /// Takes the result of an ended snapshot, and begins a due snapshot.
    pub(super) fn tick(&mut self, may_begin: bool, copyable: impl FnOnce() -> Vec<CopySource>) {
        if let Some(under_way) = &mut self.under_way {
            match under_way.try_recv() {
                Ok(ended) => self.ended(ended),
                Err(oneshot::error::TryRecvError::Empty) => return,
                Err(oneshot::error::TryRecvError::Closed) => self.ended(Err(gone())),
            }
        }
        if may_begin && !self.every.is_zero() && self.target.clock.now() >= self.due_at {
            self.begin(copyable());
        }
    }

    /// Writes once more and waits for it.
    pub(super) async fn finish(&mut self, copyable: impl FnOnce() -> Vec<CopySource>) {
        if let Some(under_way) = self.under_way.take() {
            let ended = under_way.await.unwrap_or_else(|_| Err(gone()));
            self.ended(ended);
        }
        self.begin(copyable());
        if let Some(under_way) = self.under_way.take() {
            let ended = under_way.await.unwrap_or_else(|_| Err(gone()));
            self.ended(ended);
        }
    }

    fn begin(&mut self, ranks: Vec<CopySource>) {
        self.due_at = self.target.clock.now().plus(self.every);
        match self.target.write(ranks) {
            Ok(under_way) => self.under_way = Some(under_way),
            Err(error) => self.ended(Err(error)),
        }
    }

    fn ended(&mut self, ended: io::Result<SavedSnapshot>) {
        self.under_way = None;
        if let Some(count) = self.counts.get_mut(usize::from(ended.is_ok())) {
            *count += 1;
        }
        let path = self.target.path.display();
        let before = self.fault.take();
        if before.is_some() && ended.is_ok() {
            info!("snapshot {path} is written again");
        }
        match ended {
            Ok(saved) => {
                debug!(ranks = saved.ranks, blocks = saved.blocks, bytes = saved.bytes, %path, "snapshot written");
                self.last = Some(saved);
            }
            Err(error) => {
                warn!("snapshot {path} cannot be written: {error}; the one before stays");
                let since = before.map_or_else(|| self.target.clock.now(), |before| before.since);
                self.fault = Some(SnapshotFault { reason: error.to_string(), since });
            }
        }
    }
}

impl SnapshotTarget {
    pub(super) fn new(setup: &SnapshotSetup<'_>, path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            clock: setup.clock,
            seed: setup.seed,
            slice_count: u16::try_from(setup.shard_count).unwrap_or(u16::MAX),
            index: setup.index.clone(),
        }
    }

    /// The same target with another file.
    pub(super) fn at(&self, path: PathBuf) -> Self {
        Self { path, ..self.clone() }
    }

    /// Begins to write a snapshot.
    pub(super) fn write(&self, ranks: Vec<CopySource>) -> io::Result<SnapshotEnd> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            written_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
            seed: self.seed,
            slice_count: self.slice_count,
        };
        // A rank is being written, another waits, a third is being copied.
        let (parts, to_write) = mpsc::channel(1);
        let (result, end) = oneshot::channel();
        let Self { path, clock, index, .. } = self.clone();
        let thread = std::thread::Builder::new().name("snapshot-write".into());
        thread.spawn(move || {
            give_way();
            let _ = result.send(write(&path, &header, to_write, &index, clock));
        })?;
        tokio::task::spawn_local(copy_out(ranks, parts, self.clock));
        Ok(end)
    }
}

fn gone() -> io::Error {
    io::Error::other("its thread ended (this is a bug)")
}

/// Sends copies, rank after rank.
async fn copy_out(ranks: Vec<CopySource>, parts: mpsc::Sender<SnapshotPart>, clock: Clock) {
    for CopySource { name, vocabulary, state } in ranks {
        let start = clock.now();
        let copied = state.borrow().state();
        let copy_ns = clock.now().since(start);
        let Some(state) = copied else { continue };
        // An error: the thread could not write, and has logged its fault.
        let copied = RankCopy { name, vocabulary, state, copy_ns };
        if parts.send(SnapshotPart::Rank(Box::new(copied))).await.is_err() {
            return;
        }
        yield_now().await;
    }
    let _ = parts.send(SnapshotPart::End).await;
}

/// Body of the writing thread.
fn write(
    path: &Path,
    header: &Header,
    mut parts: mpsc::Receiver<SnapshotPart>,
    index: &IndexReader,
    clock: Clock,
) -> io::Result<SavedSnapshot> {
    let start = clock.now();
    let mut saved = SavedSnapshot::default();
    let mut writer = SnapshotWriter::create(path, header)?;
    let mut fingerprints = Fingerprints::default();
    let mut recent = Vec::new();
    loop {
        match parts.blocking_recv() {
            Some(SnapshotPart::Rank(rank)) => {
                saved.copy_ns_max = saved.copy_ns_max.max(rank.copy_ns);
                recent.extend_from_slice(&rank.state.blocks.recent);
                let blocks = write_rank(&mut writer, *rank, &mut fingerprints)?;
                saved.ranks += u64::from(blocks.is_some());
                saved.blocks += blocks.unwrap_or(0);
            }
            Some(SnapshotPart::End) => break,
            None => return Err(io::Error::other("it was given up half-way")),
        }
    }
    for slice in (0..header.slice_count).map(ShardIndex) {
        write_links(&mut writer, index, slice)?;
    }
    recent.iter().try_for_each(|link| writer.link(link))?;
    saved.bytes = writer.finish()?;
    saved.ended_at = clock.now();
    saved.took_ns = saved.ended_at.since(start);
    Ok(saved)
}

/// Writes a rank and returns its block count; `None` if the name is too long.
fn write_rank(
    writer: &mut SnapshotWriter,
    rank: RankCopy,
    fingerprints: &mut Fingerprints,
) -> io::Result<Option<u64>> {
    let RankCopy { name, vocabulary, state, .. } = rank;
    let blocks = state.blocks;
    let head = RankHead {
        name,
        vocabulary: fingerprints.of(&vocabulary),
        block_size_tokens: state.block_size_tokens,
        sequence: state.sequence,
        payload_hash: state.payload_hash,
        trees: blocks.trees,
        whole_groups: blocks.groups.whole,
        forgetful_groups: blocks.groups.forgetful,
        entry_count: blocks.kept.len() as u64,
    };
    if !writer.rank(&head) {
        return Ok(None);
    }
    for entry in blocks.kept.entries() {
        writer.entry(&entry)?;
    }
    Ok(Some(head.entry_count))
}

/// Collects the links before the write: the index must be read briefly, and a write may block.
fn write_links(
    writer: &mut SnapshotWriter,
    index: &IndexReader,
    slice: ShardIndex,
) -> io::Result<()> {
    let mut links = Vec::new();
    index.visit_slice(slice, &mut |parent, key, block_bytes| {
        links.push(Link { parent, key, block_bytes, slice });
    });
    links.iter().try_for_each(|link| writer.link(link))
}

/// Cache of hashes: ranks share few vocabularies, and a hash takes milliseconds.
#[derive(Default)]
struct Fingerprints(Vec<(Arc<Vocabulary>, u64)>);

impl Fingerprints {
    fn of(&mut self, vocabulary: &Arc<Vocabulary>) -> u64 {
        let known = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, vocabulary));
        if let Some((_, fingerprint)) = known {
            return *fingerprint;
        }
        let fingerprint = vocabulary.fingerprint();
        self.0.push((Arc::clone(vocabulary), fingerprint));
        fingerprint
    }
}
