//! Every fixed limit, with its unit and what happens when it is reached. Limits that operators tune
//! are keys of the config file (`config::schema`); these are the ones that size arrays and rings.

use std::time::Duration;

/// Most ranks of one fleet. Further ranks are refused with a log line and not routed to. A set of
/// ranks in the index has a bit for each.
pub const RANKS_MAX: usize = if cfg!(feature = "ranks_4096") { 4_096 } else { 1_024 };
/// Most pools, and most queues: one of each rank, or one of each pool. The pool of a model's
/// prefill ranks has the number of its other pool plus [`RANKS_MAX`].
pub const POOLS_MAX: usize = 2 * RANKS_MAX;
/// Most KV pools that ranks share, by name and model. What further ones hold counts for nothing.
pub const KV_POOLS_MAX: usize = 64;
/// Longest name of a KV pool: a label of metrics. Longer ones are an error of the configuration.
pub const KV_POOL_NAME_BYTES_MAX: usize = 64;
/// The file of `forebay simulate --engine`: ten figures.
pub const ENGINE_FILE_BYTES_MAX: usize = 64 * 1024;
/// The file of `discovery.file`: some hundred bytes for each worker.
pub const WORKERS_FILE_BYTES_MAX: usize = 1 << 20;
/// Longest file of a configuration that is read again.
pub const CONFIG_BYTES_MAX: usize = 16 << 20;
/// Longest tokenizer or template. Those of today have up to some 35 MB.
pub const MODEL_FILE_BYTES_MAX: usize = 256 << 20;
/// Longest name of a revision in a cache of models.
pub const REVISION_BYTES_MAX: usize = 4_096;
/// Longest time in which an engine does what it is told: it may copy its weights.
pub const ENGINE_CALL_TIME_MAX: Duration = Duration::from_mins(5);
/// Most calls of engines under way that the admin API hands on; further ones are refused.
pub const ENGINE_CALLS_MAX: usize = 4;
/// Most engines that are asked at once for these calls; the others wait.
pub const ENGINES_CALLED_MAX: usize = 64;
/// Bytes of all answers to one of these calls, shared evenly. What is longer is cut.
pub const ENGINE_ANSWERS_BYTES_MAX: usize = 8 << 20;
/// Longest time that an answer with SRV records holds, whatever its TTL: workers come and go.
pub const SRV_TTL_MAX: Duration = Duration::from_mins(1);
/// Longest name, and longest URL, of a worker that the admin API adds; longer ones are refused.
pub const WORKER_NAME_BYTES_MAX: usize = 256;
/// Longest `api_key` of a worker that the admin API adds; longer ones are refused.
pub const WORKER_API_KEY_BYTES_MAX: usize = 4_096;
/// Most workers of one fleet; `forebay check` reports more as an error. A worker that was removed
/// keeps its place for its address; `POST /workers` is refused when all are given.
pub const WORKERS_MAX: usize = 1_024;
/// Longest file of `workers_state`: a line for each worker. A longer one counts as broken.
pub const WORKERS_STATE_BYTES_MAX: usize = 8 << 20;
/// Longest list of the workers' models that one process leaves to the next. The next process reads
/// no longer one.
pub const MODEL_MEMORY_BYTES_MAX: usize = 8 << 20;
/// Most models with their own label in the metrics; further ones share the label `other`.
pub const MODELS_MAX: usize = 64;
/// Most shards of one process; `forebay check` reports more as an error.
pub const SHARDS_MAX: usize = 64;

