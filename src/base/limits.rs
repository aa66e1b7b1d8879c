//! Every fixed limit, with its unit and the behavior at the limit. Limits that operators tune are
//! keys of the config file (`config::schema`); the limits here size arrays and rings. A line with
//! `Topic` begins a table of `docs/reference/limits.md`.

use std::time::Duration;

// Topic: Fleet and files.
/// Most ranks of a fleet (4,096 with the feature `ranks_4096`). Further ranks are refused with a
/// log line and not routed to. A set of ranks in the index has a bit for each.
pub const RANKS_MAX: usize = if cfg!(feature = "ranks_4096") { 4_096 } else { 1_024 };
/// Most pools, and most queues: a queue per rank, or a queue per pool. The pool of a model's
/// prefill ranks has the number of its other pool plus [`RANKS_MAX`].
pub const POOLS_MAX: usize = 2 * RANKS_MAX;
/// Most KV pools that ranks share, by name and model. Blocks in further pools count for nothing.
pub const KV_POOLS_MAX: usize = 64;
/// Longest name of a KV pool: a label of metrics. A longer name is a configuration error.
pub const KV_POOL_NAME_BYTES_MAX: usize = 64;
/// The file of `forebay simulate --engine`: ten figures.
pub const ENGINE_FILE_BYTES_MAX: usize = 64 * 1024;
/// The file of `discovery.file`: some hundred bytes for each worker.
pub const WORKERS_FILE_BYTES_MAX: usize = 1 << 20;
/// Longest configuration file at a reload.
pub const CONFIG_BYTES_MAX: usize = 16 << 20;
/// Longest tokenizer or template. Current files have up to some 35 MB.
pub const MODEL_FILE_BYTES_MAX: usize = 256 << 20;
/// Longest name of a revision in a model cache.
pub const REVISION_BYTES_MAX: usize = 4_096;
/// Longest time that an engine takes for an admin call: it may copy its weights.
pub const ENGINE_CALL_TIME_MAX: Duration = Duration::from_mins(5);
/// Most admin calls to engines under way; further calls are refused.
pub const ENGINE_CALLS_MAX: usize = 4;
/// Most engines that these calls reach at once; further engines wait.
pub const ENGINES_CALLED_MAX: usize = 64;
/// Bytes of all answers to an admin call, shared evenly. Longer answers are cut.
pub const ENGINE_ANSWERS_BYTES_MAX: usize = 8 << 20;
/// Longest time that an answer with SRV records is valid, whatever its TTL: workers come and go.
pub const SRV_TTL_MAX: Duration = Duration::from_mins(1);
/// Longest name, and longest URL, of a worker that the admin API adds. A longer value is refused.
pub const WORKER_NAME_BYTES_MAX: usize = 256;
/// Longest `api_key` of a worker that the admin API adds. A longer key is refused.
pub const WORKER_API_KEY_BYTES_MAX: usize = 4_096;
/// Most workers of a fleet; `forebay check` reports more as an error. A removed worker keeps its
/// index for its address; `POST /workers` is refused when all indices are taken.
pub const WORKERS_MAX: usize = 1_024;
/// Longest file of `workers_state`: a line for each worker. A longer file counts as broken.
pub const WORKERS_STATE_BYTES_MAX: usize = 8 << 20;
/// Most copies of broken files of `workers_state`. Full: a broken file is not kept, and the log
/// has an error.
pub const BROKEN_COPIES_MAX: usize = 8;
/// Longest list of the workers' models that a process leaves to the next. The next process ignores
/// a longer list.
pub const MODEL_MEMORY_BYTES_MAX: usize = 8 << 20;
/// Most models with their own label in the metrics; further models share the label `other`.
pub const MODELS_MAX: usize = 64;
/// Most shards of a process; `forebay check` reports more as an error.
pub const SHARDS_MAX: usize = 64;

