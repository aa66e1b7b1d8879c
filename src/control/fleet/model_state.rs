//! State of the router's knowledge about a worker's models. Sans-IO: answers and health in, the
//! next state out. The fleet holds the names; the state decides whether they count.
//!
//! Each row is a state, each column an event. *None* is an answer without a name: an empty list, a
//! list of `*` alone, 404, 405 or 501. *Fault* is any other answer or silence. An empty cell leaves
//! the state as it is.
//!
//! | state | names | none | fault | down | removed | its names |
//! |---|---|---|---|---|---|---|
//! | unasked | listed | listless | | | gone | unknown |
//! | remembered | listed | kept | | absent | gone | expected |
//! | absent | listed | awaited | | | gone | expected |
//! | listed | listed | kept | | lost | gone | served |
//! | kept | listed | | | lost | gone | served |
//! | lost | listed | awaited | | | gone | served |
//! | awaited | listed | | | | gone | expected |
//! | listless | listed | | | | gone | unknown |
//! | configured | listed | listless | | | gone | served |
//! | gone | | | | | | unknown |
//!
//! *Served*: requests for the names go to the ranks of the worker, if the worker is up. *Expected*:
//! requests for the names get 503, unless another worker serves them. A worker that was down may
//! have come back as another process: its earlier list is no longer valid, so it serves nothing
//! until it lists again. A worker that stays up keeps its names without a list: only its list is
//! missing. A listless worker serves nothing, or any model as the [`SoleWorker`]. The configuration
//! may turn each state but `gone` into `configured`. It turns `configured` into `unasked` for a
//! worker without a description; otherwise the next answer ends `configured`.

use forebay_base::WorkerIndex;
use forebay_discovery::Listing;

/// State of a worker's models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelState {
    /// No answer so far.
    Unasked,
    /// In the process before, the worker was up and its names were known. No answer so far.
    Remembered,
    /// As `Remembered`, for a worker that was not up.
    Absent,
    /// The worker lists names.
    Listed,
    /// The worker is up, and its list has gone missing.
    Kept,
    /// The worker listed names before it went down.
    Lost,
    /// The worker came back and lists nothing.
    Awaited,
    /// The worker never listed a name.
    Listless,
    /// The configuration has the names, or declares that the worker takes any name.
    Configured,
    /// The worker was removed.
    Gone,
}

/// An event of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelEvent {
    /// The worker was described.
    Answer(Listing),
    /// The worker failed its health checks.
    Down,
    /// The worker was removed from the fleet.
    Removed,
}

impl ModelState {
    /// The state after an event. A faulty answer is no event, since it proves nothing.
    pub(super) const fn after(self, event: ModelEvent) -> Self {
        match (self, event) {
            (Self::Gone, _) | (_, ModelEvent::Removed) => Self::Gone,
            (_, ModelEvent::Answer(Listing::Configured | Listing::Any)) => Self::Configured,
            (_, ModelEvent::Answer(Listing::Listed)) => Self::Listed,
            (state, ModelEvent::Answer(Listing::Nothing { .. })) => match state {
                Self::Remembered | Self::Listed | Self::Kept => Self::Kept,
                Self::Absent | Self::Lost | Self::Awaited => Self::Awaited,
                Self::Unasked | Self::Listless | Self::Configured | Self::Gone => Self::Listless,
            },
            (Self::Listed | Self::Kept, ModelEvent::Down) => Self::Lost,
            (Self::Remembered, ModelEvent::Down) => Self::Absent,
            (state, ModelEvent::Down) => state,
        }
    }

    /// Do requests for its names go to its ranks?
    pub(super) const fn serves(self) -> bool {
        matches!(self, Self::Listed | Self::Kept | Self::Lost | Self::Configured)
    }

    /// Are its names known?
    pub(super) const fn has_names(self) -> bool {
        self.serves() || matches!(self, Self::Remembered | Self::Absent | Self::Awaited)
    }

    /// Does the worker go by an earlier list?
    pub(super) const fn goes_by_earlier_list(self) -> bool {
        matches!(self, Self::Kept | Self::Awaited)
    }

    /// Behavior of a worker without a list, for people.
    pub(super) const fn without_list(self) -> &'static str {
        match self {
            Self::Kept => "it goes on with the models that it listed before",
            Self::Awaited => "it serves nothing until it lists its models again",
            _ => "it serves nothing, or any model while it is the only worker",
        }
    }
}

/// A present worker, with the facts that [`SoleWorker`] needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    pub(super) worker: WorkerIndex,
    pub(super) state: ModelState,
    /// The worker has passed a health check at some time.
    pub(super) was_up: bool,
    /// The worker is from `[[worker]]`, not from a source or the admin API.
    pub(super) is_in_file: bool,
}

/// The listless worker that takes any model because it is the only worker. It does not while a
/// worker with names is present. These workers change nothing:
///
/// - a listless worker that never passed a health check: its address may have no engine;
/// - a listless worker that comes while the sole worker is present: neither harms the other;
/// - a worker without an answer that comes while the sole worker is present;
/// - a worker without an answer that a source or the admin API has added, beside a worker of the
///   file.
#[derive(Debug, Default)]
pub(super) struct SoleWorker(Option<WorkerIndex>);

impl SoleWorker {
    /// Takes the sole worker from the process before.
    pub(super) const fn remember(&mut self, worker: WorkerIndex) {
        self.0 = Some(worker);
    }

    /// Is the worker with this index the sole worker?
    pub(super) fn is(&self, index: usize) -> bool {
        self.0.is_some_and(|worker| worker.index() == index)
    }

    /// The sole worker among all present workers.
    pub(super) fn among(&mut self, all: &[Contender]) -> Option<WorkerIndex> {
        // Before its answer the worker keeps its state from the process before.
        let is_same = |one: &Contender| match one.state {
            ModelState::Listless => one.was_up,
            state => state == ModelState::Unasked,
        };
        let mut before = all.iter().filter(|one| self.0 == Some(one.worker));
        self.0 = before.find(|one| is_same(one)).map(|one| one.worker);
        if all.iter().any(|one| one.state.has_names()) {
            return None;
        }
        if self.0.is_none() {
            self.0 = only(all).filter(|only| only.was_up).map(|only| only.worker);
        }
        self.0.or_else(|| only(all).map(|only| only.worker))
    }
}

/// The only listless worker that serves. Without such a worker, the only listless worker that never
/// served.
fn only(all: &[Contender]) -> Option<Contender> {
    let listless = || all.iter().filter(|one| one.state == ModelState::Listless);
    let was_up = || listless().filter(|one| one.was_up);
    let only = match was_up().next() {
        Some(first) => was_up().nth(1).is_none().then_some(*first),
        None => listless().next().filter(|_| listless().nth(1).is_none()).copied(),
    }?;
    let may_be_named =
        |one: &Contender| one.state == ModelState::Unasked && (one.is_in_file || !only.is_in_file);
    (!all.iter().any(may_be_named)).then_some(only)
}
