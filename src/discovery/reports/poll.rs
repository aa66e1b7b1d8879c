//! Polls a worker for its load at a pace that follows its responses.

use crate::http::{AskError, WorkerClient};
use forebay_base::Clock;
use forebay_load::{
    LoadPlan, LoadReporter, Pace, ReadFault, Readings, ReportSource, read_loads, read_metrics,
};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;
use tracing::{debug, info};

/// Pause before the first route is tried again, after the worker knew none.
const NONE_PAUSE: Duration = Duration::from_secs(30);

/// SGLang repeats its messages every second; after this silence the rank is polled.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Parser of a response.
type ReadReply = fn(&str, &mut Readings);

/// Polls the reports of a worker.
pub(crate) struct Poll {
    pub(crate) plan: LoadPlan,
    pub(crate) asker: WorkerClient,
    pub(crate) reporter: Rc<LoadReporter>,
    pub(crate) clock: Clock,
    pub(crate) interval: Duration,
    pub(crate) backs_off: bool,
    /// Polls only while a rank has no report from another source.
    pub(crate) is_fallback: bool,
}

/// Outcome of a query.
enum PollOutcome {
    Answered {
        took: Duration,
        bytes: usize,
    },
    /// The server has no such route.
    Unknown,
    Failed,
}

impl Poll {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let forms = forms(self.plan.source);
        let mut pace = Pace::new(self.interval, self.backs_off);
        let mut readings = Readings::default();
        let mut form = 0;
        let mut logged_slow = false;
        let mut logged_none = false;
        loop {
            if self.is_fallback && self.reporter.has_recent_reports(&self.plan, SILENCE_MAX) {
                sleep(self.interval).await;
                continue;
            }
            let Some((path, read)) = forms.get(form) else {
                if !self.is_fallback && !std::mem::replace(&mut logged_none, true) {
                    info!(
                        worker = &*self.plan.name,
                        "it tells nothing of its load: leases alone count"
                    );
                }
                form = 0;
                sleep(NONE_PAUSE).await;
                continue;
            };
            let pause = match self.ask(path, *read, &mut readings).await {
                PollOutcome::Answered { took, bytes } => {
                    if std::mem::take(&mut logged_none) {
                        info!(worker = &*self.plan.name, "it reports its load again");
                    }
                    let pause = pace.answered(took, bytes);
                    if pause > self.interval && !std::mem::replace(&mut logged_slow, true) {
                        let took_ms = took.as_secs_f64() * 1e3;
                        info!(
                            worker = &*self.plan.name,
                            took_ms,
                            bytes,
                            ?pause,
                            "load reports are costly there: asking less often"
                        );
                    }
                    pause
                }
                PollOutcome::Unknown => {
                    form += 1;
                    continue;
                }
                PollOutcome::Failed => pace.failed(),
            };
            sleep(pause).await;
        }
    }

    async fn ask(&self, path: &str, read: ReadReply, readings: &mut Readings) -> PollOutcome {
        let before = self.reporter.own(&self.plan);
        let start = self.clock.now();
        let answer = self.asker.get(path).await;
        let took = Duration::from_nanos(self.clock.now().since(start));
        match answer {
            Ok(body) => {
                self.reporter.scraped(took);
                readings.begin_at(self.plan.first, self.plan.ranks.len());
                read(&body, readings);
                self.reporter.lay(&self.plan, readings, &before);
                PollOutcome::Answered { took, bytes: body.len() }
            }
            Err(error) => {
                debug!(worker = &*self.plan.name, %error, "no load report");
                let fault = match &error {
                    AskError::Failed { .. }
                    | AskError::Loop { .. }
                    | AskError::Refused { .. }
                    | AskError::OutOfSockets { .. } => ReadFault::Unreachable,
                    AskError::TooLong { .. } => ReadFault::Malformed,
                    AskError::Status { .. } => ReadFault::Status,
                };
                self.reporter.fault(self.plan.worker, fault);
                // SGLang's Rust server answers 503 if its scheduler shares no figures.
                let unknown = matches!(error.status(), Some(404 | 405 | 501 | 503));
                if unknown { PollOutcome::Unknown } else { PollOutcome::Failed }
            }
        }
    }
}

fn forms(source: ReportSource) -> &'static [(&'static str, ReadReply)] {
    match source {
        ReportSource::Loads | ReportSource::Push => &[
            ("/v1/loads?include=core", read_loads),
            ("/get_load", read_loads),
            ("/metrics", read_metrics),
        ],
        ReportSource::Metrics => &[("/metrics", read_metrics)],
    }
}
