//! Why the router refuses: names, statuses and texts of every answer of its own that is not a
//! success.

/// Declares the reasons: condition (the doc comment), status, name on the wire, message for
/// clients.
macro_rules! reasons {
    ($(
        $(#[doc = $when:literal])+
        $reason:ident = $status:literal $name:literal $message:literal,
    )+) => {
        /// Why the router refused, for machines: header `x-forebay-reason`, label of
        /// `forebay_rejected_total`, log field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[doc = $when])+ $reason,)+
        }

        impl Reason {
            /// All reasons, in the order of declaration, for label sets.
            pub const ALL: [Self; [$($status),+].len()] = [$(Self::$reason),+];

            /// Name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }

            /// Status, unless a [`crate::parse::Refusal`] overrides it. 429: no worker has room;
            /// 503: no worker is usable.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self {
                    $(Self::$reason => $status,)+
                }
            }

            /// Message for clients: the cause and the remedy.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$reason => $message,)+
                }
            }

            /// Condition of the reason, for the reference page; begins with a space.
            #[must_use]
            pub const fn when(self) -> &'static str {
                match self {
                    $(Self::$reason => concat!($($when),+),)+
                }
            }
        }
    };
}

reasons! {
    /// The HTTP message is malformed.
    BadRequest = 400 "bad-request" "The request is malformed.",
    /// The body is not a JSON object.
    BadJson = 400 "bad-json" "The body must be a JSON object.",
    /// Neither the body nor the query of a WebSocket names a model, and the workers serve several.
    MissingModel = 400 "missing-model"
        "The body must name a model: add `model`, a non-empty string.",
    /// With `api_keys`: the request shows no key, or an unknown one.
    Unauthorized = 401 "unauthorized"
        "This router asks for an API key: send it as `Authorization: Bearer` or `x-api-key`.",
    /// The key is not for the model.
    Forbidden = 403 "forbidden"
        "This API key may not use the model. GET /v1/models lists those that it may.",
    /// No worker serves the model.
    UnknownModel = 404 "unknown-model"
        "No worker serves this model. GET /v1/models lists those that are served.",
    /// The response is unknown, or its worker is gone.
    UnknownResponse = 404 "unknown-response"
        "This router knows of no worker that keeps this response. Make it again.",
    /// A browser asks for a page of an origin that `cors.origins` does not list, or opens a
    /// WebSocket for such a page.
    OriginNotAllowed = 403 "origin-not-allowed"
        "Pages of this origin may not call this router. Ask its operator to list the origin.",
    /// No such path.
    NotFound = 404 "not-found"
        "There is no such path. The API starts at /v1, e.g. POST /v1/chat/completions.",
    /// The path does not support the method.
    MethodNotAllowed = 405 "method-not-allowed"
        "This path does not support the method; see the Allow header.",
    /// The body exceeds `limits.body_bytes_max`.
    BodyTooLarge = 413 "body-too-large"
        "The body is longer than this router accepts. Send a shorter one.",
    /// The head exceeds `limits.head_bytes_max` or `limits.head_fields_max`.
    HeadTooLarge = 431 "head-too-large"
        "The header section is longer than this router accepts. Send fewer or shorter fields.",
    /// The request did not arrive in time.
    RequestTimeout = 408 "request-timeout" "The request did not arrive in time. Send it again.",
    /// The body came with less than `limits.body_rate_min`.
    BodyTooSlow = 408 "body-too-slow"
        "The body came too slowly. Send it again over a faster connection.",
    /// `Expect` asks for more than `100-continue`.
    ExpectationFailed = 417 "expectation-failed"
        "Only the expectation 100-continue is supported. Send the request without Expect.",
    /// No usable worker serves the model.
    NoHealthyWorker = 503 "no-healthy-worker"
        "No healthy worker serves this model at the moment. Try again later.",
    /// The router lacks a descriptor, a port or memory; no worker is blamed.
    OutOfSockets = 503 "out-of-sockets"
        "The router is out of file descriptors or ports. Try again later.",
    /// `limits.in_flight_max`, `limits.buffered_bytes_max` or `limits.router_in_flight_max` is
    /// reached.
    RejectedInFlight = 429 "rejected-in-flight"
        "The router has as many requests in flight as it may. Try again later.",
    /// `limits.connections_per_address_max` is reached by the client behind a proxy.
    RejectedAddress = 429 "rejected-address"
        "This address has as many requests in flight as it may. Try again later.",
    /// No rank has room and no queue is on, or each engine refused.
    RejectedBusy = 429 "rejected-busy" "All workers of this model are busy. Try again later.",
    /// No rank has room and the queue is full.
    RejectedQueueFull = 429 "rejected-queue-full"
        "All workers of this model are busy and the queue for them is full. Try again later.",
    /// The rejection window of a full pool is open, here or at another replica.
    RejectedWindow = 429 "rejected-window"
        "New requests for this model are refused for a moment. Try again later.",
    /// The rejection window of an operator is open.
    RejectedByOperator = 429 "rejected-by-operator"
        "An operator has closed this model to new requests for a while. Try again later.",
    /// `limits.kv_demand_percent` is reached.
    RejectedDemand = 429 "rejected-demand"
        "The requests under way need all the memory that this model's workers have. Try again later.",
    /// `requests_per_minute` of the tenant is reached.
    RejectedRequests = 429 "rejected-requests-per-minute"
        "Your requests per minute are used up. Try again later.",
    /// `tokens_per_minute` of the tenant is reached.
    RejectedTokens = 429 "rejected-tokens-per-minute"
        "Your tokens per minute are used up. Try again later.",
    /// The request alone needs more than `tokens_per_minute`.
    RejectedTooManyTokens = 429 "rejected-too-many-tokens"
        "The request needs more tokens than you may use in a minute. Send a shorter one.",
    /// `in_flight_max` of the tenant is reached.
    RejectedTenantInFlight = 429 "rejected-tenant-in-flight"
        "You have as many requests in flight as you may. Try again later.",
    /// `queue.wait_max` has passed, or the time that the client gave.
    RejectedQueueWait = 429 "rejected-queue-wait"
        "No worker of this model got free while the request waited. Try again later.",
    /// On arrival: the wait would be longer than the deadline.
    RejectedDeadline = 429 "rejected-deadline"
        "The request would wait longer than its deadline allows. Try again later, or with a longer deadline.",
    /// The request's own deadline passed while the request waited.
    RequestDeadline = 408 "request-deadline"
        "The request's deadline passed while it waited for a worker. Send it with a longer deadline.",
    /// The router stops.
    Draining = 503 "draining"
        "This router is shutting down. Send the request again, to another one.",
    /// The worker broke the connection, or its answer is no HTTP.
    UpstreamFailed = 502 "upstream-failed" "The worker failed to answer. Try again.",
    /// The worker did not answer in time.
    UpstreamTimeout = 504 "upstream-timeout" "The worker did not answer in time. Try again later.",
    /// A worker leads back to this router, or the request came through too many routers (`Via`).
    RequestLoop = 508 "request-loop"
        "The request came back to its router. Remove the worker that leads there.",
    /// A fault of the router.
    Internal = 500 "internal" "The router failed. Try again.",
}