/// KV batches waiting between the control plane and one shard. Full: the feed stops reading its
/// socket.
pub const KV_RING_BATCHES_MAX: usize = 1_024;
/// Operations in one KV batch. A larger engine batch is split.
pub const KV_BATCH_OPS_MAX: usize = 512;
/// Blocks of one rank that wait for a parent that was never seen, and bytes of their text. Full:
/// the oldest are dropped and counted. Some 400 KB a rank at most, and no more than what a start-up
/// or a replay gets out of order.
pub const ORPHAN_BLOCKS_MAX: usize = 1_024;
/// See [`ORPHAN_BLOCKS_MAX`].
pub const ORPHAN_BYTES_MAX: usize = 128 * 1024;
/// Load reports waiting between the control plane and one shard: one of every rank. Full: the
/// report is dropped and counted; the rank's next one comes within a second.
pub const LOAD_RING_MAX: usize = RANKS_MAX;
/// Blocks of one rank that are known not to be text. Full: the oldest are forgotten, and what
/// continues them waits as an orphan.
pub const OPAQUE_BLOCKS_MAX: usize = 4_096;
/// Commands waiting between the control plane and one shard. Full: control tries again on its next
/// tick.
pub const COMMAND_RING_MAX: usize = 16;
/// Messages waiting from one shard to another. Full: hints are dropped and counted, others are kept
/// by their sender.
pub const MESH_RING_MAX: usize = 256;
/// Longest id of a response that is remembered; vLLM's have 37 bytes. A longer one is never known.
pub const RESPONSE_ID_BYTES_MAX: usize = 64;
/// Responses whose worker each shard remembers: one half of them for sure. Full: the older half is
/// forgotten. Some 6 MB a shard, taken with the first response.
pub const KEPT_RESPONSES_MAX: usize = 2 * 28_672;
/// The id of a response stands in so many of the first bytes of the answer, or is not found.
pub const RESPONSE_ID_SEARCH_BYTES_MAX: usize = 16 * 1024;
/// Latency buffers under way from a shard to the control plane. Full: the shard keeps recording.
pub const HISTOGRAM_RING_MAX: usize = 4;

