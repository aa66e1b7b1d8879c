//! Which rank is at fault for a failed attempt, what its breaker records, and how the attempt ended
//! for the request. A leg is blamed for its own failure, not for waiting for the other leg. When
//! either rank may be the cause, their results with other partners decide ([`LoadBoard::doubt`]).

use super::stop::{FailedAttempt, WorkerReply};
use crate::dispatch::RelayError;
use forebay_base::RankIndex;
use forebay_board::{FailureScope, FailureWeight, LoadBoard, RankFailure, Suspect};
use forebay_disagg::Accusation;
use forebay_fleet::worker::Requester;
use forebay_mailbox::{PrefillFault, PrefillOutcome};
use forebay_prompt::parse::Endpoint;

/// Result of an attempt for its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The rank has served the request.
    Success,
    /// The rank accepted its leg. Only the decode leg's answer shows whether the KV is usable.
    Taken,
    /// The rank has no room. A rank that answers is healthy.
    Refusal,
    /// The rank failed the request, or refused it as wrong.
    Failure {
        scope: FailureScope,
        weight: FailureWeight,
        /// Status of the answer; 0 without an answer.
        status: u16,
    },
}

impl Judgement {
    /// For a rank that served the request whole, or for the decode rank of a pair.
    #[must_use]
    pub fn of_error(error: RelayError) -> Option<Self> {
        match error {
            error if error.blames_worker() => Some(Self::failure(error.is_ranks_own())),
            RelayError::EngineBusy => Some(Self::Refusal),
            _ => None,
        }
    }

    /// For a rank that failed without an answer.
    #[must_use]
    pub const fn failure(is_ranks_own: bool) -> Self {
        let scope = if is_ranks_own { FailureScope::Rank } else { FailureScope::Caller };
        Self::Failure { scope, weight: FailureWeight::Failed, status: 0 }
    }

    /// The judgement as a failure of `rank`; `None`: no failure. `is_trial`: the attempt was the
    /// rank's trial, and the rank is at fault.
    #[must_use]
    pub const fn against(
        self,
        rank: RankIndex,
        requester: Requester,
        is_trial: bool,
    ) -> Option<RankFailure> {
        match self {
            Self::Failure { scope, weight, status } => {
                Some(RankFailure { rank, requester, scope, weight, status, is_trial })
            }
            Self::Success | Self::Taken | Self::Refusal => None,
        }
    }

    /// For the rank of a prefill leg. `prefill_waits`: the prefill leg answers once the decode rank
    /// has the KV.
    #[must_use]
    pub const fn of_leg(ended: &PrefillOutcome, prefill_waits: bool) -> Option<Self> {
        match ended {
            // Judged by the shard of the request, which also sees the decode leg.
            PrefillOutcome::Failed(PrefillFault::TimedOut) if prefill_waits => None,
            PrefillOutcome::Failed(
                PrefillFault::NoDecode(_)
                | PrefillFault::Transfer(_)
                | PrefillFault::OutOfSockets
                | PrefillFault::Cancelled,
            ) => None,
            PrefillOutcome::Failed(
                PrefillFault::ConnectFailed
                | PrefillFault::HandshakeFailed(_)
                | PrefillFault::ConnectTimedOut,
            ) => Some(Self::failure(true)),
            // A rank that sends no KV answers fast and would attract traffic.
            PrefillOutcome::Failed(
                PrefillFault::Broken(_) | PrefillFault::TimedOut | PrefillFault::NoKvTransfer(_),
            ) => Some(Self::failure(false)),
            PrefillOutcome::Failed(PrefillFault::Busy) => Some(Self::Refusal),
            PrefillOutcome::Refused(answer) => Some(Self::Failure {
                scope: FailureScope::Caller,
                weight: FailureWeight::Refused,
                status: answer.status,
            }),
            PrefillOutcome::Done(_) if !prefill_waits => Some(Self::Taken),
            PrefillOutcome::Done(_) | PrefillOutcome::Failed(PrefillFault::Unclear(_)) => {
                Some(Self::Success)
            }
        }
    }
}

