//! Available to every stage: time, configuration, counters, and the drain state.

use super::request_records::RequestRecords;
use crate::runtime::Signal;
use forebay_base::limits::STALE_CONNECTION_TIME_MAX;
use forebay_base::{Clock, NanosSinceStart, ShardIndex};
use forebay_board::account::{Count, ShardCounters, Stage, StageHistograms};
use forebay_config::{Config, LimitsConfig};
use forebay_http1::HeadLimits;
use forebay_mailbox::{DrainOrder, TraceRecord};
use forebay_prompt::render::{RenderMethod, Unrenderable};
use forebay_ring::Producer;
use forebay_router::dispatch::RelayError;
use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;

/// A stage that takes only `Env` touches no fleet, no queue and no other shard.
pub(crate) struct Env {
    pub(crate) number: ShardIndex,
    pub(crate) clock: Clock,
    config: RefCell<Arc<Config>>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) histograms: RefCell<Box<StageHistograms>>,
    pub(crate) draining: Signal,
    pub(crate) leaving: DrainState,
    pub(crate) records: RequestRecords,
}

/// Drain state of the shard.
#[derive(Default)]
pub(crate) struct DrainState {
    /// The health endpoint answers not ready, so that load balancers send clients to other routers.
    pub(crate) is_unready: Cell<bool>,
    /// Drain order, once the control plane has sent it.
    pub(crate) order: Cell<Option<DrainOrder>>,
}

impl Env {
    pub(crate) fn new(
        number: ShardIndex,
        clock: Clock,
        config: Arc<Config>,
        counters: Arc<ShardCounters>,
        traces: Producer<TraceRecord>,
    ) -> Self {
        Self {
            records: RequestRecords::new(&config, traces),
            number,
            clock,
            config: RefCell::new(config),
            counters,
            histograms: RefCell::default(),
            draining: Signal::default(),
            leaving: DrainState::default(),
        }
    }

    /// Current configuration. Not held across an await.
    pub(crate) fn config(&self) -> Ref<'_, Config> {
        Ref::map(self.config.borrow(), |config| &**config)
    }

    /// Replaces the configuration. False if `config` is already in use.
    pub(crate) fn set_config(&self, config: &Arc<Config>) -> bool {
        let before = self.config.replace(Arc::clone(config));
        self.records.set_config(config);
        !Arc::ptr_eq(&before, config)
    }

    /// Limits of message heads.
    pub(crate) fn head_limits(&self) -> HeadLimits {
        let LimitsConfig { head_bytes_max, head_fields_max: fields_max, .. } = self.config().limits;
        HeadLimits { head_bytes_max, fields_max }
    }

    /// Deadline of the drain, when remaining connections are cut.
    pub(crate) fn drain_until(&self) -> Option<NanosSinceStart> {
        self.leaving.order.get().map(|order| order.deadline)
    }

    /// True from the deadline of the drain on.
    pub(crate) fn is_cut(&self, now: NanosSinceStart) -> bool {
        self.drain_until().is_some_and(|deadline| now >= deadline)
    }

    pub(crate) fn now(&self) -> NanosSinceStart {
        self.clock.now()
    }

    /// Start of this turn of the loop, at most a turn ago: reads no clock. For deadlines and ages,
    /// not for times that are reported.
    pub(crate) fn turn_began_at(&self) -> NanosSinceStart {
        forebay_net::now().unwrap_or_else(|| self.clock.now())
    }

    /// Adds 1 to a counter.
    pub(crate) fn count(&self, count: Count) {
        self.counters.add(count, 1);
    }

    /// Counts the result of rendering a prompt, if it was attempted.
    pub(crate) fn count_render(&self, rendered: Option<Result<RenderMethod, Unrenderable>>) {
        let Some(rendered) = rendered else { return };
        let count = match rendered {
            Ok(RenderMethod::Plan) => Count::RenderedPlan,
            Ok(_) => Count::RenderedFull,
            Err(reason) => {
                let is_given_up = matches!(reason, Unrenderable::TooManySteps | Unrenderable::Late);
                self.counters.add(Count::RendersGivenUp, u64::from(is_given_up));
                Count::Unrenderable
            }
        };
        self.counters.add(count, 1);
    }

    /// Records the time since `start`. Returns the current time.
    pub(crate) fn time(&self, stage: Stage, start: NanosSinceStart) -> NanosSinceStart {
        let now = self.now();
        self.histograms.borrow_mut().record(stage, now.since(start));
        now
    }

    /// Counts a caught panic and logs its consequence.
    pub(crate) fn panicked(&self, what: &str) {
        self.count(Count::TasksPanicked);
        tracing::error!(shard = self.number.0, "{what} (this is a bug)");
    }

    /// True if the pooled connection had probably been closed before the request was written at
    /// `sent_at`.
    pub(crate) fn was_stale(&self, error: RelayError, sent_at: NanosSinceStart) -> bool {
        let until = sent_at.plus(STALE_CONNECTION_TIME_MAX);
        error.may_be_stale() && self.now() < until
    }
}
