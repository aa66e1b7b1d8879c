//! Ranks that are ejected, and come back: what was decided reaches the board, the log and the live
//! page.

use super::super::reports::{EjectionStep, RankLook};
use super::Control;
use forebay_base::{NanosSinceStart, RankIndex};
use forebay_fleet::worker::EjectReason;
use std::time::Duration;
use tracing::{info, warn};

impl Control {
    /// Takes what shards and reports show of ranks, and does what follows from it.
    pub(super) fn eject(&mut self, now: NanosSinceStart) {
        let Self { board_watch, setup, reporter, snapshot, .. } = self;
        let look = |rank| {
            setup.board.rank(rank).map_or_else(RankLook::default, |load| RankLook {
                answers: load.signs().take_answers(),
                awaited: load.signs().take_awaited(),
                moved_at: reporter.moved_at(rank),
                first_bytes: load.signs().take_first_bytes(),
                is_open: load.is_open(),
                is_tried: load.trial_taken(),
            })
        };
        let steps = board_watch.ejection.observe(snapshot, now, look);
        let mut comes_back = false;
        for (rank, step) in steps {
            self.say_ejection(rank, step, now);
            comes_back |= self.take_step(rank, step, now);
        }
        for (rank, until) in self.board_watch.ejection.ejected() {
            if let Some(load) = self.setup.board.rank(rank) {
                load.keep_ejected(until);
            }
        }
        if comes_back {
            self.publish();
        }
    }

    /// True if the rank comes back, and slowly.
    fn take_step(&mut self, rank: RankIndex, step: EjectionStep, now: NanosSinceStart) -> bool {
        let Some(load) = self.setup.board.rank(rank) else { return false };
        match step {
            EjectionStep::Eject { reason, until } => load.eject(reason, until),
            EjectionStep::LetTry => load.let_try(),
            EjectionStep::Readmit => load.readmit(),
        }
        // Who waits for this rank alone looks for another one, or comes now.
        self.setup.board.room_made(rank);
        let worker = self.snapshot.rank(rank).map(|(rank, _)| rank.worker);
        let starts_slowly = !self.setup.config.health.slow_start.is_zero();
        let Some(worker) = worker.filter(|_| step == EjectionStep::Readmit && starts_slowly) else {
            return false;
        };
        self.warming.begin_rank(worker, rank, now);
        true
    }

    fn say_ejection(&mut self, rank: RankIndex, step: EjectionStep, now: NanosSinceStart) {
        let Some((shown, worker)) = self.snapshot.rank(rank) else { return };
        let name = &*worker.name;
        let dp_rank = shown.dp_rank.0;
        let (kind, words) = match step {
            EjectionStep::LetTry => return,
            EjectionStep::Readmit => {
                info!(worker = name, dp_rank, "the rank is ejected no more");
                ("readmitted", "gets requests again")
            }
            EjectionStep::Eject { reason, until } => {
                let pause_ms = Duration::from_nanos(until.since(now)).as_millis();
                let words = match reason {
                    EjectReason::Stalled => "is ejected: streams wait there, and nothing moves",
                    EjectReason::Slow => "is ejected: its first bytes come far later than others",
                };
                let reason = reason.name();
                warn!(worker = name, dp_rank, reason, pause_ms, "the rank {words}");
                ("ejected", words)
            }
        };
        let text = match shown.dp_size {
            0 | 1 => format!("{name} {words}"),
            _ => format!("{name}, rank {dp_rank}, {words}"),
        };
        self.live.ejected(kind, text, now);
    }
}