/// The rank at fault for a pair that failed before a byte of its answer was relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The decode rank, if any rank is at fault.
    Decode,
    /// The prefill rank, which has not answered.
    Prefill,
    /// Either rank of the pair.
    Either,
    /// No rank, or a rank that the shard of the prefill leg has judged.
    NoRank,
}

/// A prefill leg at the end of its request's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegEnd<'a> {
    /// The leg has not answered.
    Silent,
    Done,
    Failed(&'a PrefillFault),
    /// The engine refused the request.
    Refused,
}

impl<'a> From<Option<&'a PrefillOutcome>> for LegEnd<'a> {
    fn from(ended: Option<&'a PrefillOutcome>) -> Self {
        match ended {
            None => Self::Silent,
            Some(PrefillOutcome::Done(_)) => Self::Done,
            Some(PrefillOutcome::Failed(fault)) => Self::Failed(fault),
            Some(PrefillOutcome::Refused(_)) => Self::Refused,
        }
    }
}

/// The rank that is blamed for the failure of its pair.
#[derive(Clone, Copy, Debug)]
pub struct PairBlame {
    pub rank: RankIndex,
    /// Result that the rank's breaker records.
    pub judgement: Judgement,
    /// A leg, or results with other partners, prove the fault: the rank needs no trial.
    pub is_shown: bool,
}

/// Evidence on a pair that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedPair<'a> {
    /// How the decode leg ended.
    pub error: RelayError,
    /// Error of the decode engine about the prefill leg.
    pub accusation: Option<Accusation>,
    /// How the prefill leg ended.
    pub leg: LegEnd<'a>,
    /// Both legs were sent at the same time.
    pub is_concurrent: bool,
    /// The prefill leg answers once the decode rank has the KV.
    pub prefill_waits: bool,
}

impl FailedPair<'_> {
    #[must_use]
    pub fn fault(self) -> Fault {
        match (self.error, self.leg) {
            // The shard of the prefill leg judges the leg's own failures.
            (RelayError::PrefillFailed, LegEnd::Failed(fault)) => match fault {
                PrefillFault::NoDecode(_) => Fault::Decode,
                PrefillFault::Transfer(_) => Fault::Either,
                PrefillFault::TimedOut if self.prefill_waits => Fault::Either,
                _ => Fault::NoRank,
            },
            (RelayError::PrefillFailed, _) => Fault::NoRank,
            // Legs that wait for each other time out together.
            (RelayError::FirstByteTimedOut, LegEnd::Silent) if self.is_concurrent => Fault::Either,
            (RelayError::FirstByteTimedOut, LegEnd::Failed(PrefillFault::TimedOut))
                if self.prefill_waits =>
            {
                Fault::Either
            }
            // vLLM reports no cause: the KV may be gone, or the decode engine may be broken.
            (RelayError::EngineFailed, _) if !self.prefill_waits => Fault::Either,
            (RelayError::EngineFailed, leg) => match (self.accusation, leg) {
                (None, _) => Fault::Decode,
                (Some(Accusation::Missing), LegEnd::Silent) => Fault::Prefill,
                (Some(_), LegEnd::Failed(PrefillFault::Broken(_))) => Fault::NoRank,
                (Some(_), _) => Fault::Either,
            },
            _ => Fault::Decode,
        }
    }

    /// The rank whose breaker records the failure. The shard of the prefill leg has already judged
    /// that leg's own failures.
    #[must_use]
    pub fn judged(
        self,
        board: &LoadBoard,
        prefill: RankIndex,
        decode: RankIndex,
    ) -> Option<PairBlame> {
        let by_prefill = self.error == RelayError::PrefillFailed;
        let Suspect { rank, is_shown } = match self.fault() {
            Fault::NoRank => return None,
            Fault::Decode => Suspect { rank: decode, is_shown: by_prefill },
            Fault::Prefill => Suspect { rank: prefill, is_shown: true },
            Fault::Either => board.doubt(prefill, decode)?,
        };
        let judgement = if rank == prefill || by_prefill {
            Judgement::failure(false)
        } else {
            Judgement::of_error(self.error)?
        };
        Some(PairBlame { rank, judgement, is_shown })
    }
}