/// Bytes of one read from a socket; also the size of a pooled buffer.
pub const READ_BYTES: usize = 16 * 1024;
/// The same for sockets that carry a stream of small events, or nothing, for a long time: thousands
/// of them wait in a read at once, and their buffers should stay in the caches.
pub const STREAM_READ_BYTES: usize = 4 * 1024;
/// Bytes of the first read where a long body is expected; the rest is received where it is to stay.
/// So much moves to a small buffer. More would push the bodies of others out of the caches, and
/// would be copied.
pub const FIRST_READ_BYTES: usize = 2 * 1024;
/// Bytes of one read of a long body, which is received where it is to stay.
pub const READ_IN_PLACE_BYTES_MAX: usize = 128 * 1024;
/// Entries of a shard's submission queue; few, so that 50 shards fit into 8 MiB of locked memory.
/// Full: the rest is submitted in the next turn.
pub const SUBMISSIONS_MAX: u32 = 1_024;
/// Entries of a shard's completion queue. Full: the kernel keeps further completions.
pub const COMPLETIONS_MAX: usize = 4_096;
/// Buffers of `READ_BYTES` that a shard's kernel receives into; a power of two. None left: the
/// socket is read again after those that have come are given out.
pub const PROVIDED_BUFFERS: usize = 128;
/// Chunks that may wait in a socket. Past it the socket is not read until they are taken; what the
/// kernel receives until then still comes.
pub const CHUNKS_AHEAD_MAX: usize = 6;
/// Memory that the chunks waiting in all sockets of a shard may take. Past it, and until half of it
/// is taken, one chunk may wait in each, and only sockets are read that a task waits for.
pub const AHEAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Pooled buffers of each size a shard keeps; further ones are freed.
pub const POOLED_BUFFERS_MAX: usize = 512;
/// Idle upstream connections a shard keeps per address; further ones are closed.
pub const UPSTREAM_IDLE_MAX: usize = 1_024;
/// Interim heads (1xx) of one answer. Past it the exchange has failed: 502.
pub const INTERIM_HEADS_MAX: usize = 8;
/// A worker's host that acknowledges nothing for this long has vanished, and its connections end
/// (`TCP_USER_TIMEOUT`). Also for a worker that leaves bytes unread: not set where a body is longer
/// than [`READ_AT_ONCE_BYTES_MAX`].
pub const UNACKNOWLEDGED_TIME_MAX: Duration = Duration::from_secs(8);
/// A silent host is probed after this time, then once in [`KEEPALIVE_INTERVAL`],
/// [`KEEPALIVE_PROBES`] times.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// See [`KEEPALIVE_IDLE`].
pub const KEEPALIVE_PROBES: u32 = 3;
/// A request up to this length fits into the receive buffer of a worker that reads nothing.
pub const READ_AT_ONCE_BYTES_MAX: usize = 48 * 1024;
/// A pooled connection that ends within this time of a request was closed while it was idle. The
/// request is then written once more, on a fresh connection to the same worker. Later than this,
/// the worker may have read the request.
pub const STALE_CONNECTION_TIME_MAX: Duration = Duration::from_secs(1);
/// Longest body that a shard scans, renders and matches itself; see `shard/offload.rs` for longer
/// ones. At the worst some 8 ns a byte (`tools/holds`), so that the shard is held for less than a
/// millisecond. A prompt of 64 KiB is within it.
pub const INLINE_BODY_BYTES_MAX: usize = 80 * 1024;
/// Largest buffer that a shard frees itself: the next long body gets it, while it is in the caches.
/// The kernel needs a millisecond to take 32 MiB back.
pub const FREED_HERE_BYTES_MAX: usize = 1024 * 1024;
/// Largest buffer for the texts of prompts that a shard keeps from request to request: one.
pub const TEXT_KEPT_BYTES_MAX: usize = 128 * 1024;
/// Longest body that a shard scans itself if that takes at most [`SCAN_STEPS_MAX`]: text, of which
/// it reads some bytes a ns. Others go to the offload thread.
pub const INLINE_SCAN_BYTES_MAX: usize = 640 * 1024;
/// Values, keys and escapes of such a body. At the worst some 25 ns each.
pub const SCAN_STEPS_MAX: u32 = 24 * 1024;
/// Prompts that a shard composes itself (NFC), in bytes; nearly all text is composed as it comes.
pub const INLINE_COMPOSED_BYTES_MAX: usize = 4 * 1024;
/// Requests of one shard that wait for its offload thread. Full: large bodies are refused as by a
/// router that is full, other prompts are not matched.
pub const OFFLOADED_MAX: usize = 256;
/// Longest wait for the offload thread. Past it the request is refused as by a router that is full.
pub const OFFLOAD_WAIT_MAX: Duration = Duration::from_secs(10);
/// An offload thread that has jobs and finishes none for this long stands still, and its shard
/// counts as stalled.
pub const OFFLOAD_STUCK_AFTER: Duration = OFFLOAD_WAIT_MAX;
/// A prompt that has waited longer for the offload thread is not run through its chat template any
/// more.
pub const TEMPLATE_WAIT_MAX: Duration = Duration::from_millis(500);
/// Longest body that is put through the template engine, which takes 2 to 5 us a KB (bench
/// `render`).
pub const TEMPLATE_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Steps of the template engine for one prompt: some 100 ms. Past it the prompt is not matched.
pub const TEMPLATE_STEPS_MAX: u64 = 2_000_000;
/// Depth of JSON that the scanner follows; deeper bodies are refused with 400.
pub const JSON_DEPTH_MAX: usize = 128;
/// Child lengths tried per matched block and per prompt; past it the walk stops where it is.
pub const WALK_PROBES_MAX: usize = 65_536;
/// The same for a walk on a shard. A longer prompt that needs more is walked again elsewhere.
pub const INLINE_PROBES_MAX: usize = 41_984;
/// Longest block in bytes that the index knows; longer blocks end the chain (they are not stored).
pub const BLOCK_BYTES_MAX: usize = 32_766;
/// In the place of a block's bytes: a block inside of an image, which has no bytes of its own.
pub const INNER_BLOCK: u16 = 32_767;
/// Bytes that an image is in a prompt's text: its name, filled up. What the tokens of a usual image
/// weigh as text.
pub const IMAGE_TEXT_BYTES: usize = 4_096;
/// Around the name of an image in a prompt's text, and behind it. No UTF-8 text has the byte.
pub const IMAGE_FILL: u8 = 0xff;
/// Longest name of an image. What follows an image with a longer one is not matched.
pub const IMAGE_NAME_BYTES_MAX: usize = 128;
/// Images of one prompt that get a name. What follows the others is not matched.
pub const NAMED_IMAGES_MAX: usize = 256;
/// Bytes of images of one prompt that get a name, as they are sent: 10 to 80 ms on the offload
/// thread. What follows the others is not matched.
pub const NAMED_IMAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Prompts longer than this are matched only up to it.
pub const PROMPT_BYTES_MATCHED_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a chunk: the unit in which prompts sent to ranks without KV events are remembered. Some
/// 128 tokens: each chunk costs its owner a cache miss or three, and a shorter common beginning is
/// hardly worth a detour.
pub const APPROXIMATE_CHUNK_BYTES: usize = 512;
/// The same for prompts on their way to ranks with KV events. Coarser: it only has to tell siblings
/// of one burst.
pub const SPECULATIVE_CHUNK_BYTES: usize = 1_024;
/// Paths of which a shard knows when it told their owner last; 16 bytes each.
pub const TOLD_MAX: usize = 4_096;
/// Chunks of one prompt that are remembered; what comes behind them is not.
pub const ROUTED_CHUNKS_MAX: usize = 1_024;
/// Routed prompts that a shard has waiting for its own slice. Full: the prompt is dropped and
/// counted (it is a hint).
pub const ROUTED_OWN_MAX: usize = 256;
/// Work that a shard does for KV events before it lets requests run again.
pub const APPLY_OPS_PER_TURN: usize = 1_024;
/// Ranks that a waiting request is known to have parts of its prompt on; of more, those that hold
/// least are left out.
pub const HOLDINGS_MAX: usize = 16;
/// Flows (tenant and model) of one class that keep their place in the order though they have
/// nothing waiting. Full: all idle ones are forgotten, which lets a tenant that comes back be
/// served a little early.
pub const IDLE_FLOWS_MAX: usize = 4_096;
/// How often a home looks again at a queue that is held up by what only time changes.
pub const QUEUE_RECHECK: Duration = Duration::from_millis(50);
/// How often a streaming client hears that its request still waits (`queue.sse_comments`). Proxies
/// give a silent connection up after 30 s or more.
pub const QUEUE_COMMENT_PERIOD: Duration = Duration::from_secs(2);
/// Bytes of an engine's error that a client is told of whose stream had begun; the rest is not
/// read.
pub const ENGINE_ERROR_BYTES_MAX: usize = 64 * 1024;
/// Token ids of one stream that are kept with `retry.mid_stream`, the prompt's among them: 256 KiB.
/// A longer stream passes as before, and no other worker goes on with it.
pub const CONTINUED_IDS_MAX: usize = 65_536;
/// Bytes of one event of such a stream; the first one has the ids of the prompt.
pub const CONTINUED_EVENT_BYTES_MAX: usize = 512 * 1024;
/// Bytes of a request whose stream can go on elsewhere: more text has too many ids.
pub const CONTINUED_BODY_BYTES_MAX: usize = 256 * 1024;
/// How often the latency histograms travel to the control plane.
pub const HISTOGRAM_PERIOD: Duration = Duration::from_secs(1);

