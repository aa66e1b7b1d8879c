//! Header fields of Forebay: fields that the router sends to clients, and fields that it reads from
//! them. An entry per field, for the code and the reference page.

/// A header field, for the reference page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderField {
    /// Name in lower case.
    pub name: &'static str,
    /// Messages that carry the field.
    pub on: &'static str,
    /// Meaning of the field; begins with a space.
    pub meaning: &'static str,
}

/// Defines a constant for each field, and their list.
macro_rules! headers {
    ($(#[doc = $doc:literal])+ $list:ident {
        $($(#[doc = $meaning:literal])+ $field:ident = $name:literal on $on:literal;)+
    }) => {
        $($(#[doc = $meaning])+ pub const $field: &str = $name;)+

        $(#[doc = $doc])+
        pub const $list: &[HeaderField] = &[$(
            HeaderField { name: $field, on: $on, meaning: concat!($($meaning),+) },
        )+];
    };
}

headers! {
    /// Fields of answers to clients.
    OF_ANSWERS {
        /// The worker; with `/rank` if the worker has several and the engine reads the rank.
        WORKER = "x-forebay-worker" on "relayed answers";
        /// The worker that computed the prompt.
        PREFILL_WORKER = "x-forebay-prefill-worker" on "answers of pairs";
        /// Prompt tokens that the worker holds by its KV events.
        OVERLAP_TOKENS = "x-forebay-overlap-tokens" on "relayed answers";
        /// The client's own id, or a fresh id.
        REQUEST_ID = "x-request-id" on "each answer";
        /// A machine-readable [reason](errors.md).
        REASON = "x-forebay-reason" on "answers of the router";
        /// Version of the admin API. Commands recognize a router by it.
        ADMIN = "x-forebay-admin" on "answers of the admin API";
        /// Seconds until the next try.
        RETRY_AFTER = "retry-after" on "each 429 of the router but too many tokens";
        /// The same in milliseconds.
        RETRY_AFTER_MS = "retry-after-ms" on "each 429 of the router but too many tokens";
        /// The official SDKs obey this header before the status.
        SHOULD_RETRY = "x-should-retry" on "each 429 of the router: `true`; \
            408 by the request's own deadline, too many tokens: `false`";
        /// Requests per minute of the tenant.
        LIMIT_REQUESTS = "x-ratelimit-limit-requests" on "inference of tenants with this limit";
        /// Requests that the tenant may send now.
        REMAINING_REQUESTS = "x-ratelimit-remaining-requests" on "the same";
        /// Time until that is the limit again, such as `1s`, `6m0s` or `120ms`.
        RESET_REQUESTS = "x-ratelimit-reset-requests" on "the same";
        /// Tokens per minute of the tenant, of prompts and answers.
        LIMIT_TOKENS = "x-ratelimit-limit-tokens" on "inference of tenants with this limit";
        /// Tokens that the tenant may use now, without the expected tokens of this request.
        REMAINING_TOKENS = "x-ratelimit-remaining-tokens" on "the same";
        /// Time until that is the limit again.
        RESET_TOKENS = "x-ratelimit-reset-tokens" on "the same";
    }
}

headers! {
    /// Fields of requests that the router reads.
    OF_REQUESTS {
        /// Class of the request: 0 is served first, 3 last.
        PRIORITY = "x-forebay-priority" on "each request";
        /// Less than 0: so many classes better than usual; more: worse.
        VLLM_PRIORITY = "x-vllm-priority" on "each request";
        /// Longest wait for the first byte.
        TIMEOUT_MS = "x-forebay-timeout-ms" on "each request";
        /// The same in seconds.
        READ_TIMEOUT = "x-stainless-read-timeout" on "requests of OpenAI's and Anthropic's SDKs";
        /// The same in seconds, where the read time-out is absent.
        TIMEOUT = "x-stainless-timeout" on "requests of OpenAI's and Anthropic's SDKs";
        /// Proxies that the request passed. A request that passed this router before, or more
        /// Forebay routers than [`ROUTER_HOPS_MAX`](limits.md), gets 508.
        VIA = "via" on "each request";
        /// With `api_keys`: `Bearer` and the client's key. Else passed to the worker.
        AUTHORIZATION = "authorization" on "requests";
        /// The same key, without `Bearer`, where `authorization` has none.
        API_KEY = "x-api-key" on "requests";
        /// The rank that serves the request. A value that no rank has is a 400.
        DP_RANK = "x-data-parallel-rank" on "requests to models with several ranks";
        /// W3C Trace Context: the trace goes on, and the worker gets the router's span. A wrong
        /// value counts as none.
        TRACEPARENT = "traceparent" on "requests, with `traces.endpoint`";
        /// The same: passed to the worker, unless `traceparent` is wrong or absent.
        TRACESTATE = "tracestate" on "requests, with `traces.endpoint`";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::limits::QUEUE_CLASSES;

    /// The texts are literals, because macros join them.
    #[test]
    fn numbers_in_the_meanings_are_those_of_the_code() {
        let has = |name: &str, words: &str| {
            let field = OF_REQUESTS.iter().find(|field| field.name == name).unwrap();
            assert!(field.meaning.contains(words), "{name}: {words}: {}", field.meaning);
        };
        has(PRIORITY, &format!(" {} last.", QUEUE_CLASSES - 1));
    }
}
