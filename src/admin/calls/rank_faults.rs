//! Faults of a rank that is up: requests fail there, it is paused, or its KV events are missing or
//! suspect.
//! `/workers`, the live page and the log have the same words.

use forebay_base::NanosSinceStart;
use forebay_board::{EjectReason, HeldFailures, RankLoad, is_refusal};
use forebay_fleet::worker::FeedSuspicion;
use forebay_kv_events::{FEED_HELP, FeedState, FeedStatus};

/// Failures without a success between them after which a rank that is not paused is a concern, in
/// units of the score.
const FAILING_SCORE: u32 = 4;

/// Whether a rank takes requests as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankTrouble {
    None,
    /// Requests fail there, and it gets further requests.
    Failing,
    /// It gets no request: a pause of its breaker runs, or it is ejected.
    Paused,
    /// It gets trials: with each trial that it serves, a further trial at a time.
    OnTrial,
}

impl RankTrouble {
    pub(crate) fn of(load: &RankLoad, now: NanosSinceStart) -> Self {
        if load.is_restricted() {
            let is_paused =
                load.ejected().is_some() || load.held().is_some_and(|held| held.until > now);
            return if is_paused { Self::Paused } else { Self::OnTrial };
        }
        // Requests cause refusals too: a refusal counts only where nothing else comes.
        let fails = |held: HeldFailures| held.score >= FAILING_SCORE && !is_refusal(held.status);
        match load.is_failing() || load.held().is_some_and(fails) {
            true => Self::Failing,
            false => Self::None,
        }
    }
}

/// Do the latest requests on the rank fail, as far as the rank can be the cause? A refusal (3xx,
/// 4xx) by a rank that has served requests is mostly the caller's: such a rank is marked first.
pub(crate) fn has_failed_requests(load: &RankLoad) -> bool {
    let may_be_callers =
        |status| is_callers_fault(status) || is_refusal(status) && load.signs().has_served();
    let held = load.held();
    load.is_restricted()
        || load.is_failing()
        || held.is_some_and(|held| held.score > 0 && !may_be_callers(held.status))
}

/// Why requests fail on the rank, and what to do; `None` if they do not. Begins with the first
/// failed request. A single 400 is seldom caused by the rank, so it counts only with a pause.
#[must_use]
pub(crate) fn request_fault(
    load: &RankLoad,
    has_key: bool,
    now: NanosSinceStart,
) -> Option<String> {
    if let Some(reason) = load.ejected() {
        return Some(match reason {
            EjectReason::Stalled => {
                "paused: requests wait there and no byte comes; read the log of the engine"
                    .to_owned()
            }
            EjectReason::Slow => {
                "paused: its first bytes come far later than elsewhere; look at its GPU".to_owned()
            }
        });
    }
    let held = load.held()?;
    let HeldFailures { status, until, is_one_caller, pauses, .. } = held;
    let state = match (load.is_restricted(), until > now) {
        (true, true) => "paused: requests failed",
        (true, false) if pauses == 0 => "on trial: requests failed",
        (true, false) => "on trial after a pause: requests failed",
        (false, _) if load.is_failing() && is_one_caller => {
            "every request of the only caller fails"
        }
        (false, _) if load.is_failing() => "every request fails",
        (false, _) if !has_failed_requests(load) => return None,
        (false, _) => "requests fail",
    };
    let help = failure_help(status, has_key, load.is_restricted());
    Some(match status {
        0 => format!("{state} without an answer: {help}"),
        _ => format!("{state} with status {status}: {help}"),
    })
}

/// Why the rank has no KV events, and what to do; `None` if it has events, or has no feed.
#[must_use]
pub(crate) fn feed_fault(feed: &FeedStatus) -> Option<String> {
    let fault = feed.fault().filter(|_| feed.state() == FeedState::Connecting)?;
    Some(format!("no KV events: {fault}; {FEED_HELP}"))
}

/// Why the KV events of the rank may belong to another rank, and what to do.
#[must_use]
pub(crate) fn suspicion_fault(suspicion: &FeedSuspicion) -> String {
    format!("suspect KV events: {}; {}", suspicion.cause(), suspicion.help())
}

/// Callers that the failures of a rank count for. A fault of the whole rank counts for all
/// callers, also where a single client has sent requests.
#[must_use]
pub const fn callers(is_one_caller: bool) -> &'static str {
    if is_one_caller { "one" } else { "all" }
}

/// Advice for a status code of the rank. 0: no answer. `others_serve`: another rank does better, so
/// the rank is paused.
#[must_use]
pub const fn failure_help(status: u16, has_key: bool, others_serve: bool) -> &'static str {
    match status {
        401 | 403 if has_key => {
            "it refuses the key of the router: compare `api_key` of the worker with its `--api-key`"
        }
        401 | 403 if !others_serve => {
            "it refuses the key of the router or of the client: set `api_key_file` of the worker, \
             or compare the keys of clients with its `--api-key`"
        }
        401 | 403 => {
            "it refuses keys that others take: compare the `--api-key` of the workers, or set \
             `api_key` of the worker"
        }
        404 => {
            "it does not serve the model or the path: compare GET /v1/models of the workers, and \
             `url` with the address and the path of the engine"
        }
        405 | 501 => "it does not take the call: is this a model server? correct `url`",
        300..=499 if !others_serve => {
            "it refuses the requests: send it a request by hand, and read its log"
        }
        300..=499 => "it refuses requests that others take: compare the flags of the workers",
        0 => "it does not answer: read its log",
        200..=299 => {
            "its answers are empty, hold an error or have a wrong content type: send it a request \
             by hand, and read its log"
        }
        _ => "send it a request by hand, and read its log; drain it if it has to be restarted",
    }
}