/// Prompts and samples of one request, multiplied, that are handed from a prefill rank to a decode
/// rank. A request with more is not split, and refused where nobody computes it whole.
pub const SPLIT_ITEMS_MAX: u32 = 4_096;
/// Members of a body that a KV transfer may have to change, repeated ones included. A body with
/// more is not split.
pub const SPLIT_MEMBERS_MAX: usize = 64;
/// Bytes of a prefill rank's answer, or of one event of it, that are kept to be read. Past it the
/// KV transfer has failed: what decode needs from it is a few kilobytes.
pub const PREFILL_ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Other replicas that are listened to. Further ones are ignored and counted; limits do not hold
/// together with them.
pub const REPLICAS_MAX: usize = 32;
/// Own messages that wait for the NATS client or for a peer, and those of NATS that wait for the
/// control plane. Full: dropped and counted; the next full report, a second later, makes up for
/// it.
pub const REPLICA_MESSAGES_MAX: usize = 1_024;
/// URLs that `replicas.peers` may have.
pub const REPLICA_PEERS_MAX: usize = 16;
/// Readers of this router's messages: during an upgrade, two processes of each peer.
pub const PEER_READERS_MAX: usize = 2 * REPLICA_PEERS_MAX;
const _: () = assert!(PEER_READERS_MAX < ADMIN_CONNECTIONS_MAX);
/// Readers among them that are no routers.
pub const PEER_WATCHERS_MAX: usize = 4;
/// Bytes of own messages that wait for one peer. Full: as [`REPLICA_MESSAGES_MAX`].
pub const PEER_UNREAD_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Messages of all peers that wait for the control plane. Full: they wait in the peers.
pub const PEER_MESSAGES_MAX: usize = 32;

