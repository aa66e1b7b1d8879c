//! Why the router refuses: names, statuses and texts of every answer of its own that is not a
//! success.

/// Why the router refused, for machines: header `x-forebay-reason`, label of
/// `forebay_rejected_total`, log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The HTTP message is malformed.
    BadRequest,
    /// The body is not the JSON object it has to be.
    BadJson,
    /// The body names no model.
    MissingModel,
    /// No worker serves the model.
    UnknownModel,
    /// No such path.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The body is longer than the limit.
    BodyTooLarge,
    /// The head is longer than the limit.
    HeadTooLarge,
    /// The client was too slow to send its request.
    RequestTimeout,
    /// `Expect` asks for what nobody offers.
    ExpectationFailed,
    /// Nothing is left to send to: no worker of the model is healthy.
    NoHealthyWorker,
    /// The router has no descriptor or port for a connection to a worker.
    OutOfSockets,
    /// This router has as many requests in flight as it may.
    RejectedInFlight,
    /// No rank of the model has room.
    RejectedBusy,
    /// The queue of the model's workers is full.
    RejectedQueueFull,
    /// The rejection window of the model is open: its queue was full a moment ago.
    RejectedWindow,
    /// The prompt and its expected answer would take more KV cache than the model's workers may
    /// promise.
    RejectedDemand,
    /// The request waited in the queue for as long as a request may.
    RejectedQueueWait,
    /// The request would wait longer than its own deadline allows.
    RejectedDeadline,
    /// The request's own deadline passed while it waited for a worker.
    RequestDeadline,
    /// This router is shutting down.
    Draining,
    /// The worker broke the connection or answered nonsense.
    UpstreamFailed,
    /// The worker did not answer in time.
    UpstreamTimeout,
    /// A fault of the router's own.
    Internal,
}

impl Reason {
    /// All of them, in the order of declaration, for label sets.
    pub const ALL: [Self; 24] = [
        Self::BadRequest,
        Self::BadJson,
        Self::MissingModel,
        Self::UnknownModel,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::HeadTooLarge,
        Self::RequestTimeout,
        Self::ExpectationFailed,
        Self::NoHealthyWorker,
        Self::OutOfSockets,
        Self::RejectedInFlight,
        Self::RejectedBusy,
        Self::RejectedQueueFull,
        Self::RejectedWindow,
        Self::RejectedDemand,
        Self::RejectedQueueWait,
        Self::RejectedDeadline,
        Self::RequestDeadline,
        Self::Draining,
        Self::UpstreamFailed,
        Self::UpstreamTimeout,
        Self::Internal,
    ];