impl FailedAttempt {
    /// A failure that the prefill leg caused. `ended`: the end of that leg, if reported.
    #[must_use]
    pub fn by_leg(ended: Option<&PrefillOutcome>, prefill: RankIndex, decode: RankIndex) -> Self {
        let failed =
            |error, why: Option<&String>| Self { why: why.cloned(), ..Self::of(prefill, error) };
        match ended {
            Some(PrefillOutcome::Refused(answer)) => {
                let answer = Some(Box::new(answer.clone()));
                let reply = WorkerReply { answer, ..WorkerReply::default() };
                Self { reply, ..failed(RelayError::PrefillFailed, None) }
            }
            Some(PrefillOutcome::Failed(fault)) => match fault {
                PrefillFault::Busy => failed(RelayError::EngineBusy, None),
                PrefillFault::ConnectFailed => failed(RelayError::ConnectFailed, None),
                PrefillFault::HandshakeFailed(why) => {
                    failed(RelayError::HandshakeFailed, Some(why))
                }
                PrefillFault::OutOfSockets => failed(RelayError::OutOfSockets, None),
                PrefillFault::ConnectTimedOut => failed(RelayError::ConnectTimedOut, None),
                PrefillFault::TimedOut => failed(RelayError::FirstByteTimedOut, None),
                PrefillFault::NoDecode(words) => {
                    let why = format!("it has not come for the KV of its prefill worker: {words}");
                    let failed = Self::of(decode, RelayError::PrefillFailed);
                    Self { partner: Some(prefill), why: Some(why), ..failed }
                }
                PrefillFault::Transfer(words) => {
                    let failed = failed(RelayError::PrefillFailed, Some(words));
                    Self { partner: Some(decode), ..failed }
                }
                PrefillFault::Broken(why) => failed(RelayError::PrefillFailed, Some(why)),
                PrefillFault::NoKvTransfer(why) | PrefillFault::Unclear(why) => {
                    failed(RelayError::NoKvTransfer, Some(why))
                }
                PrefillFault::Cancelled => failed(RelayError::PrefillFailed, None),
            },
            _ => failed(RelayError::PrefillFailed, None),
        }
    }
}