/// Statuses that requests cause more often than engines. The other refusals mean a path, a method
/// or a key that a wrong engine refuses for all requests.
#[must_use]
pub const fn is_callers_fault(status: u16) -> bool {
    is_refusal(status) && !matches!(status, 300..=399 | 401 | 403 | 404 | 405)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{ModelIndex, RankIndex};
    use forebay_board::{BreakerRules, FailureScope, FailureWeight, LoadBoard, RankFailure};
    use forebay_fleet::worker::Requester;
    use std::time::Duration;

    const NOW: NanosSinceStart = NanosSinceStart(1_000);
    const REQUESTER: Requester = Requester { caller: 1, model: ModelIndex(0), is_forced: false };

    fn fail(board: &LoadBoard, status: u16, siblings: &[RankIndex]) {
        let failure = RankFailure {
            rank: RankIndex(0),
            requester: REQUESTER,
            scope: FailureScope::Rank,
            weight: FailureWeight::Failed,
            status,
            is_trial: false,
        };
        let rules = BreakerRules { failures: 3, open: Duration::from_secs(1) };
        board.hold_against(failure, siblings.iter().copied(), rules, NOW);
    }

    #[test]
    fn the_help_names_a_key_or_a_flag() {
        let help = |status, has_key| failure_help(status, has_key, true);
        assert!(help(401, true).contains("`api_key`") && help(403, false).contains("`--api-key`"));
        assert!(help(400, false).contains("flags") && help(404, true).contains("/v1/models"));
        assert!(help(200, false).contains("empty") && help(500, false).contains("drain"));
        assert!(failure_help(401, false, false).contains("set `api_key_file`"));
    }

    /// The advice compares ranks only while another rank does better.
    #[test]
    fn the_help_speaks_of_others_only_where_they_serve() {
        for status in 0..=599 {
            for has_key in [false, true] {
                let alone = failure_help(status, has_key, false);
                assert!(!alone.contains("others"), "{status}: {alone}");
            }
        }
        for status in [400, 401, 403, 422] {
            assert!(failure_help(status, false, true).contains("that others take"), "{status}");
        }
        for siblings in [&[][..], &[RankIndex(1)]] {
            let board = LoadBoard::new();
            (0..4).for_each(|_| fail(&board, 401, siblings));
            let fault = request_fault(board.rank(RankIndex(0)).unwrap(), false, NOW).unwrap();
            assert_eq!(fault.contains("others take"), !siblings.is_empty(), "{fault}");
        }
    }

    /// The first failed request has a reason with the status and what to do, with and without a
    /// sibling; a success ends the reason. The caller's own faults have none.
    #[test]
    fn the_first_failure_of_each_status_has_a_reason() {
        for status in [0, 200, 401, 403, 404, 405, 500, 501, 502, 504, 599] {
            let board = LoadBoard::new();
            fail(&board, status, &[]);
            let load = board.rank(RankIndex(0)).unwrap();
            let fault = request_fault(load, false, NOW).unwrap();
            let shown = if status == 0 { "no".to_owned() } else { format!("status {status}") };
            assert!(fault.contains(&shown) || status == 0, "{fault}");
            assert!(fault.contains(failure_help(status, false, false)), "{fault}");
            assert_eq!(RankTrouble::of(load, NOW), RankTrouble::None, "a single failure");
            (0..3).for_each(|_| fail(&board, status, &[]));
            if is_refusal(status) {
                assert_eq!(
                    RankTrouble::of(load, NOW),
                    RankTrouble::None,
                    "a caller may cause {status}"
                );
                load.set_failing(true);
                let fault = request_fault(load, false, NOW).unwrap();
                assert!(fault.starts_with("every request fails"), "{fault}");
            }
            assert_eq!(RankTrouble::of(load, NOW), RankTrouble::Failing, "{status}");
            load.set_failing(false);
            (0..8).for_each(|_| load.succeeded(REQUESTER));
            assert_eq!(request_fault(load, false, NOW), None, "{status}");
        }
        for status in [400, 413, 422] {
            let board = LoadBoard::new();
            fail(&board, status, &[]);
            assert_eq!(request_fault(board.rank(RankIndex(0)).unwrap(), false, NOW), None);
        }
    }

    #[test]
    fn a_pause_and_the_trial_after_it_have_reasons() {
        let board = LoadBoard::new();
        (0..4).for_each(|_| fail(&board, 404, &[RankIndex(1)]));
        let load = board.rank(RankIndex(0)).unwrap();
        assert_eq!(RankTrouble::of(load, NOW), RankTrouble::Paused);
        let at = |now| request_fault(load, false, now).unwrap();
        assert!(at(NOW).starts_with("paused: requests failed with status 404"), "{}", at(NOW));
        let later = NOW.plus(Duration::from_secs(9));
        assert!(at(later).starts_with("on trial"), "{}", at(later));
        assert_eq!(RankTrouble::of(load, later), RankTrouble::OnTrial);
        load.forget_failures();
        assert_eq!(
            (request_fault(load, false, NOW), RankTrouble::of(load, NOW)),
            (None, RankTrouble::None)
        );
    }
}
