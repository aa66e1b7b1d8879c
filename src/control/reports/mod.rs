//! Owner of the reports: traces, request notes, ejection of ranks, and the log's report of workers.
//! Runs on the control plane's thread. Reads the published fleet and the load board. Writes
//! ejections to the board, and changes no fleet: a change for another owner is in the value that
//! [`Reports::tick`] returns.

mod alias_log;
mod board_watch;
mod cut_log;
mod ejection;
mod failing_ranks;
mod note_reading;
mod outliers;
mod render_trust;
mod start_report;
mod traces;

use self::alias_log::AliasLog;
use self::board_watch::BoardWatch;
use self::cut_log::CutLog;
use self::note_reading::NoteReading;
use self::render_trust::RenderTrust;
use self::start_report::ReportedWorkers;
use self::traces::Traces;
use super::environment::Environment;
use super::fleet::Fleet;
use super::ports::Ports;
use forebay_admin::{NotesReader, SpanFigures};
use forebay_base::{NanosSinceStart, WorkerIndex};
use forebay_board::account::{Count, TtftHistory};
use forebay_board::admit::DrainRates;
use forebay_fleet::worker::{FleetSnapshot, NoteSink};
use forebay_load::LoadReporter;

pub(super) use ejection::RankEvent;

/// Reports about requests, ranks and workers.
#[derive(Debug, Default)]
pub(super) struct Reports {
    traces: Traces,
    /// Stream of request notes, while a client reads it.
    notes: Option<NoteReading>,
    board_watch: BoardWatch,
    cut_log: CutLog,
    alias_log: AliasLog,
    render_trust: RenderTrust,
    workers: ReportedWorkers,
}

/// State of other owners that the reports are made from.
pub(super) struct ReportSources<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) published: &'a FleetSnapshot,
    pub(super) reporter: &'a LoadReporter,
    /// Some workers of the start have not answered yet.
    pub(super) is_starting: bool,
}

/// Work for other owners after a tick of the reports.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct ReportOutcome {
    pub(super) rank_events: Vec<RankEvent>,
    /// The shards need the fleet again.
    pub(super) publishes: bool,
}

impl Reports {
    /// The concern about names of the configuration with a model that no worker serves.
    pub(super) fn unserved_names(&self) -> Option<String> {
        self.alias_log.concern()
    }

    pub(super) fn tick(
        &mut self,
        env: &Environment,
        sources: &ReportSources<'_>,
        now: NanosSinceStart,
    ) -> ReportOutcome {
        let ReportSources { fleet, published, reporter, is_starting } = *sources;
        let counters = env.ports.counters();
        self.board_watch.observe(published, &env.board, &counters, now);
        let reader_left = self.pass_on_notes(&env.ports, published);
        // At start, the workers are reported together.
        if !is_starting {
            self.workers.log_new(fleet, env.config.policy.uses_overlap());
            self.alias_log.observe(published);
        }
        let mut rank_events = self.board_watch.ejection.tick(env, published, reporter, now);
        rank_events.extend(self.board_watch.outliers.log_changes(published, &env.board, now));
        self.make_spans(env, published, now);
        let sum =
            |rank, count| counters.iter().map(|shard| shard.choices().value(rank, count)).sum();
        self.cut_log.observe(published, sum, now);
        let starts_slowly = rank_events.iter().any(|event| event.slow_start.is_some());
        let has_verdict = self.render_trust.tick(published, &counters);
        ReportOutcome { publishes: reader_left || starts_slowly || has_verdict, rank_events }
    }

    /// Adds the note sink and the verdicts about predictions to the next published fleet.
    pub(super) fn equip(&self, fleet: &mut FleetSnapshot) {
        fleet.serving.notes = self.note_sink();
        self.render_trust.equip(fleet);
    }

    /// A stream of notes for a client; `None` while another client reads. The next published fleet
    /// has the sink.
    pub(super) fn read_notes(&mut self, ports: &Ports) -> Option<NotesReader> {
        if self.notes.as_ref().is_some_and(|reading| !reading.is_closed()) {
            return None;
        }
        let (reading, reader) = NoteReading::new(lost_by_shards(ports));
        self.notes = Some(reading);
        Some(reader)
    }

    /// Where shards put notes, for the next published fleet.
    fn note_sink(&self) -> Option<NoteSink> {
        self.notes.as_ref().map(NoteReading::sink)
    }

    /// Sends received notes to the reader. True if the reader has closed its stream: the next
    /// published fleet stops the shards' notes.
    pub(super) fn pass_on_notes(&mut self, ports: &Ports, published: &FleetSnapshot) -> bool {
        let Some(reading) = &mut self.notes else { return false };
        if reading.is_closed() {
            self.notes = None;
            return true;
        }
        reading.pass_on(published, lost_by_shards(ports));
        false
    }

    /// Ends the stream of notes: another process serves the address from now on.
    pub(super) fn end_notes(&mut self) {
        self.notes = None;
    }

    /// Forgets a worker that left. The next worker in its place is new.
    pub(super) fn forget(&mut self, worker: WorkerIndex) {
        self.workers.forget(worker);
    }

    pub(super) fn span_figures(&self) -> SpanFigures {
        self.traces.figures()
    }

    pub(super) const fn drain_rates(&self) -> &DrainRates {
        &self.board_watch.drain_rates
    }

    pub(super) const fn ttft_history(&self) -> &TtftHistory {
        &self.board_watch.ttft_history
    }

    /// Makes and sends the last spans, in bounded time.
    pub(super) async fn finish(&mut self, env: &Environment, published: &FleetSnapshot) {
        self.make_spans(env, published, env.clock.now());
        self.traces.finish(&env.config.traces).await;
    }

    fn make_spans(&mut self, env: &Environment, published: &FleetSnapshot, now: NanosSinceStart) {
        self.traces.tick(&env.config.traces, &env.ports, published, now);
    }
}

fn lost_by_shards(ports: &Ports) -> u64 {
    ports.counters().iter().map(|shard| shard.value(Count::NotesLost)).sum()
}