/// May this error be held against the rank? A WebSocket client chooses the engine's input and can
/// make the engine close or stop reading. A rank blamed for that would be lost to other clients.
#[must_use]
pub const fn may_be_blamed(endpoint: Endpoint, error: RelayError) -> bool {
    !matches!(endpoint, Endpoint::WebSocket)
        || !matches!(
            error,
            RelayError::ClosedBeforeHead
                | RelayError::ClosedInHead
                | RelayError::HeadInvalid
                | RelayError::ClosedMidStream
                | RelayError::StreamIdle
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ModelIndex;

    fn known(error: RelayError, leg: LegEnd<'_>) -> FailedPair<'_> {
        FailedPair { error, accusation: None, leg, is_concurrent: true, prefill_waits: true }
    }

    #[test]
    fn fault_when_the_legs_wait_for_each_other() {
        let by_prefill =
            |fault: PrefillFault| known(RelayError::PrefillFailed, LegEnd::Failed(&fault)).fault();
        assert_eq!(by_prefill(PrefillFault::NoDecode(String::new())), Fault::Decode);
        assert_eq!(by_prefill(PrefillFault::Transfer(String::new())), Fault::Either);
        assert_eq!(by_prefill(PrefillFault::TimedOut), Fault::Either);
        for own in
            [PrefillFault::Broken(String::new()), PrefillFault::ConnectTimedOut, PrefillFault::Busy]
        {
            assert_eq!(by_prefill(own), Fault::NoRank, "its home has judged it");
        }
        let accused = |accusation, leg| {
            let accusation = Some(accusation);
            FailedPair { accusation, ..known(RelayError::EngineFailed, leg) }.fault()
        };
        assert_eq!(accused(Accusation::Missing, LegEnd::Silent), Fault::Prefill);
        assert_eq!(accused(Accusation::Missing, LegEnd::Done), Fault::Either);
        assert_eq!(accused(Accusation::Transfer, LegEnd::Silent), Fault::Either);
        assert_eq!(known(RelayError::EngineFailed, LegEnd::Silent).fault(), Fault::Decode);
        let late = |leg| known(RelayError::FirstByteTimedOut, leg).fault();
        assert_eq!(late(LegEnd::Silent), Fault::Either);
        assert_eq!(late(LegEnd::Failed(&PrefillFault::TimedOut)), Fault::Either);
        assert_eq!(late(LegEnd::Done), Fault::Decode, "it has all that it needs");
        assert_eq!(known(RelayError::ClosedInHead, LegEnd::Silent).fault(), Fault::Decode);
    }

    #[test]
    fn fault_when_prefill_does_not_wait() {
        let fault = PrefillFault::TimedOut;
        let prefill = known(RelayError::PrefillFailed, LegEnd::Failed(&fault));
        let prefill = FailedPair { prefill_waits: false, ..prefill };
        assert_eq!(prefill.fault(), Fault::NoRank, "its home has judged it");
        let decode = known(RelayError::FirstByteTimedOut, LegEnd::Done);
        let decode = FailedPair { prefill_waits: false, is_concurrent: false, ..decode };
        assert_eq!(decode.fault(), Fault::Decode);
        let failed = FailedPair { error: RelayError::EngineFailed, ..decode };
        assert_eq!(failed.fault(), Fault::Either, "the KV may be gone, or the engine ill");
    }

    #[test]
    fn a_prefill_rank_that_hands_nothing_over_has_failed() {
        let of = |ended: PrefillOutcome, waits| Judgement::of_leg(&ended, waits);
        let words = String::new;
        let nothing = || PrefillOutcome::Failed(PrefillFault::NoKvTransfer(words()));
        assert_eq!(of(nothing(), false), Some(Judgement::failure(false)));
        let unclear = PrefillOutcome::Failed(PrefillFault::Unclear(words()));
        assert_eq!(of(unclear, true), Some(Judgement::Success), "the request may be to blame");
        assert_eq!(of(PrefillOutcome::Done(None), true), Some(Judgement::Success));
        assert_eq!(
            of(PrefillOutcome::Done(None), false),
            Some(Judgement::Taken),
            "decode shows it"
        );
    }

    /// A decode rank that fails all requests, or a prefill rank that never delivers its KV, is
    /// found among healthy partners, and no healthy rank is blamed.
    #[test]
    fn of_two_phases_the_one_that_fails_with_all_is_found() {
        let decode_failed = known(RelayError::EngineFailed, LegEnd::Done);
        let failed = FailedPair { prefill_waits: false, is_concurrent: false, ..decode_failed };
        for ill in 0..4 {
            let board = LoadBoard::new();
            let mut blamed = [0; 4];
            let requester = Requester { caller: 0, model: ModelIndex(0), is_forced: false };
            for round in 0..40_u16 {
                let prefill = RankIndex(round % 2);
                let decode = RankIndex(2 + round / 2 % 2);
                if [prefill, decode].contains(&RankIndex(ill)) {
                    if let Some(blame) = failed.judged(&board, prefill, decode) {
                        assert!(blame.is_shown);
                        blamed[blame.rank.index()] += 1;
                    }
                } else {
                    board.rank(prefill).unwrap().succeeded(requester);
                    board.rank(decode).unwrap().answered();
                }
            }
            for (rank, count) in blamed.into_iter().enumerate() {
                let is_ill = rank == usize::from(ill);
                assert!(if is_ill { count >= 15 } else { count == 0 }, "{ill}: {blamed:?}");
            }
        }
    }
}
