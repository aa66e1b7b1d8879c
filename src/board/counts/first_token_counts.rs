//! Counts of first tokens that engines report, by rank. Owned by the control plane: it reads the
//! reports, and marks prompts without a stream as computed when the engine has computed them.
//!
//! A count covers all prompts, not only the prompts of this router. It is too high by requests of
//! other clients and by several answers to a prompt. It is too low by requests that ended before
//! their first token. So the router's own counts bound each report from both sides: prompts with an
//! answer are computed, and prompts that wait in the engine are not.

use crate::LoadBoard;
use crate::LoadReading;
use crate::OwnLoad;
use crate::PassedPrompts;
use crate::PromptNumber;
use forebay_base::{NanosSinceStart, RankIndex};

/// Last count of each rank's engine.
#[derive(Debug, Default)]
pub struct FirstTokenCounts {
    by_rank: Vec<Option<EngineCount>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct EngineCount {
    /// First tokens since the engine's start.
    first_tokens: u64,
    /// Sum of the waits for them.
    wait_ms: u64,
    /// This router's computed prompts, as the board counts them.
    prompts_done: PromptNumber,
    /// This router's prompts that the engine has counted and the board has not; negative: the
    /// opposite.
    surplus: f32,
}

impl FirstTokenCounts {
    /// Processes a load report of a rank. `own`: this router's load there.
    pub fn observe(
        &mut self,
        rank: RankIndex,
        reading: &LoadReading,
        own: OwnLoad,
        board: &LoadBoard,
        now: NanosSinceStart,
    ) {
        let position = rank.index();
        if position >= self.by_rank.len() {
            self.by_rank.resize(position + 1, None);
        }
        let (Some(stored), Some(load)) = (self.by_rank.get_mut(position), board.rank(rank)) else {
            return;
        };
        let Some(new) = EngineCount::of(reading, own) else {
            *stored = None;
            return;
        };
        let Some(last) = *stored else {
            *stored = Some(new);
            return;
        };
        let surplus = last.surplus(new, reading, own);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole prompts"
        )]
        let passed = board.pass_unstreamed(rank, own.prompts_sent, surplus.max(0.0) as u32);
        if let Some(past) = board.past(rank)
            && passed.count > 0
        {
            past.prefill_ended(passed.tokens, load.prefill_tokens(), now);
            if let Some(wait_ns) = last.single_wait_ns(new, passed) {
                past.waited(passed.tokens, wait_ns);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "few prompts")]
        let surplus = surplus - passed.count as f32;
        *stored =
            Some(EngineCount { prompts_done: new.prompts_done.plus(passed.count), surplus, ..new });
    }
}

impl EngineCount {
    fn of(reading: &LoadReading, own: OwnLoad) -> Option<Self> {
        let first_tokens = reading.progress.first_tokens?;
        let wait_ms = reading.progress.first_token_wait_ms.unwrap_or(0);
        Some(Self { first_tokens, wait_ms, prompts_done: own.prompts_done, surplus: 0.0 })
    }

    #[expect(clippy::cast_precision_loss, reason = "few requests")]
    fn surplus(self, new: Self, reading: &LoadReading, own: OwnLoad) -> f32 {
        let there = reading.running.saturating_add(reading.waiting);
        if there == 0 {
            // The counted requests have ended, and pending requests have not arrived yet.
            return 0.0;
        }
        // The first tokens and waiting requests of other clients are unknown: use this router's
        // share of all requests there.
        let own_share = own.in_flight.min(there) as f32 / there as f32;
        // A restarted engine counts from 0, and has computed none of the prompts.
        let counted = new.first_tokens.saturating_sub(self.first_tokens) as f32 * own_share;
        let done = new.prompts_done.since(self.prompts_done) as f32;
        // A prompt that the engine does not count for long has failed: halve the deficit.
        let before = if self.surplus < 0.0 { self.surplus / 2.0 } else { self.surplus };
        let pending = own.prompts_sent.since(own.prompts_done) as f32;
        let waiting = (reading.waiting as f32 * own_share).ceil();
        (before + counted - done).min((pending - waiting).max(0.0))
    }