    /// Its position in [`Reason::ALL`], for arrays of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::BadJson => "bad-json",
            Self::MissingModel => "missing-model",
            Self::UnknownModel => "unknown-model",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::BodyTooLarge => "body-too-large",
            Self::HeadTooLarge => "head-too-large",
            Self::RequestTimeout => "request-timeout",
            Self::ExpectationFailed => "expectation-failed",
            Self::NoHealthyWorker => "no-healthy-worker",
            Self::OutOfSockets => "out-of-sockets",
            Self::RejectedInFlight => "rejected-in-flight",
            Self::RejectedBusy => "rejected-busy",
            Self::RejectedQueueFull => "rejected-queue-full",
            Self::RejectedWindow => "rejected-window",
            Self::RejectedDemand => "rejected-demand",
            Self::RejectedQueueWait => "rejected-queue-wait",
            Self::RejectedDeadline => "rejected-deadline",
            Self::RequestDeadline => "request-deadline",
            Self::Draining => "draining",
            Self::UpstreamFailed => "upstream-failed",
            Self::UpstreamTimeout => "upstream-timeout",
            Self::Internal => "internal",
        }
    }

    /// Status, unless a [`super::Refusal`] knows a closer one. Contended is 429, none left is 503.
    pub(super) const fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::BadJson | Self::MissingModel => 400,
            Self::UnknownModel | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout | Self::RequestDeadline => 408,
            Self::BodyTooLarge => 413,
            Self::ExpectationFailed => 417,
            Self::RejectedInFlight
            | Self::RejectedBusy
            | Self::RejectedQueueFull
            | Self::RejectedWindow
            | Self::RejectedDemand
            | Self::RejectedQueueWait
            | Self::RejectedDeadline => 429,
            Self::HeadTooLarge => 431,
            Self::Internal => 500,
            Self::UpstreamFailed => 502,
            Self::NoHealthyWorker | Self::OutOfSockets | Self::Draining => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// OpenAI's `code`, where clients look at it.
    pub(super) const fn code(self) -> Option<&'static str> {
        match self {
            Self::UnknownModel => Some("model_not_found"),
            _ if self.status() == 429 => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    /// What happened, and what to do.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::BadRequest => "The request is malformed.",
            Self::BadJson => "The body must be a JSON object.",
            Self::MissingModel => "The body must name a model: add `model`, a non-empty string.",
            Self::UnknownModel => {
                "No worker serves this model. GET /v1/models lists those that are served."
            }
            Self::NotFound => {
                "There is no such path. The API starts at /v1, e.g. POST /v1/chat/completions."
            }
            Self::MethodNotAllowed => {
                "This path does not support the method; see the Allow header."
            }
            Self::BodyTooLarge => {
                "The body is longer than this router accepts. Send a shorter one."
            }
            Self::HeadTooLarge => {
                "The header section is longer than this router accepts. Send fewer or shorter fields."
            }
            Self::RequestTimeout => "The request did not arrive in time. Send it again.",
            Self::ExpectationFailed => {
                "Only the expectation 100-continue is supported. Send the request without Expect."
            }
            Self::OutOfSockets => {
                "The router is out of file descriptors or ports. Try again later."
            }
            Self::NoHealthyWorker => {
                "No healthy worker serves this model at the moment. Try again later."
            }
            Self::RejectedInFlight => {
                "The router has as many requests in flight as it may. Try again later."
            }
            Self::RejectedBusy => "All workers of this model are busy. Try again later.",
            Self::RejectedQueueFull => {
                "All workers of this model are busy and the queue for them is full. Try again later."
            }
            Self::RejectedWindow => {
                "All workers of this model are busy; new requests are refused for a moment. Try again later."
            }
            Self::RejectedDemand => {
                "The requests under way need all the memory that this model's workers have. Try again later."
            }
            Self::RejectedQueueWait => {
                "No worker of this model got free while the request waited. Try again later."
            }
            Self::RejectedDeadline => {
                "The request would wait longer than its deadline allows. Try again later, or with a longer deadline."
            }
            Self::RequestDeadline => {
                "The request's deadline passed while it waited for a worker. Send it with a longer deadline."
            }
            Self::Draining => {
                "This router is shutting down. Send the request again, to another one."
            }
            Self::UpstreamFailed => "The worker failed to answer. Try again.",
            Self::UpstreamTimeout => "The worker did not answer in time. Try again later.",
            Self::Internal => "The router failed. Try again.",
        }
    }

    /// What the answer says about sending the same request again (`x-should-retry`), where the
    /// status alone would be read otherwise: 429 is worth another try, a request whose time is over
    /// is not.
    #[must_use]
    pub const fn should_retry(self) -> Option<bool> {
        match self {
            Self::RequestDeadline => Some(false),
            _ if self.status() == 429 => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn names_are_kebab_case_and_unlike() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        for (position, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), position);
        }
    }

    #[test]
    fn contended_is_429_and_none_left_is_503() {
        for reason in Reason::ALL {
            let contended = reason.as_str().starts_with("rejected-");
            assert_eq!(reason.status() == 429, contended, "{reason:?}");
            assert_eq!(reason.code() == Some("rate_limit_exceeded"), contended, "{reason:?}");
        }
        for (reason, status) in [
            (Reason::NoHealthyWorker, 503),
            (Reason::Draining, 503),
            (Reason::UpstreamFailed, 502),
            (Reason::UpstreamTimeout, 504),
            (Reason::RequestDeadline, 408),
        ] {
            assert_eq!(reason.status(), status);
        }
    }

    #[test]
    fn messages_say_what_happened_and_what_to_do() {
        for reason in Reason::ALL {
            let message = reason.message();
            assert!(message.ends_with('.') && message.len() < 120, "{message}");
        }
    }

    #[test]
    fn contended_is_worth_another_try_and_a_late_request_is_not() {
        for reason in Reason::ALL {
            let wanted = match reason.status() {
                429 => Some(true),
                408 if reason == Reason::RequestDeadline => Some(false),
                _ => None,
            };
            assert_eq!(reason.should_retry(), wanted, "{reason:?}");
        }
    }
}
