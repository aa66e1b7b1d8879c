//! Prompts without a visible end of prefill: their answers come whole.

use super::Lease;
use forebay_base::NanosSinceStart;
use std::cell::Cell;
use std::time::Duration;

/// Weight of each request in the moving share.
const STEP: f32 = 1.0 / 256.0;
/// Below this share of streams, prefill times are measured too rarely to notice an overloaded rank.
const SHARE_MIN: f32 = 1.0 / 16.0;

/// The share of streams among recent requests for a model. Shared by all ranks: with a share per
/// rank, a rank that discounts its prompts would look free beside other ranks.
#[derive(Debug, Default)]
pub struct FirstTokens {
    shown_share: Cell<f32>,
}

/// Whether the router observes the first token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTokenKind {
    /// The first byte of the answer arrives with the first token, as in streams and in answers of a
    /// single token.
    pub shows: bool,
    /// The answer is a stream. Answers of a single token have short prompts, and reveal little
    /// about a rank's queue.
    pub is_stream: bool,
}

impl FirstTokens {
    /// Counts a request that is sent. Returns the time after which the prompt counts as computed,
    /// if only an estimate can end its prefill.
    #[must_use]
    pub fn time_unseen(
        &self,
        FirstTokenKind { shows, is_stream }: FirstTokenKind,
        lease: &mut Lease,
        now: NanosSinceStart,
    ) -> Option<Duration> {
        let share = self.shown_share.get();
        self.shown_share.set(share + (f32::from(u8::from(is_stream)) - share) * STEP);
        if shows {
            return None;
        }
        let time = if share < SHARE_MIN { None } else { lease.prefill_time(now) };
        if time.is_none() {
            lease.set_unseen();
        }
        time
    }
}

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests {
    use super::*;
    use crate::account::{LeaseCost, LeaseRequest, PromptPrefixes};
    use crate::{LoadBoard, ShardBoard};
    use forebay_base::{ModelIndex, RankIndex};
    use forebay_fleet::worker::{Requester, RoomLimits};
    use forebay_index::PrefixMarks;

    const STREAM: FirstTokenKind = FirstTokenKind { shows: true, is_stream: true };
    const WHOLE: FirstTokenKind = FirstTokenKind { shows: false, is_stream: false };

    fn lease(board: &ShardBoard, ms: u64) -> Lease {
        let cost = LeaseCost { prefill_tokens: 100, ..LeaseCost::default() };
        let requester = Requester { caller: 0, model: ModelIndex(0), is_forced: false };
        let limits = RoomLimits::default();
        let rank = RankIndex(0);
        let prefixes = PromptPrefixes { marks: &PrefixMarks::NONE, bytes_per_token: 4.0 };
        let wanted = LeaseRequest { rank, requester, cost, limits, prefixes };
        Lease::try_take(board, wanted, at(ms)).unwrap()
    }

    fn at(ms: u64) -> NanosSinceStart {
        NanosSinceStart(ms * 1_000_000)
    }

    #[test]
    fn prompts_pass_by_time_where_some_first_tokens_show() {
        let board = ShardBoard::from(LoadBoard::new());
        let tokens = FirstTokens::default();
        let kind = |shows| FirstTokenKind { shows, is_stream: shows };
        let time = |shows, ms| tokens.time_unseen(kind(shows), &mut lease(&board, ms), at(ms));
        let one_in = |n: u32| (1..=2_000).filter(|at| time(at % n == 0, 1_000).is_some()).count();
        assert_eq!(one_in(5), 0, "the speed is not known");
        lease(&board, 0).prefill_done(|| at(100));
        assert_eq!(one_in(5), 1_600, "each that does not show");
        let millis = time(false, 1_000).map(|time| time.as_millis());
        assert_eq!((millis, time(true, 1_000)), (Some(100), None));
        assert!(one_in(50) < 500, "until it is known that most do not");
        assert_eq!(one_in(50), 0);
    }

    /// Otherwise a prompt without a visible first token would occupy the limit until its answer
    /// ends.
    #[test]
    fn prompts_without_a_time_are_counted_as_unseen() {
        let board = ShardBoard::from(LoadBoard::new());
        let tokens = FirstTokens::default();
        let load = board.rank(RankIndex(0)).unwrap();
        let limits = RoomLimits { prefill_tokens_max: 50, ..RoomLimits::default() };
        let mut shown = lease(&board, 0);
        assert_eq!(tokens.time_unseen(STREAM, &mut shown, at(0)), None);
        assert!(!load.takes_prefill(limits), "its first token will show");
        shown.prefill_done(|| at(100));
        drop(shown);
        for _ in 0..1_000 {
            assert_eq!(tokens.time_unseen(STREAM, &mut lease(&board, 150), at(150)), None);
        }
        // The speed is known: it passes by time.
        let mut timed = lease(&board, 200);
        assert!(tokens.time_unseen(WHOLE, &mut timed, at(200)).is_some());
        assert!(!load.takes_prefill(limits));
        drop(timed);
        board.past(RankIndex(0)).unwrap().forget();
        let mut unseen = lease(&board, 300);
        assert_eq!(tokens.time_unseen(WHOLE, &mut unseen, at(300)), None);
        assert!(load.takes_prefill(limits) && load.prefill_tokens() == 100);
    }
}
