//! Snapshots of the index across restarts: reads the last snapshot when the router starts
//! ([`load`]) and writes new ones while it runs and when it ends ([`save`]).
//!
//! Files are read and written on threads of their own. The control plane's loop only copies a rank
//! at a time and passes on restored ranks. Limits: copies of three ranks in memory at once, or the
//! links of a slice, [`RESTORE_TIME_MAX`] for the confirmation of restored blocks,
//! [`LAST_SNAPSHOT_TIME_MAX`] for the last write. Must never keep the router from starting, serving
//! or ending.

mod load;
mod save;
mod setup;

pub use load::refuse_snapshot;
pub(super) use load::{Claim, SnapshotLoader};
pub(super) use save::CopySource;
pub(super) use setup::SnapshotSetup;

use forebay_admin::SnapshotFigures;
use forebay_base::limits::{LAST_SNAPSHOT_TIME_MAX, RESTORE_TIME_MAX};
use forebay_kv_events::FeedCounters;
use forebay_snapshot::SnapshotFile;
use save::{SnapshotEnd, SnapshotSaver, SnapshotTarget};
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

/// The file of a copy in its folder.
const COPY: &str = "index.copy";

/// Reading and writing of snapshots.
pub(super) struct Snapshots {
    loading: Option<Rc<SnapshotLoader>>,
    saving: Option<SnapshotSaver>,
    /// Copies for other processes; `None` where there will be none.
    copying: Option<SnapshotTarget>,
}

/// A copy that is being written, and the folder that goes with it.
pub(super) struct IndexCopy {
    folder: TempDir,
    end: SnapshotEnd,
}

/// Sends a copy to the next process, or nothing after a fault.
pub(super) async fn answer(copy: io::Result<Option<IndexCopy>>, to: SyncSender<Option<File>>) {
    let file = match copy {
        Ok(Some(copy)) => copy.file().await.map(Some),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    let file = file.unwrap_or_else(|error| {
        warn!("the index is not handed over: it cannot be written to a temporary file: {error}");
        None
    });
    let _ = to.send(file);
}

impl IndexCopy {
    /// The copy, once it is whole.
    ///
    /// # Errors
    /// The fault of its folder.
    pub(super) async fn file(self) -> io::Result<File> {
        let Self { folder, end } = self;
        end.await.map_err(io::Error::other)??;
        File::open(folder.path().join(COPY))
    }
}

impl Snapshots {
    /// Begins to read the snapshot, if there is a file. The first write is a period away.
    pub(super) fn start(setup: &SnapshotSetup<'_>, file: Option<SnapshotFile>) -> Self {
        let path = setup.config.snapshot.as_deref();
        let name = path.unwrap_or(Path::new(COPY));
        let verified_by = Instant::now() + RESTORE_TIME_MAX;
        let load = |file| SnapshotLoader::start(file, name, setup.shard_count, verified_by);
        Self {
            loading: file.and_then(load),
            saving: path.map(|path| SnapshotSaver::new(setup, path)),
            copying: setup.can_hand_over.then(|| SnapshotTarget::new(setup, Path::new(COPY))),
        }
    }

    /// Begins to write a copy; `None` if there is nothing to copy yet.
    ///
    /// # Errors
    /// When there is no place for it.
    pub(super) fn copy(&self, ranks: Vec<CopySource>) -> io::Result<Option<IndexCopy>> {
        let Some(target) = self.copying.as_ref().filter(|_| self.is_settled()) else {
            return Ok(None);
        };
        let folder = tempfile::tempdir()?;
        let end = target.at(folder.path().join(COPY)).write(ranks)?;
        Ok(Some(IndexCopy { folder, end }))
    }

    /// Source of restored blocks, for the feeds.
    pub(super) fn loading(&self) -> Option<&Rc<SnapshotLoader>> {
        self.loading.as_ref()
    }

    /// Figures of written snapshots, for the metrics; `None` where none are written.
    pub(super) fn figures(&self) -> Option<SnapshotFigures> {
        self.saving.as_ref().map(SnapshotSaver::figures)
    }

    /// Why the last snapshot could not be written, if it could not.
    pub(super) fn concern(&self) -> Option<String> {
        self.saving.as_ref()?.concern()
    }

    /// True where snapshots are written, or copies.
    pub(super) fn are_written(&self) -> bool {
        self.saving.is_some() || self.copying.is_some()
    }

    /// Reason why the router is not ready, while blocks are restored.
    pub(super) fn restoring(&self) -> Option<String> {
        self.loading.as_ref()?.restoring()
    }

    /// Called ten times a second. `copyable` lists the ranks that a snapshot can contain.
    pub(super) fn tick(
        &mut self,
        counters: &FeedCounters,
        copyable: impl FnOnce() -> Vec<CopySource>,
    ) {
        if let Some(loading) = &self.loading {
            loading.close_in_time(counters);
        }
        let settled = self.is_settled();
        if let Some(saving) = &mut self.saving {
            saving.tick(settled, copyable);
        }
    }

    /// Writes once more, at the end.
    pub(super) async fn finish(&mut self, copyable: impl FnOnce() -> Vec<CopySource>) {
        let settled = self.is_settled();
        let Some(saving) = &mut self.saving else { return };
        if !settled {
            // A new snapshot would lack workers without an answer. Replay makes up for the age of
            // the old snapshot.
            debug!("the snapshot stays as it was read: not all of its ranks were heard of");
            return;
        }
        if timeout(LAST_SNAPSHOT_TIME_MAX, saving.finish(copyable)).await.is_err() {
            warn!("the last snapshot is not written in time: the one before stays");
        }
    }

    /// True once no part of the file waits for its rank: only then may the file be replaced.
    fn is_settled(&self) -> bool {
        self.loading.as_ref().is_none_or(|loading| loading.is_settled())
    }
}