// Topic: Between threads.
/// KV batches waiting between the control plane and a shard. Full: the feed stops reading its
/// socket.
pub const KV_RING_BATCHES_MAX: usize = 1_024;
/// Operations in a KV batch. A larger engine batch is split.
pub const KV_BATCH_OPS_MAX: usize = 512;
/// Blocks of a rank that wait for a parent that was never seen, and bytes of their text. Full: the
/// oldest are dropped and counted. Some 400 KB a rank at most, enough for the blocks that a startup
/// or a replay delivers out of order.
pub const ORPHAN_BLOCKS_MAX: usize = 1_024;
/// Text bytes of orphans, see [`ORPHAN_BLOCKS_MAX`].
pub const ORPHAN_BYTES_MAX: usize = 128 * 1024;
/// Load reports waiting between the control plane and a shard: a report of every rank. Full: the
/// report is dropped and counted; the rank's next report arrives within a second.
pub const LOAD_RING_MAX: usize = RANKS_MAX;
/// Blocks of a rank that are known not to be text. Full: the oldest are forgotten, and their
/// continuations wait as orphans.
pub const OPAQUE_BLOCKS_MAX: usize = 4_096;
/// Commands waiting between the control plane and a shard. Full: control retries at its next tick.
pub const COMMAND_RING_MAX: usize = 16;
/// Messages waiting from a shard to another. Full: hints are dropped and counted, and the sender
/// retains all other messages.
pub const MESH_RING_MAX: usize = 256;
/// Longest response id that is remembered; vLLM's ids have 37 bytes. A longer id is never stored.
pub const RESPONSE_ID_BYTES_MAX: usize = 64;
/// Responses whose worker each shard remembers, in two halves; half of the limit is guaranteed.
/// Full: the older half is forgotten. Some 6 MB a shard, allocated with the first response.
pub const STORED_RESPONSES_MAX: usize = 2 * 28_672;
/// Bytes at the start of the answer that are searched for the response id.
pub const RESPONSE_ID_SEARCH_BYTES_MAX: usize = 16 * 1024;
/// Latency buffers under way from a shard to the control plane. Full: the shard continues to
/// record.
pub const HISTOGRAM_RING_MAX: usize = 4;