/// How often a shard shows that it makes progress.
pub const SHARD_BEAT_PERIOD: Duration = Duration::from_millis(250);
/// A shard that has shown none for so long is stalled: the router is not ready, and says so.
pub const SHARD_STALLED_AFTER: Duration = Duration::from_secs(1);

/// Longest PROXY header that is read. A longer one ends the connection. Addresses take 232 bytes;
/// the rest is room for what balancers add.
pub const PROXY_HEADER_BYTES_MAX: usize = 4_096;
/// Members of `X-Forwarded-For` that are looked at, from the last one on. The client is the last
/// one seen then.
pub const FORWARDED_HOPS_MAX: usize = 32;
/// Routers of Forebay that a request may have come through before this one. A request through
/// more of them goes round.
pub const ROUTER_HOPS_MAX: usize = 4;
/// Entries of `client.trusted`; `forebay check` reports more as an error. Each costs some ns for
/// each connection.
pub const TRUSTED_NETS_MAX: usize = 256;

/// Entries of `cors.origins`; `forebay check` reports more as an error. Each is compared with the
/// origin of a request.
pub const ORIGINS_MAX: usize = 256;

/// Tables `[[model]]`; `forebay check` reports more as an error. Each name is compared with that of
/// a request.
pub const MODEL_TABLES_MAX: usize = 256;

/// Tables `[[adapter]]`; `forebay check` reports more as an error.
pub const ADAPTER_TABLES_MAX: usize = 256;
/// Requests under way to the control plane that ask for an adapter. Full: a shard asks again.
pub const ADAPTER_ASKS_MAX: usize = 256;
/// Longest time that a request waits for its adapter to be loaded.
pub const ADAPTER_WAIT_MAX: Duration = Duration::from_secs(120);
/// A worker that refused an adapter is not asked again for so long while requests wait for it.
pub const ADAPTER_REFUSED_TIME: Duration = Duration::from_secs(10);
/// The same, while another worker has it.
pub const ADAPTER_RETRY_TIME: Duration = Duration::from_mins(1);
/// A worker that has loaded an adapter lists it so soon, or is asked again.
pub const ADAPTER_LISTED_MAX: Duration = Duration::from_secs(40);

/// Names in `session.fields`, and in `session.members`; `forebay check` reports more as an error.
/// Each is compared with the fields or members of a request.
pub const SESSION_NAMES_MAX: usize = 8;

/// Open connections of the admin API. One more ends the one that has been silent longest.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
/// A connection of the admin API ends so long after its last call began.
pub const ADMIN_IDLE_MAX: Duration = Duration::from_secs(60);
/// Calls of the admin API under way by the port of clients. A further one gets a 429.
pub const CLIENT_DOOR_CALLS_MAX: usize = 16;
/// Browsers that the live page is open in. A further one gets a 503.
pub const LIVE_VIEWERS_MAX: usize = 16;
/// Events that the live page can look back on.
pub const LIVE_EVENTS_MAX: usize = 64;
/// Longest time that a caller of the admin API takes to shake hands.
pub const ADMIN_HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Bytes of the file that `admin_token_file` names.
pub const TOKEN_BYTES_MAX: usize = 4_096;

/// Bytes of an event that a stream holds back until its end has come. A longer one passes as it
/// comes.
pub const HELD_EVENT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the object in which an engine tells the tokens of an answer. A longer one is not read.
pub const USAGE_BYTES_MAX: usize = 16 * 1024;
/// Tokens of one kind that an answer can have cost. Higher counts are taken for this one.
pub const USAGE_TOKENS_MAX: u64 = 1 << 24;

