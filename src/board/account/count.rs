//! The plain counters of a shard. The metric and its page are generated from each counter's entry.

use super::metric::{Metric, MetricKind};

/// Makes the counters, each with its metric. Sections are headings of the reference page.
macro_rules! counts {
    ($($section:literal { $($(#[doc = $help:literal])+ $count:ident = $name:literal,)+ })+) => {
        /// Plain counters. Each is a metric of its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($($(#[doc = $help])+ $count,)+)+
        }

        impl Count {
            /// All of them with their metrics, in the order of their index.
            pub const ALL: &'static [(Self, Metric)] = &[$($((Self::$count, Metric {
                name: $name,
                kind: MetricKind::Counter,
                labels: &[],
                section: $section,
                help: concat!($($help),+),
            }),)+)+];
        }
    };
}

counts! {
    "Requests" {
        /// Requests sent to another rank before the first byte.
        Retries = "retries_total",
        /// Retries that the budget of the caller did not allow, see `retry.budget_percent`.
        RetriesRefused = "retries_refused_total",
        /// Requests sent again because a pooled connection had died.
        Resends = "resends_total",
        /// Requests whose client left before the end.
        ClientGone = "client_gone_total",
        /// Answers cut because the worker died in the middle.
        CutMidStream = "cut_mid_stream_total",
        /// Requests cut because the drain of the router ended before their answers.
        CutByDrain = "cut_by_drain_total",
        /// Streams that another worker went on with: theirs had failed, or its streams move.
        StreamsContinued = "streams_continued_total",
        /// Response body bytes relayed.
        ResponseBytes = "response_bytes_total",
        /// Bytes of clients passed on to workers in WebSockets.
        TunnelRequestBytes = "tunnel_request_bytes_total",
        /// Refusals of engines (429, 503, 529): another rank was tried, or the router refused.
        EngineRefusals = "engine_refusals_total",
        /// Notes of requests that found no room on their way to `forebay record`.
        NotesLost = "request_notes_lost_total",
    }
    "Connections" {
        /// Client connections accepted.
        ConnectionsAccepted = "connections_accepted_total",
        /// Client connections closed.
        ConnectionsClosed = "connections_closed_total",
        /// Client connections refused at `limits.connections_max`.
        ConnectionsRefused = "connections_refused_total",
        /// Client connections refused at `limits.connections_per_address_max`.
        ConnectionsRefusedAddress = "connections_refused_address_total",
        /// Connections of `client.trusted` closed because their PROXY header was missing or wrong.
        ProxyHeaderFaults = "proxy_header_faults_total",
        /// WebSockets opened.
        TunnelsOpened = "tunnels_opened_total",
        /// WebSockets closed. Opened minus closed are open.
        TunnelsClosed = "tunnels_closed_total",
        /// Attempts to open a connection to a worker.
        UpstreamConnects = "upstream_connects_total",
        /// Requests sent on a pooled connection.
        UpstreamReused = "upstream_reused_total",
        /// Connections not opened or accepted for lack of descriptors, ports or memory.
        OutOfSockets = "out_of_sockets_total",
        /// Operations handed to io_uring; 0 on epoll.
        IoSubmissions = "io_submissions_total",
        /// Calls of `io_uring_enter` or `epoll_wait` at the end of a turn.
        IoWaits = "io_waits_total",
        /// Calls of `send` and `sendmsg`, and of `io_uring_enter` for sends within a turn.
        IoSends = "io_sends_total",
        /// Calls of `recv`.
        IoReceives = "io_receives_total",
    }
    "TLS" {
        /// TLS handshakes with clients that succeeded.
        TlsHandshakes = "tls_handshakes_total",
        /// Handshakes of clients that came back with a ticket; also in the total.
        TlsResumed = "tls_handshakes_resumed_total",
        /// Handshakes during which the client left.
        TlsClosed = "tls_handshakes_closed_total",
        /// Handshakes that took longer than `timeouts.handshake`.
        TlsTimedOut = "tls_handshakes_timed_out_total",
        /// Connections to a TLS port that began with something else.
        TlsPlain = "tls_handshakes_plain_total",
        /// Handshakes without a version, cipher or protocol that both sides know.
        TlsIncompatible = "tls_handshakes_incompatible_total",
        /// Handshakes that failed because of a certificate of either side.
        TlsCertificate = "tls_handshakes_certificate_total",
        /// Handshakes that failed for another reason.
        TlsMalformed = "tls_handshakes_malformed_total",
        /// TLS handshakes with workers that succeeded.
        UpstreamHandshakes = "upstream_handshakes_total",
        /// Handshakes with workers that a ticket made short; also in the total.
        UpstreamResumed = "upstream_handshakes_resumed_total",
        /// Handshakes with workers that failed, or came too late.
        UpstreamHandshakesFailed = "upstream_handshakes_failed_total",
    }
    "Prompts and matches" {
        /// Prompt bytes walked through the index.
        PromptBytes = "prompt_bytes_total",
        /// Prompt bytes that another healthy rank held beyond what the chosen rank did.
        OverlapUnusedBytes = "overlap_unused_bytes_total",
        /// Prompt blocks that were expected in caches, of prompts with an engine's own count.
        OverlapPredictedBlocks = "overlap_predicted_blocks_total",
        /// Prompt blocks that engines found in their caches, of the same prompts.
        OverlapReportedBlocks = "overlap_reported_blocks_total",
        /// Prompt bytes that the chosen rank is believed to hold, by earlier routing.
        GuessedBytes = "guessed_bytes_total",
        /// Prompts rendered by the fast path.
        RenderedPlan = "rendered_plan_total",
        /// Prompts rendered by the full template, or plain text and token ids.
        RenderedFull = "rendered_full_total",
        /// Prompts that could not be rendered and were matched by guesses only.
        Unrenderable = "unrenderable_total",
        /// Prompts whose chat template took too many steps, or waited too long to be run.
        RendersGivenUp = "renders_given_up_total",
        /// Chunks of routed prompts stored in the index.
        GuessedChunksStored = "guessed_chunks_stored_total",
        /// Chunks removed after their time, or with their worker's cache.
        GuessedChunksExpired = "guessed_chunks_expired_total",
        /// Chunks removed to make room.
        GuessedChunksEvicted = "guessed_chunks_evicted_total",
        /// Routed prompts that were not remembered.
        GuessedPromptsDropped = "guessed_prompts_dropped_total",
    }
    "KV events" {
        /// Index operations applied.
        KvOpsApplied = "kv_ops_applied_total",
    }
    "Queues and windows" {
        /// Times that a shard looked at its queues.
        QueueTurns = "queue_turns_total",
        /// Requests that left a queue with a place on a rank.
        QueueGrants = "queue_grants_total",
        /// Requests that left a queue to choose again: stale, or their workers had gone.
        QueueReroutes = "queue_reroutes_total",
        /// Places that came for a request that had given up.
        GrantsReturned = "queue_grants_returned_total",
        /// Requests that left a queue because the client left.
        QueueLeft = "queue_left_total",
        /// Requests that left a queue because their time was over.
        QueueExpired = "queue_expired_total",
    }
    "Prefill and decode" {
        /// Prefill legs sent by the shard that has the request.
        PrefillLegsLocal = "prefill_legs_local_total",
        /// Prefill legs sent by another shard, the owner of the rank.
        PrefillLegsMesh = "prefill_legs_mesh_total",
        /// Prefill legs that failed.
        PrefillLegsFailed = "prefill_legs_failed_total",
        /// Prefill legs cancelled because their request had ended.
        PrefillLegsCancelled = "prefill_legs_cancelled_total",
        /// Engines told to abort a request.
        Aborts = "aborts_total",
        /// Engines that could not be told to abort a request.
        AbortsFailed = "aborts_failed_total",
        /// Looks for a rank of a request that goes whole though its model has prefill ranks.
        SentWhole = "sent_whole_total",
    }
    "Traces" {
        /// Requests whose spans are recorded.
        Traces = "traces_total",
        /// Sampled requests and prefill legs without spans: the control plane was behind.
        TracesDropped = "traces_dropped_total",
        /// Requests that clients asked to be recorded, past `traces.asked_per_second_max`.
        TracesOverAsked = "traces_over_asked_total",
    }
    "The process" {
        /// Hints between shards dropped because a ring was full.
        MeshDropped = "mesh_dropped_total",
        /// Not 0: a bug, please report.
        TasksPanicked = "tasks_panicked_total",
    }
}