// Topic: Sockets.
/// Bytes of a read from a socket; also the size of a pooled buffer.
pub const READ_BYTES: usize = 16 * 1024;
/// Bytes of a read from a socket that carries a stream of small events, or is idle for long.
/// Thousands of these sockets wait in a read at once, and their buffers should stay in the CPU
/// caches.
pub const STREAM_READ_BYTES: usize = 4 * 1024;
/// Bytes of the first read where a long body is expected; the rest is received into its final
/// buffer. This first part is copied there from a small buffer. A larger read would evict the
/// bodies of other requests from the CPU caches, and would be copied.
pub const FIRST_READ_BYTES: usize = 2 * 1024;
/// Longest request that waits at the end of a stage for the other requests of its turn. Several
/// longer requests, each with its text, are more than the second cache holds.
pub const COHORT_MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Unused room in the buffer of a received request. With more, the request is copied to a buffer of
/// its size: thousands of requests may wait for their workers at once.
pub const MESSAGE_SPARE_BYTES_MAX: usize = 512;
/// Bytes of a read of a long body that is received into its final buffer.
pub const READ_IN_PLACE_BYTES_MAX: usize = 128 * 1024;
/// Entries of a shard's submission queue; few, so that 50 shards fit into 8 MiB of locked memory.
/// Full: the rest is submitted in the next turn.
pub const SUBMISSIONS_MAX: u32 = 1_024;
/// Entries of a shard's completion queue. Full: the kernel retains further completions.
pub const COMPLETIONS_MAX: usize = 4_096;
/// Buffers of `READ_BYTES` that a shard's kernel receives into; a power of two. None left: the
/// socket is read again after the received buffers are handed out.
pub const PROVIDED_BUFFERS: usize = 128;
/// Chunks that may wait in a socket. At the limit the socket is not read until they are taken;
/// chunks that the kernel receives until then still arrive.
pub const CHUNKS_AHEAD_MAX: usize = 6;
/// Memory that the chunks waiting in all sockets of a shard may take. At the limit, and until half
/// of it is taken, a single chunk may wait in each socket, and only sockets with a waiting task are
/// read.
pub const AHEAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Pooled buffers of each size that a shard keeps; further buffers are freed.
pub const POOLED_BUFFERS_MAX: usize = 512;
/// Idle upstream connections that a shard keeps per address; further connections are closed.
pub const UPSTREAM_IDLE_MAX: usize = 1_024;
/// Interim heads (1xx) of an answer. With more, the exchange has failed: 502.
pub const INTERIM_HEADS_MAX: usize = 8;
/// If a worker's host acknowledges nothing for this long, it counts as gone, and its connections
/// end (`TCP_USER_TIMEOUT`). This also hits a worker that leaves bytes unread, so the option is not
/// set where a body is longer than [`READ_AT_ONCE_BYTES_MAX`].
pub const UNACKNOWLEDGED_TIME_MAX: Duration = Duration::from_secs(8);
/// A silent host is probed after this time, then every [`KEEPALIVE_INTERVAL`], [`KEEPALIVE_PROBES`]
/// times.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
/// Time between probes, see [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Probes without an answer before the connection ends, see [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_PROBES: u32 = 3;
/// A request up to this length fits into the receive buffer of a worker that reads nothing.
pub const READ_AT_ONCE_BYTES_MAX: usize = 48 * 1024;
/// A pooled connection that ends within this time of a request was closed while it was idle. The
/// request is then resent once on a fresh connection to the same worker. After this time, the
/// worker may have read the request.
pub const STALE_CONNECTION_TIME_MAX: Duration = Duration::from_secs(1);
// Topic: Bodies and prompts.
/// Longest body that a shard scans, renders and matches itself; see `runtime/offload.rs` for longer
/// bodies. Costs at worst some 8 ns a byte (`tools/holds`), so that the shard is blocked for less
/// than a millisecond. Includes a prompt of 64 KiB.
pub const INLINE_BODY_BYTES_MAX: usize = 80 * 1024;
/// Largest buffer that a shard frees itself: the next long body reuses it while it is in the CPU
/// caches. The kernel needs a millisecond to reclaim 32 MiB.
pub const FREED_HERE_BYTES_MAX: usize = 1024 * 1024;
/// Largest text buffer for prompts that a shard reuses between requests; a single buffer is
/// retained.
pub const TEXT_BUFFER_BYTES_MAX: usize = 128 * 1024;
/// Longest body that a shard scans itself if the scan takes at most [`SCAN_STEPS_MAX`]: text, of
/// which it scans some bytes per ns. Other bodies go to the offload thread.
pub const INLINE_SCAN_BYTES_MAX: usize = 640 * 1024;
/// Values, keys and escapes of such a body. At worst some 25 ns each.
pub const SCAN_STEPS_MAX: u32 = 24 * 1024;
/// Prompts that a shard normalizes itself (NFC), in bytes; nearly all text arrives normalized.
pub const INLINE_COMPOSED_BYTES_MAX: usize = 4 * 1024;
/// Requests of a shard that wait for its offload thread. Full: large bodies are refused as by a
/// full router, other prompts are not matched.
pub const OFFLOADED_MAX: usize = 256;
/// Longest wait for the offload thread. After it the request is refused as by a full router.
pub const OFFLOAD_WAIT_MAX: Duration = Duration::from_secs(10);
/// An offload thread with jobs that finishes none for this long is stuck, and its shard counts as
/// stalled.
pub const OFFLOAD_STUCK_AFTER: Duration = OFFLOAD_WAIT_MAX;
/// A prompt that has waited longer for the offload thread is not run through its chat template.
pub const TEMPLATE_WAIT_MAX: Duration = Duration::from_millis(500);
/// Longest body for the template engine, which takes 2 to 5 us a KB (bench `render`).
pub const TEMPLATE_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest body with more than plain messages that a shard runs through an engine's own encoder
/// itself. Parsing and writing take at worst some 40 ns a byte.
pub const INLINE_ENCODED_BYTES_MAX: usize = 16 * 1024;
/// Steps of the template engine for a prompt: some 100 ms. With more, the prompt is not matched.
pub const TEMPLATE_STEPS_MAX: u64 = 2_000_000;
/// Depth of JSON that the scanner follows; deeper bodies are refused with 400.
pub const JSON_DEPTH_MAX: usize = 128;
/// Child lengths tried per matched block and per prompt; at the limit the walk stops.
pub const WALK_PROBES_MAX: usize = 65_536;
/// Child lengths for a walk on a shard. A longer prompt that needs more is walked again on the
/// offload thread.
pub const INLINE_PROBES_MAX: usize = 41_984;
/// Longest block in bytes that the index stores; longer blocks end the chain.
pub const BLOCK_BYTES_MAX: usize = 32_766;
/// Stored in place of a block's length: a block inside an image, without bytes of its own.
pub const INNER_BLOCK: u16 = 32_767;
/// Bytes of an image in a prompt's text: its name, padded. Equals the text weight of the tokens of
/// a usual image.
pub const IMAGE_TEXT_BYTES: usize = 4_096;
/// Byte around the name of an image in a prompt's text, and the padding behind it. No UTF-8 text
/// contains this byte.
pub const IMAGE_FILL: u8 = 0xff;
/// Longest name of an image. The prompt behind an image with a longer name is not matched.
pub const IMAGE_NAME_BYTES_MAX: usize = 128;
/// Images of a prompt that get a name. The prompt behind the last of them is not matched.
pub const NAMED_IMAGES_MAX: usize = 256;
/// Bytes of images of a prompt that get a name, as sent: 10 to 80 ms on the offload thread. The
/// prompt behind these images is not matched.
pub const NAMED_IMAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Prompts longer than this are matched only up to it.
pub const PROMPT_BYTES_MATCHED_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a chunk: the unit in which prompts sent to ranks without KV events are remembered. Some
/// 128 tokens: each chunk costs its owner up to three cache misses, and a shorter common prefix is
/// hardly worth a detour.
pub const APPROXIMATE_CHUNK_BYTES: usize = 512;
/// Bytes of a chunk of prompts on their way to ranks with KV events. Coarser: it only has to
/// recognize siblings of a burst.
pub const SPECULATIVE_CHUNK_BYTES: usize = 1_024;
/// Paths whose last report to their owner a shard remembers; 16 bytes each.
pub const REPORTED_PATHS_MAX: usize = 4_096;
/// Chunks of a prompt that are remembered; chunks behind them are not.
pub const ROUTED_CHUNKS_MAX: usize = 1_024;
/// Routed prompts of a shard that wait for its own slice. Full: the prompt is dropped and counted
/// (it is a hint).
pub const ROUTED_OWN_MAX: usize = 256;
/// Work that a shard does for KV events before it lets requests run again.
pub const APPLY_OPS_PER_TURN: usize = 1_024;
/// Ranks that are known to hold parts of a waiting request's prompt; with more, the ranks with the
/// shortest parts are dropped.
pub const HOLDINGS_MAX: usize = 16;
// Topic: Queues and streams.
/// Number of priority classes; 0 is served first.
pub const QUEUE_CLASSES: u8 = 4;
/// Flows (tenant and model) of a class that keep their place in the order without waiting requests.
/// Full: all idle flows are forgotten, so that a returning tenant is served a little early.
pub const IDLE_FLOWS_MAX: usize = 4_096;
/// Period in which a queue's owner checks again a queue that only the passing of time can unblock.
pub const QUEUE_RECHECK: Duration = Duration::from_millis(50);
/// Period of comments to a streaming client while its request waits (`queue.sse_comments`). Proxies
/// close a silent connection after 30 s or more.
pub const QUEUE_COMMENT_PERIOD: Duration = Duration::from_secs(2);
/// Bytes of an engine's error that are sent to a client after its stream has begun; the rest is not
/// read.
pub const ENGINE_ERROR_BYTES_MAX: usize = 64 * 1024;
/// Token ids of a stream that are stored with `retry.mid_stream`, the prompt's included: 256 KiB. A
/// longer stream is relayed as usual, but no other worker can continue it.
pub const CONTINUED_IDS_MAX: usize = 65_536;
/// Bytes of an event of such a stream; the first event has the ids of the prompt.
pub const CONTINUED_EVENT_BYTES_MAX: usize = 512 * 1024;
/// Bytes of a request for which another worker can continue the stream: longer text has too many
/// ids.
pub const CONTINUED_BODY_BYTES_MAX: usize = 256 * 1024;
/// Period in which the latency histograms are sent to the control plane.
pub const HISTOGRAM_PERIOD: Duration = Duration::from_secs(1);

