//! Streams that move by the operator's word, again and again: what of their tries counts.

use super::stage::Stage;
use forebay_config::QueueMode;
use forebay_router::dispatch::RelayError;
use forebay_router::request::{Action, FailedAttempt, RequestEvent, RequestFlow};

/// A stream, and where it was sent last.
struct Moving {
    stage: Stage,
    flow: RequestFlow,
    action: Action,
}

impl Moving {
    fn begin() -> Self {
        let mut stage = Stage::new(QueueMode::Pool, &[4, 4, 4], &[&[0, 1, 2]]);
        let ask = stage.any();
        let (flow, action) = stage.ask(&ask);
        Self { stage, flow, action }
    }

    /// The attempt ends like this; false if no other follows.
    fn ends(&mut self, error: RelayError) -> bool {
        let Action::Send(chosen) = &self.action else { panic!("{:?}", self.action) };
        let failed =
            FailedAttempt { is_resumable: true, ..FailedAttempt::of(chosen.lease.rank(), error) };
        self.action = self.stage.step(&mut self.flow, 400, RequestEvent::Failed(failed));
        matches!(self.action, Action::Send(_))
    }

    /// Refusals until no rank is asked again.
    fn refusals_left(&mut self) -> usize {
        (0..100).take_while(|_| self.ends(RelayError::EngineBusy)).count()
    }
}

#[test]
fn each_move_counts_refusals_anew() {
    let most = Moving::begin().refusals_left();
    assert!((8..20).contains(&most), "{most}");
    let mut moving = Moving::begin();
    for _ in 0..20 {
        assert!((0..8).all(|_| moving.ends(RelayError::EngineBusy)), "refusals are no failures");
        assert!(moving.ends(RelayError::Moved));
        assert!(!moving.flow.is_retry(), "a move is no attempt");
    }
    assert_eq!(moving.refusals_left(), most);
}

#[test]
fn a_stream_may_move_more_often_than_queues_may_send_it_on() {
    let mut moving = Moving::begin();
    for _ in 0..500 {
        assert!(moving.ends(RelayError::Moved));
        assert_eq!(moving.flow.hop_count(), 1, "each move is one hop");
        assert!(moving.flow.facts().tried.is_empty(), "no rank has failed it");
    }
}

/// The rest of a stream that gets no answer goes on elsewhere, within the attempts.
#[test]
fn a_rest_that_gets_no_answer_is_sent_again() {
    let mut moving = Moving::begin();
    assert!(moving.ends(RelayError::Moved));
    assert!((0..2).all(|_| moving.ends(RelayError::FirstByteTimedOut)));
    assert!(!moving.ends(RelayError::FirstByteTimedOut), "three attempts");
    let mut moving = Moving::begin();
    assert!(moving.ends(RelayError::ClosedMidStream));
    assert!(moving.ends(RelayError::FirstByteTimedOut));
    assert!(!moving.ends(RelayError::FirstByteTimedOut), "the break was the first");
}
