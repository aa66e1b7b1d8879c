//! Meaning of the status of a worker's answer, and its scope: the rank, the model on the rank, or
//! the caller. The consequence for a rank depends on its siblings too: see
//! [`LoadBoard::hold_against`](forebay_board::LoadBoard::hold_against).
//!
//! | status | workers of type `openai` | other types |
//! |---|---|---|
//! | 101, 2xx | served | served |
//! | 429, the client's credentials were sent | the caller is limited | the caller is limited |
//! | 429 | the caller is limited | no room for the model |
//! | 503, 529 | no room for the model | no room for the model |
//! | 401, the router's own key was sent | the rank failed | the rank failed |
//! | 403, the router's own key was sent | the rank failed the request | the same |
//! | other 3xx and 4xx | the rank refused the request | the rank refused the request |
//! | other 5xx | the rank failed the request | the rank failed the request |

use crate::dispatch::has_no_room;
use forebay_board::{FailureScope, FailureWeight};
use forebay_fleet::worker::Dialect;

/// Credentials that the router sent to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentCredentials {
    /// The client's credentials, unchanged.
    Client,
    /// The worker's key from the configuration.
    Router,
    /// No credentials: neither the client nor the configuration has any.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMeaning {
    /// The rank serves the request, judged by the status alone.
    Served,
    /// The rank has no room for the model.
    NoRoom,
    /// The worker limits this caller for now.
    CallerLimited,
    /// The rank failed or refused the request.
    Failed(FailureScope, FailureWeight),
}

impl AnswerMeaning {
    #[must_use]
    pub fn of(status: u16, dialect: Dialect, credentials: SentCredentials) -> Self {
        let is_about_caller = dialect == Dialect::Openai || credentials == SentCredentials::Client;
        match status {
            429 if is_about_caller => Self::CallerLimited,
            status if has_no_room(status) => Self::NoRoom,
            401 if credentials == SentCredentials::Router => {
                Self::Failed(FailureScope::Rank, FailureWeight::Failed)
            }
            // Gateways refuse some requests with 403.
            403 if credentials == SentCredentials::Router => {
                Self::Failed(FailureScope::Caller, FailureWeight::Failed)
            }
            300..=499 => Self::Failed(FailureScope::Caller, FailureWeight::Refused),
            500.. => Self::Failed(FailureScope::Caller, FailureWeight::Failed),
            _ => Self::Served,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Dialect::{Openai, Sglang, Vllm};
    use SentCredentials::{Client, None, Router};

    #[test]
    fn each_status_has_one_scope() {
        let of = AnswerMeaning::of;
        let failed = AnswerMeaning::Failed;
        for credentials in [Client, Router, None] {
            for dialect in [Openai, Vllm, Sglang] {
                let of = |status| of(status, dialect, credentials);
                assert!([101, 200, 204].map(of).iter().all(|m| *m == AnswerMeaning::Served));
                assert_eq!([503, 529].map(of), [AnswerMeaning::NoRoom; 2]);
                let refused = failed(FailureScope::Caller, FailureWeight::Refused);
                assert_eq!([302, 400, 404, 422].map(of), [refused; 4]);
                let error = failed(FailureScope::Caller, FailureWeight::Failed);
                assert_eq!([500, 502, 504, 599].map(of), [error; 4]);
            }
        }
        let own = failed(FailureScope::Rank, FailureWeight::Failed);
        assert_eq!([of(401, Vllm, Router), of(401, Openai, Router)], [own; 2]);
        let error = failed(FailureScope::Caller, FailureWeight::Failed);
        assert_eq!(of(403, Openai, Router), error);
        let limited = AnswerMeaning::CallerLimited;
        assert_eq!([Client, Router, None].map(|sent| of(429, Openai, sent)), [limited; 3]);
        assert_eq!([of(429, Vllm, Client), of(429, Sglang, Client)], [limited; 2]);
        assert_eq!([of(429, Vllm, Router), of(429, Sglang, None)], [AnswerMeaning::NoRoom; 2]);
    }
}