// Topic: Prefill and decode.
/// Product of prompts and samples of a request that a prefill rank may hand to a decode rank. A
/// request with more is not split, and is refused if no rank computes it whole.
pub const SPLIT_ITEMS_MAX: u32 = 4_096;
/// Members of a body that a KV transfer may have to change, repeated members included. A body with
/// more is not split.
pub const SPLIT_MEMBERS_MAX: usize = 64;
/// Bytes of a prefill rank's answer, or of a single event of it, that are buffered for parsing.
/// With more, the KV transfer has failed: decode needs a few kilobytes of it.
pub const PREFILL_ANSWER_BYTES_MAX: usize = 1024 * 1024;

// Topic: Replicas.
/// Other replicas that this router reads. Further replicas are ignored and counted; limits do not
/// include them.
pub const REPLICAS_MAX: usize = 32;
/// Own messages that wait for the NATS client or for a peer, and NATS messages that wait for the
/// control plane. Full: dropped and counted; the next full report, a second later, corrects the
/// loss.
pub const REPLICA_MESSAGES_MAX: usize = 1_024;
/// URLs that `replicas.peers` may have.
pub const REPLICA_PEERS_MAX: usize = 16;
/// Readers of this router's messages: during an upgrade, two processes of each peer.
pub const PEER_READERS_MAX: usize = 2 * REPLICA_PEERS_MAX;
const _: () = assert!(PEER_READERS_MAX < ADMIN_CONNECTIONS_MAX);
/// Readers among them that are not routers.
pub const PEER_WATCHERS_MAX: usize = 4;
/// Bytes of own messages that wait for a peer. Full: as [`REPLICA_MESSAGES_MAX`].
pub const PEER_UNREAD_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Messages of all peers that wait for the control plane. Full: they wait in the peers.
pub const PEER_MESSAGES_MAX: usize = 32;