    /// The wait of a prompt that is the only prompt in the engine's count. The mean of several
    /// waits is no speed: their prompts differ.
    fn single_wait_ns(self, new: Self, passed: PassedPrompts) -> Option<u64> {
        let counted = new.first_tokens.checked_sub(self.first_tokens)?;
        let is_single = counted == 1 && passed.count == 1 && new.prompts_done == self.prompts_done;
        let wait_ms = new.wait_ms.checked_sub(self.wait_ms).filter(|&ms| is_single && ms > 0)?;
        Some(wait_ms.saturating_mul(1_000_000))
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::account::{Lease, LeaseCost, LeaseRequest, PromptPrefixes};
    use crate::{ShardBoard, TokenProgress};
    use forebay_base::ModelIndex;
    use forebay_fleet::worker::{Requester, RoomLimits};
    use forebay_index::PrefixMarks;

    const RANK: RankIndex = RankIndex(0);

    fn counted((first_tokens, wait_ms): (u64, u64)) -> TokenProgress {
        TokenProgress {
            first_tokens: Some(first_tokens),
            first_token_wait_ms: Some(wait_ms),
            ..TokenProgress::default()
        }
    }

    /// A router and an engine.
    struct Scene {
        board: ShardBoard,
        counts: FirstTokenCounts,
        /// First tokens, and the sum of the waits for them.
        engine: (u64, u64),
        second: u64,
    }

    impl Scene {
        fn new() -> Self {
            let board = ShardBoard::from(LoadBoard::new());
            let mut scene =
                Self { board, counts: FirstTokenCounts::default(), engine: (700, 0), second: 100 };
            assert_eq!(scene.report(0, 0, 0), 0, "the first report is a beginning");
            scene
        }

        fn now(&self) -> NanosSinceStart {
            NanosSinceStart(self.second * 1_000_000_000)
        }

        fn send(&self, is_stream: bool) -> Lease {
            let cost = LeaseCost { prefill_tokens: 100, ..LeaseCost::default() };
            let requester = Requester { caller: 0, model: ModelIndex(0), is_forced: false };
            let prefixes = PromptPrefixes { marks: &PrefixMarks::NONE, bytes_per_token: 4.0 };
            let limits = RoomLimits::default();
            let wanted = LeaseRequest { rank: RANK, requester, cost, limits, prefixes };
            let mut lease = Lease::try_take(&self.board, wanted, self.now()).unwrap();
            if !is_stream {
                lease.set_unseen();
            }
            lease
        }

        fn send_whole<const COUNT: usize>(&self) -> [Lease; COUNT] {
            [(); COUNT].map(|()| self.send(false))
        }

        fn pending(&self) -> u64 {
            self.board.rank(RANK).unwrap().prefill_tokens() / 100
        }

        /// The engine has made `first_tokens` since the last report. Returns the passed prompts.
        fn report(&mut self, first_tokens: u64, running: u32, waiting: u32) -> u64 {
            self.engine.0 += first_tokens;
            self.engine.1 += first_tokens * 500;
            self.second += 1;
            let own = OwnLoad::of(self.board.rank(RANK).unwrap());
            let before = self.pending();
            let reading = LoadReading {
                running,
                waiting,
                progress: counted(self.engine),
                ..LoadReading::default()
            };
            self.counts.observe(RANK, &reading, own, &self.board, self.now());
            before - self.pending()
        }
    }

    #[test]
    fn prompts_pass_as_the_engine_counts_them() {
        let mut scene = Scene::new();
        let mut leases = scene.send_whole::<5>();
        assert_eq!(scene.report(0, 2, 3), 0, "a rank that hangs keeps its queue");
        assert_eq!((scene.report(2, 4, 1), scene.pending()), (2, 3));
        leases.iter_mut().take(2).for_each(Lease::observe_answer);
        assert_eq!(scene.report(0, 2, 1), 0, "what was passed is not passed again");
        // The fifth is answered: earlier prompts are computed.
        leases[4].observe_answer();
        assert_eq!(scene.pending(), 0);
        assert_eq!(scene.report(3, 0, 0), 0);
        drop(leases);
        let _next = scene.send_whole::<1>();
        assert_eq!(scene.report(0, 1, 0), 0, "counted before it came");
    }

    #[test]
    fn a_prompt_that_is_counted_alone_tells_the_speed() {
        let mut scene = Scene::new();
        let _leases = scene.send_whole::<5>();
        let board = scene.board.clone();
        let millis = || board.past(RANK)?.prefill_time(100).map(|time| time.as_millis());
        assert_eq!((scene.report(2, 2, 3), millis()), (2, None), "of two prompts");
        assert_eq!((scene.report(1, 2, 2), millis()), (1, Some(500)));
    }

    #[test]
    fn a_stream_shows_that_those_before_it_are_computed() {
        let mut scene = Scene::new();
        let _before = scene.send(false);
        let mut stream = scene.send(true);
        let _behind = scene.send(false);
        stream.prefill_done(|| NanosSinceStart(200_000_000_000));
        assert_eq!(scene.pending(), 1);
        assert_eq!(scene.report(2, 3, 0), 0, "they are counted, and known");
        assert_eq!(scene.report(1, 3, 0), 1);
    }

    #[test]
    fn a_count_that_is_too_high_passes_none_that_waits() {
        let mut scene = Scene::new();
        let _leases = scene.send_whole::<6>();
        // Several answers to a prompt, or ended probes of other clients.
        assert_eq!(scene.report(90, 1, 5), 1);
        assert_eq!(scene.report(90, 2, 4), 1);
        // A second router has as many requests there: half of the count is ours.
        let mut scene = Scene::new();
        let _leases = scene.send_whole::<6>();
        assert_eq!(scene.report(4, 6, 6), 2);
        assert_eq!(scene.report(1, 7, 5), 0, "half a prompt");
        assert_eq!(scene.report(1, 8, 4), 1);
    }

    #[test]
    fn a_count_that_is_too_low_is_forgiven() {
        let mut scene = Scene::new();
        let mut leases = Vec::from(scene.send_whole::<6>());
        // Four clients leave before their first tokens.
        leases.truncate(2);
        assert_eq!((scene.report(0, 2, 0), scene.pending()), (0, 2));
        (0..4).for_each(|_| assert_eq!(scene.report(0, 2, 0), 0));
        assert_eq!(scene.report(2, 2, 0), 1);
        assert_eq!(scene.report(0, 2, 0) + scene.report(0, 2, 0), 0, "late, until its answer");
        leases[1].observe_answer();
        assert_eq!(scene.pending(), 0);
    }

    #[test]
    fn an_engine_that_starts_anew_counts_from_nothing() {
        let mut scene = Scene::new();
        let _leases = scene.send_whole::<3>();
        scene.engine = (0, 0);
        assert_eq!(scene.report(0, 1, 2), 0);
        assert_eq!(scene.report(1, 1, 2), 1);
        // A report without the count restarts the comparison.
        let own = OwnLoad::default();
        let board = &scene.board;
        scene.counts.observe(RANK, &LoadReading::default(), own, board, scene.now());
        assert_eq!(scene.report(1, 2, 1), 0);
        assert_eq!(scene.report(1, 2, 0), 1);
    }

    #[test]
    fn what_is_sent_while_a_report_comes_is_not_in_it() {
        let mut scene = Scene::new();
        let _old = scene.send_whole::<2>();
        let before = OwnLoad::of(scene.board.rank(RANK).unwrap());
        let _new = scene.send_whole::<2>();
        let after = OwnLoad::of(scene.board.rank(RANK).unwrap());
        let own = before.or_more(after);
        assert_eq!(own.prompts_sent.since(own.prompts_done), 4);
        let reading =
            LoadReading { running: 2, progress: counted((702, 0)), ..LoadReading::default() };
        scene.counts.observe(RANK, &reading, own, &scene.board, scene.now());
        assert_eq!(scene.pending(), 2);
    }
}
