//! Upstream connections and the streaming of answers. Runs on the shard's thread, called by
//! `dataplane::request`. Owns the idle connections to workers. Holds at most two read buffers per
//! stream: a client that does not read stops the worker from being read. Never retries and never
//! chooses: it reports what happened.

mod chunk;
mod early_part;
mod error_body;
mod events;
mod exchange;
mod answer_start;
mod whole_answer;
mod resumable_relay;
mod key;
mod pool;
mod pump;
mod socket_options;
mod transcript;
mod tunnel;
mod tunnel_clock;
mod upstream;
mod watch;
mod websocket;

pub use answer_start::first_bytes;
pub use early_part::{EarlyPart, OpenEventStream};
pub use error_body::begins_with_error;
pub use events::{
    QueueStanding, StreamShape, encode_cut, encode_engine_error, encode_refused, encode_standing,
};
pub use exchange::{Outbound, send};
pub use key::UpstreamKey;
pub use pool::UpstreamPool;
pub use pump::{CompletedAnswer, PendingAnswer, relay};
pub use resumable_relay::relay_resumable;
pub use transcript::{Transcript, ask_for_ids};
pub use tunnel::{TunnelEnd, TunnelWatch, tunnel};
pub use tunnel_clock::{TunnelDirection, TunnelLimits};
pub use upstream::{Halves, Upstream, while_wanted};
pub use watch::{Client, Watch, WatchEnd};
pub use websocket::answers_key;
pub use whole_answer::{WholeAnswer, drain, gather};