// Topic: Shards.
/// Period in which a shard reports progress.
pub const SHARD_BEAT_PERIOD: Duration = Duration::from_millis(250);
/// A shard without progress for this long is stalled: the router is not ready, and reports it.
pub const SHARD_STALLED_AFTER: Duration = Duration::from_secs(1);

// Topic: Front door.
/// Longest PROXY header that is read. A longer header ends the connection. Addresses take 232
/// bytes; the rest is for extensions of load balancers.
pub const PROXY_HEADER_BYTES_MAX: usize = 4_096;
/// Members of `X-Forwarded-For` that are read, from the last on. At the limit, the client is the
/// last member that was read.
pub const FORWARDED_HOPS_MAX: usize = 32;
/// Forebay routers that a request may have passed before this router. A request with more is in a
/// loop.
pub const ROUTER_HOPS_MAX: usize = 4;
/// Entries of `client.trusted`; `forebay check` reports more as an error. Each costs some ns for
/// each connection.
pub const TRUSTED_NETS_MAX: usize = 256;

/// Entries of `cors.origins`; `forebay check` reports more as an error. Each is compared with the
/// origin of a request.
pub const ORIGINS_MAX: usize = 256;

/// Tables `[[model]]`; `forebay check` reports more as an error. Each name is compared with the
/// name in a request.
pub const MODEL_TABLES_MAX: usize = 256;

/// Tables `[[adapter]]`; `forebay check` reports more as an error.
pub const ADAPTER_TABLES_MAX: usize = 256;
/// Adapter requests under way to the control plane. Full: a shard retries.
pub const ADAPTER_REQUESTS_MAX: usize = 256;
/// Longest time that a request waits for its adapter to load.
pub const ADAPTER_WAIT_MAX: Duration = Duration::from_secs(120);
/// A worker that refused an adapter is not retried for this long while requests wait for the
/// adapter.
pub const ADAPTER_REFUSED_TIME: Duration = Duration::from_secs(10);
/// The same, while another worker has the adapter.
pub const ADAPTER_RETRY_TIME: Duration = Duration::from_mins(1);
/// A worker that has loaded an adapter has to list it within this time; otherwise the load is
/// retried.
pub const ADAPTER_LISTED_MAX: Duration = Duration::from_secs(40);

/// Names in `session.fields`, and in `session.members`; `forebay check` reports more as an error.
/// Each is compared with the fields or members of a request.
pub const SESSION_NAMES_MAX: usize = 8;

