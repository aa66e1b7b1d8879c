//! The last snapshot, read on a thread of its own: first the whole file, to check it, then rank by
//! rank as the fleet's feeds start and claim their part. Unclaimed parts are dropped after a time.

use super::setup::give_way;
use forebay_index::slice_of;
use forebay_kv_events::{
    DropReason, FeedCounters, FeedRestore, Groups, LowerTiers, OmittedEntries, RankState,
    RestoreBuilder, RestoredBlocks, SliceOps,
};
use forebay_snapshot::{Contents, RankName, SnapshotFile};
use forebay_text::Vocabulary;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

/// Most claims under way at once.
const CLAIMS_MAX: usize = 64;

/// The control plane's side.
pub(in super::super) struct SnapshotLoader {
    /// `None` once the time for claims is over.
    claims: RefCell<Option<mpsc::Sender<ClaimRequest>>>,
    progress: watch::Receiver<LoadProgress>,
    /// Feeds that are restoring.
    under_way: Cell<usize>,
    verified_by: Instant,
}

/// Claim of a feed.
pub(in super::super) struct Claim {
    pub(in super::super) name: RankName,
    pub(in super::super) vocabulary: Option<Arc<Vocabulary>>,
    /// Block size from the engine's description; 0 without it.
    pub(in super::super) block_size_tokens: u32,
    /// Most blocks that the rank may track.
    pub(in super::super) entries_max: usize,
    /// Tiers that count beside the device.
    pub(in super::super) lower_tiers: LowerTiers,
}

struct ClaimRequest {
    claim: Claim,
    answer: oneshot::Sender<ClaimAnswer>,
}

/// Blocks of a rank from the reading thread.
enum ClaimAnswer {
    Nothing,
    Refused(DropReason, u64),
    Found(Box<RestoredRank>),
}

struct RestoredRank {
    state: RankState<RestoredBlocks>,
    ops: SliceOps,
    left: OmittedEntries,
}

#[derive(Clone, Copy, Default)]
struct LoadProgress {
    is_checked: bool,
    /// Ranks without a claim.
    ranks: usize,
    /// Blocks of these ranks.
    blocks: u64,
}

/// Readiness waits until this is dropped, after the shards have the blocks.
pub(in super::super) struct RestoreGuard(Rc<SnapshotLoader>);

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get().saturating_sub(1));
    }
}

impl SnapshotLoader {
    /// Starts the reading thread.
    pub(super) fn start(
        file: SnapshotFile,
        path: &Path,
        shard_count: usize,
        verified_by: Instant,
    ) -> Option<Rc<Self>> {
        let (claims, asked) = mpsc::channel(CLAIMS_MAX);
        let (report, progress) = watch::channel(LoadProgress::default());
        let reading = SnapshotReading {
            file,
            path: path.to_owned(),
            shard_count,
            contents: Contents::default(),
            report,
        };
        let thread = std::thread::Builder::new().name("snapshot-read".into());
        if let Err(error) = thread.spawn(move || reading.run(asked)) {
            warn!(%error, "no thread to read the snapshot: starting without it");
            return None;
        }
        let claims = RefCell::new(Some(claims));
        Some(Rc::new(Self { claims, progress, under_way: Cell::new(0), verified_by }))
    }

    /// Registers a feed that is about to claim.
    pub(in super::super) fn begin(self: &Rc<Self>) -> RestoreGuard {
        self.under_way.set(self.under_way.get() + 1);
        RestoreGuard(Rc::clone(self))
    }

    /// Takes the part of a rank out of the snapshot. Waits for a hanging disk only while the blocks
    /// could still be confirmed.
    pub(in super::super) async fn claim(
        &self,
        claim: Claim,
        counters: &FeedCounters,
    ) -> Option<FeedRestore> {
        let claims = self.claims.borrow().clone()?;
        let (answer, answered) = oneshot::channel();
        claims.send(ClaimRequest { claim, answer }).await.ok()?;
        match timeout_at(self.verified_by, answered).await.ok()?.ok()? {
            ClaimAnswer::Nothing => None,
            ClaimAnswer::Refused(reason, blocks) => {
                counters.dropped(reason, blocks);
                None
            }
            ClaimAnswer::Found(found) => {
                let RestoredRank { state, ops, left } = *found;
                count_left(counters, left);
                Some(FeedRestore { state, ops, verified_by: self.verified_by })
            }
        }
    }

    /// Drops unclaimed parts once their time is over.
    pub(super) fn close_in_time(&self, counters: &FeedCounters) {
        if Instant::now() < self.verified_by || self.claims.borrow_mut().take().is_none() {
            return;
        }
        let LoadProgress { ranks, blocks, .. } = *self.progress.borrow();
        counters.dropped(DropReason::Unclaimed, blocks);
        if ranks > 0 {
            info!(ranks, blocks, "no worker of the fleet has claimed these ranks of the snapshot");
        }
    }