/// API keys of one file. A file with more is refused.
pub const API_KEYS_MAX: usize = 65_536;
/// Bytes of the file that `api_keys` names. A longer one is refused.
pub const API_KEY_FILE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a key that a client sends. A longer one is no key.
pub const API_KEY_BYTES_MAX: usize = 512;
/// Models that one key may be limited to.
pub const API_KEY_MODELS_MAX: usize = 64;
/// Bytes of a JSON Web Token. A longer one is refused before it is read.
pub const JWT_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a set of keys for tokens (JWKS). A longer one is refused.
pub const JWKS_BYTES_MAX: usize = 256 * 1024;
/// Keys of such a set. A set with more is refused.
pub const JWKS_KEYS_MAX: usize = 64;
/// Verified tokens that a shard remembers. At the limit it forgets all of them.
pub const JWT_CACHED_MAX: usize = 1_024;
/// Bytes of the name of such a model.
pub const MODEL_NAME_BYTES_MAX: usize = 512;
/// Bytes of a tenant's name, and of a key's id.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// Tenants that are told apart, those of `[[tenant]]` first. Further ones count as one.
pub const TENANTS_MAX: usize = 256;
/// What a server keeps of a handshake in which the client shows no certificate: the longest record.
/// A browser's first message has 2 KB.
pub const TLS_HELLO_BYTES_MAX: usize = 20 * 1024;
/// Bytes of one message of the TLS layer that a session keeps until its rest has come: the longest
/// handshake message of rustls, with its records. Past it the connection ends.
pub const TLS_MESSAGE_BYTES_MAX: usize = 96 * 1024;
/// Bytes that are encrypted in one piece, some 50 us. What follows waits until they are sent.
pub const TLS_PIECE_BYTES: usize = 64 * 1024;
/// Ciphertext of a long body that is received at once.
pub const TLS_READ_BYTES: usize = 64 * 1024;
/// Bytes of a file with certificates or a key.
pub const TLS_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Certificates of a router; `forebay check` reports more as an error.
pub const CERTIFICATES_MAX: usize = 256;
/// Addresses that a router listens on beside `listen`; `forebay check` reports more as an error.
pub const LISTENERS_MAX: usize = 16;

/// Between two lines of the log about a lack of sockets, per shard.
pub const LACK_LOG_PERIOD: Duration = Duration::from_secs(10);

/// Traces under way from one shard to the control plane, which takes them ten times a second. Full:
/// the trace is dropped and counted.
pub const TRACE_RING_MAX: usize = 1_024;
/// Steps of one request that its trace has; further ones are left out.
pub const TRACE_STEPS_MAX: usize = 32;
/// Bytes of a text of a client, such as the path, in a trace or in a record; the rest is cut off.
pub const RECORDED_TEXT_BYTES_MAX: usize = 256;
/// Longest `tracestate` that a span repeats (W3C Trace Context, section 3.3.1.5). Workers get it at
/// any length.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// Spans that wait for the collector. Full: the span is dropped and counted.
pub const TRACE_SPANS_WAITING_MAX: usize = 4_096;
/// The same in bytes of JSON.
pub const TRACE_BYTES_WAITING_MAX: usize = 4 * 1024 * 1024;
/// Spans of one export, of which there is one at a time.
pub const TRACE_BATCH_SPANS_MAX: usize = 1_024;
/// A span waits no longer for others to go with it.
pub const TRACE_BATCH_AGE_MAX: Duration = Duration::from_secs(1);
/// Longest pause that a collector may ask for before its second try; past it there is none.
pub const TRACE_RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the last export at the end of the process.
pub const TRACE_FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// Lines of the log that wait to be written. Full: the line is dropped and counted.
pub const LOG_LINES_MAX: usize = 8_192;
/// The same in bytes.
pub const LOG_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest wait for the last lines of the log at the end of the process.
pub const LOG_FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

/// Notes of requests that wait for `forebay record`. Full: the note is dropped and counted.
pub const REQUEST_NOTES_MAX: usize = 2_048;
/// Bytes of a prompt that one key of a note stands for, about 32 tokens.
pub const NOTED_PART_BYTES: usize = 128;
/// Most keys of one note: 1 MiB of a prompt. What is behind has none.
pub const NOTED_PARTS_MAX: usize = 8_192;
/// Most parts of prompts that one cache of a ladder holds: 512 MiB of text in about 400 MB. Full:
/// the part that was used longest ago goes.
pub const LADDER_PARTS_MAX: usize = 1 << 22;
/// Most requests of a ladder that have no end yet; further ones are left out and counted. As many
/// ends of prompts wait for a next turn.
pub const LADDER_PENDING_MAX: usize = 1 << 18;

/// What a snapshot told of a rank and the engine has not confirmed so long after the start is
/// forgotten, or was never claimed.
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