// Topic: Admin API.
/// Open connections of the admin API. A further connection ends the connection that has been silent
/// longest.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
/// A connection of the admin API ends this long after its last call began.
pub const ADMIN_IDLE_MAX: Duration = Duration::from_secs(60);
/// Admin API calls under way on the clients' port. A further call gets a 429.
pub const CLIENT_PORT_CALLS_MAX: usize = 16;
/// Browsers that have the live page open. A further browser gets a 503.
pub const LIVE_VIEWERS_MAX: usize = 16;
/// Seconds of figures that a new viewer of the live page gets at once. Older figures are dropped.
pub const LIVE_HISTORY_MAX: usize = 60;
/// Time over which `/workers`, the live page and `forebay top` take the mean time to the first
/// token of each rank. Older streams do not count.
pub const TTFT_HISTORY_MAX: Duration = Duration::from_secs(60);
/// Past events that the live page can show.
pub const LIVE_EVENTS_MAX: usize = 64;
/// Longest TLS handshake of a caller of the admin API.
pub const ADMIN_HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Bytes of the file that `admin_token_file` names.
pub const TOKEN_BYTES_MAX: usize = 4_096;

// Topic: Answers.
/// Bytes of an event that a stream holds back until its end has arrived. A longer event is relayed
/// in parts.
pub const HELD_EVENT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the object in which an engine reports the tokens of an answer. A longer object is not
/// read.
pub const USAGE_BYTES_MAX: usize = 16 * 1024;
/// Tokens of a kind that an answer can have cost. Higher counts are clamped.
pub const USAGE_TOKENS_MAX: u64 = 1 << 24;

// Topic: Keys, tokens and TLS.
/// API keys of a file. A file with more is refused.
pub const API_KEYS_MAX: usize = 65_536;
/// Bytes of the file that `api_keys` names. A longer file is refused.
pub const API_KEY_FILE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a key that a client sends. A longer value is no key.
pub const API_KEY_BYTES_MAX: usize = 512;
/// Models that a key may be limited to.
pub const API_KEY_MODELS_MAX: usize = 64;
/// Bytes of a JSON Web Token. A longer token is refused before it is parsed.
pub const JWT_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a set of keys for tokens (JWKS). A longer set is refused.
pub const JWKS_BYTES_MAX: usize = 256 * 1024;
/// Keys of such a set. A set with more is refused.
pub const JWKS_KEYS_MAX: usize = 64;
/// Verified tokens that a shard remembers. At the limit it forgets all of them.
pub const JWT_CACHED_MAX: usize = 1_024;
/// Bytes of a model name.
pub const MODEL_NAME_BYTES_MAX: usize = 512;
/// Bytes of a tenant's name, and of a key's id.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// Tenants with their own number, tenants of `[[tenant]]` first. Further tenants share a number.
pub const TENANTS_MAX: usize = 256;
/// Bytes that a server buffers of a handshake without a client certificate: the longest record. A
/// browser's first message has 2 KB.
pub const TLS_HELLO_BYTES_MAX: usize = 20 * 1024;
/// Bytes of a TLS message that a session buffers until the rest arrives: the longest handshake
/// message of rustls, with its records. With more, the connection ends.
pub const TLS_MESSAGE_BYTES_MAX: usize = 96 * 1024;
/// Bytes that are encrypted at a time, some 50 us. Further bytes wait until these are sent.
pub const TLS_PIECE_BYTES: usize = 64 * 1024;
/// Ciphertext of a long body that is received at once.
pub const TLS_READ_BYTES: usize = 64 * 1024;
/// Bytes of a file with certificates or a key.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Certificates of a router; `forebay check` reports more as an error.
pub const CERTIFICATES_MAX: usize = 256;
/// Addresses that a router listens on beside `listen`; `forebay check` reports more as an error.
pub const LISTENERS_MAX: usize = 16;

// Topic: Log and traces.
/// Period between two log lines about a lack of sockets, per shard.
pub const LACK_LOG_PERIOD: Duration = Duration::from_secs(10);