impl Reason {
    /// Its position in [`Reason::ALL`], for arrays of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// True if the router or its workers lack room, time or health. False: the fault of the
    /// request, of its caller, or of a tenant past a limit of its own, and an order of an operator.
    #[must_use]
    pub const fn is_shortage(self) -> bool {
        match self {
            Self::NoHealthyWorker
            | Self::OutOfSockets
            | Self::RejectedInFlight
            | Self::RejectedBusy
            | Self::RejectedQueueFull
            | Self::RejectedWindow
            | Self::RejectedDemand
            | Self::RejectedQueueWait
            | Self::RejectedDeadline
            | Self::RequestDeadline
            | Self::Draining
            | Self::UpstreamFailed
            | Self::UpstreamTimeout
            | Self::RequestLoop
            | Self::Internal => true,
            Self::BadRequest
            | Self::BadJson
            | Self::MissingModel
            | Self::Unauthorized
            | Self::Forbidden
            | Self::UnknownModel
            | Self::UnknownResponse
            | Self::OriginNotAllowed
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::BodyTooLarge
            | Self::HeadTooLarge
            | Self::RequestTimeout
            | Self::BodyTooSlow
            | Self::ExpectationFailed
            | Self::RejectedAddress
            | Self::RejectedByOperator
            | Self::RejectedRequests
            | Self::RejectedTokens
            | Self::RejectedTooManyTokens
            | Self::RejectedTenantInFlight => false,
        }
    }

    /// OpenAI's `code`, where clients look at it.
    pub(crate) const fn code(self) -> Option<&'static str> {
        match self {
            Self::Unauthorized => Some("invalid_api_key"),
            // As OpenAI answers a project that may not use a model.
            Self::UnknownModel | Self::Forbidden => Some("model_not_found"),
            _ if self.status() == 429 => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    /// Value of `x-should-retry`, where the status alone misleads clients: a 429 is worth a retry,
    /// a request past its deadline is not.
    #[must_use]
    pub const fn should_retry(self) -> Option<bool> {
        match self {
            Self::RequestDeadline | Self::RejectedTooManyTokens | Self::RequestLoop => Some(false),
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

    /// M2: a client that errs, a tenant past its quota and an order leave the router ready.
    #[test]
    fn a_quota_an_order_and_a_fault_of_the_client_are_no_shortage() {
        for reason in Reason::ALL {
            let status = reason.status();
            let is_quota = reason.message().contains("Your ")
                || reason.message().contains("You ")
                || reason.message().contains("you may")
                || matches!(reason, Reason::RejectedAddress | Reason::RejectedByOperator);
            let is_clients = (400..500).contains(&status) && status != 429 || is_quota;
            // The client's deadline passed in the router's queue.
            let is_clients = is_clients && reason != Reason::RequestDeadline;
            assert_eq!(reason.is_shortage(), !is_clients, "{reason:?}");
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
                429 => Some(reason != Reason::RejectedTooManyTokens),
                408 if reason == Reason::RequestDeadline => Some(false),
                508 => Some(false),
                _ => None,
            };
            assert_eq!(reason.should_retry(), wanted, "{reason:?}");
        }
    }
}