    pub(super) fn restoring(&self) -> Option<String> {
        let open = self.claims.borrow().is_some();
        let reading = !self.progress.borrow().is_checked && self.progress.has_changed().is_ok();
        match self.under_way.get() {
            _ if !open => None,
            _ if reading => Some("the snapshot is being read".to_owned()),
            0 => None,
            ranks => Some(format!("{ranks} ranks are being restored from the snapshot")),
        }
    }

    /// True once no rank of the file waits for its feed any more.
    pub(super) fn is_settled(&self) -> bool {
        let LoadProgress { is_checked, ranks, .. } = *self.progress.borrow();
        let all_claimed = is_checked && ranks == 0 && self.under_way.get() == 0;
        all_claimed || self.claims.borrow().is_none()
    }
}

/// The reading thread's side.
struct SnapshotReading {
    file: SnapshotFile,
    path: PathBuf,
    shard_count: usize,
    contents: Contents,
    report: watch::Sender<LoadProgress>,
}

impl SnapshotReading {
    fn run(mut self, mut asked: mpsc::Receiver<ClaimRequest>) {
        give_way();
        match self.file.check() {
            Ok(mut contents) => {
                let slice_count = usize::from(self.file.header().slice_count);
                if slice_count != self.shard_count {
                    contents.paths.reassign_slices(slice_of, slice_count, self.shard_count);
                }
                let written = Duration::from_nanos(self.file.header().written_unix_ns);
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let age_s = since_1970.saturating_sub(written).as_secs();
                let ranks = contents.ranks.len();
                let blocks = contents.paths.len();
                info!(ranks, blocks, age_s, path = %self.path.display(), "snapshot read");
                self.contents = contents;
            }
            Err(error) => refuse_snapshot(&self.path, &error),
        }
        self.report();
        while let Some(ClaimRequest { claim, answer }) = asked.blocking_recv() {
            let found = self.answer(&claim);
            // The feed may have ended meanwhile.
            let _ = answer.send(found);
            self.report();
        }
    }

    fn report(&self) {
        let ranks = &self.contents.ranks;
        let blocks = ranks.values().map(|place| place.head.entry_count).sum();
        let ranks = ranks.len();
        self.report.send_replace(LoadProgress { is_checked: true, ranks, blocks });
    }

    fn answer(&mut self, claim: &Claim) -> ClaimAnswer {
        // Without a tokenizer nothing can be matched. A later feed may have a tokenizer.
        let Some(vocabulary) = &claim.vocabulary else { return ClaimAnswer::Nothing };
        let Some(place) = self.contents.ranks.remove(&claim.name) else {
            return ClaimAnswer::Nothing;
        };
        let head = &place.head;
        let refused = |reason| ClaimAnswer::Refused(reason, head.entry_count);
        if vocabulary.fingerprint() != head.vocabulary {
            self.log_refused(claim, "its tokenizer is another one now");
            return refused(DropReason::Tokenizer);
        }
        if claim.block_size_tokens > 0 && claim.block_size_tokens != head.block_size_tokens {
            self.log_refused(claim, "its block size is another one now");
            return refused(DropReason::BlockSize);
        }
        let mut restoring = RestoreBuilder::new(
            &self.contents.paths,
            self.shard_count,
            claim.lower_tiers,
            head.trees,
            claim.entries_max,
        );
        let whole = head.whole_groups.clone();
        let forgetful = head.forgetful_groups.clone();
        restoring.groups(Groups { whole, forgetful });
        let mut entries = Vec::new();
        if let Err(error) = self.file.entries(&place, |entry| entries.push(entry)) {
            refuse_snapshot(&self.path, &error);
            return refused(DropReason::Odd);
        }
        restoring.add_all(entries);
        let (blocks, ops, left) = restoring.finish();
        let state = RankState {
            blocks,
            sequence: head.sequence,
            payload_hash: head.payload_hash,
            block_size_tokens: head.block_size_tokens,
        };
        ClaimAnswer::Found(Box::new(RestoredRank { state, ops, left }))
    }

    fn log_refused(&self, claim: &Claim, reason: &str) {
        let RankName { worker, dp_rank, .. } = &claim.name;
        info!(%worker, dp_rank, reason, "a rank of the snapshot is not restored");
    }
}

/// Counts the result of a claim.
fn count_left(counters: &FeedCounters, left: OmittedEntries) {
    for (reason, blocks) in [
        (DropReason::Limit, left.over_limit),
        (DropReason::Orphan, left.orphans),
        (DropReason::Tier, left.tiers),
        (DropReason::Odd, left.odd),
    ] {
        counters.dropped(reason, blocks as u64);
    }
}

/// Logs a snapshot that cannot be used.
pub fn refuse_snapshot(path: &Path, reason: &dyn std::fmt::Display) {
    warn!("snapshot {} cannot be used: {reason}; starting without it", path.display());
}