/// Traces under way from a shard to the control plane, which takes them ten times a second. Full:
/// the trace is dropped and counted.
pub const TRACE_RING_MAX: usize = 1_024;
/// Steps in the trace of a request; further steps are left out.
pub const TRACE_STEPS_MAX: usize = 32;
/// Bytes of a client's text, such as the path, in a trace or in a record; the rest is cut off.
pub const RECORDED_TEXT_BYTES_MAX: usize = 256;
/// Longest `tracestate` that a span repeats (W3C Trace Context, section 3.3.1.5). Workers get it at
/// any length.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// Spans that wait for the collector. Full: the span is dropped and counted.
pub const TRACE_SPANS_WAITING_MAX: usize = 4_096;
/// Spans that wait, in bytes of JSON.
pub const TRACE_BYTES_WAITING_MAX: usize = 4 * 1024 * 1024;
/// Spans of an export; exports run one after another.
pub const TRACE_BATCH_SPANS_MAX: usize = 1_024;
/// Longest time that a span waits for further spans of its export.
pub const TRACE_BATCH_AGE_MAX: Duration = Duration::from_secs(1);
/// Longest pause that a collector may request before its second try; with a longer pause there is
/// no second try.
pub const TRACE_RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the last export at the end of the process.
pub const TRACE_FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// Log lines that wait to be written. Full: the line is dropped and counted.
pub const LOG_LINES_MAX: usize = 8_192;
/// Log lines that wait, in bytes.
pub const LOG_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Lines about workers that a place in the code writes within [`LOG_ALIKE_PERIOD`]. Full: a single
/// line has the count of further lines.
pub const LOG_ALIKE_LINES_MAX: u32 = 10;
/// Period in which [`LOG_ALIKE_LINES_MAX`] lines pass.
pub const LOG_ALIKE_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for the last log lines at the end of the process.
pub const LOG_FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

// Topic: Recordings and snapshots.
/// Notes of requests that wait for `forebay record`. Full: the note is dropped and counted.
pub const REQUEST_NOTES_MAX: usize = 2_048;
/// Bytes of a prompt for each key of a note, about 32 tokens.
pub const NOTE_PART_BYTES: usize = 128;
/// Most keys of a note: 1 MiB of a prompt. The rest of the prompt has no keys.
pub const NOTE_PARTS_MAX: usize = 8_192;
/// Most prompt parts in a simulated cache of a ladder: 512 MiB of text in about 400 MB. Full: the
/// least recently used part is removed.
pub const LADDER_PARTS_MAX: usize = 1 << 22;
/// Most requests of a ladder without an end; further requests are left out and counted. Also the
/// most ends of prompts that wait for a next turn.
pub const LADDER_PENDING_MAX: usize = 1 << 18;

/// Time after the start for a feed to claim its rank's part of a snapshot, and for the engine to
/// confirm the blocks. Unclaimed parts and unconfirmed blocks are forgotten.
pub const RESTORE_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the last snapshot of a process that ends.
pub const LAST_SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(20);

const _: () = assert!(RANKS_MAX <= u16::MAX as usize && RANKS_MAX.is_multiple_of(64));
const _: () = assert!(WORKERS_MAX <= RANKS_MAX);
const _: () = assert!(2 * SHARD_BEAT_PERIOD.as_millis() < SHARD_STALLED_AFTER.as_millis());
const _: () = assert!(SHARD_BEAT_PERIOD.as_millis() <= HISTOGRAM_PERIOD.as_millis());
const _: () = assert!(IMAGE_NAME_BYTES_MAX + 2 <= IMAGE_TEXT_BYTES);
const _: () = assert!(IMAGE_TEXT_BYTES <= BLOCK_BYTES_MAX);
const _: () = assert!(BLOCK_BYTES_MAX < INNER_BLOCK as usize && INNER_BLOCK < 1 << 15);
// Seven digits and a comma for each id.
const _: () = assert!(CONTINUED_EVENT_BYTES_MAX >= 8 * CONTINUED_IDS_MAX);
const _: () = assert!(APPROXIMATE_CHUNK_BYTES <= BLOCK_BYTES_MAX);
const _: () = assert!(APPROXIMATE_CHUNK_BYTES.is_multiple_of(64));
const _: () = assert!(SPECULATIVE_CHUNK_BYTES <= BLOCK_BYTES_MAX);
