//! Upstream connections and the streaming of answers. Runs on the shard's thread, called by
//! `dataplane::request`. Owns the idle connections to workers. Holds at most two read buffers per
//! stream: a client that does not read stops the worker from being read. Never retries and never
//! chooses: it reports what happened.

mod chunk;
mod early;
mod error_body;
mod events;
mod exchange;
mod first;
mod gather;
mod kept;
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

pub use early::{Begun, Early};
pub use error_body::begins_with_error;
pub use events::{
    QueueStanding, StreamShape, encode_cut, encode_engine_error, encode_refused, encode_standing,
};
pub use exchange::{Outbound, send};
pub use first::first_bytes;
pub use gather::{Gathered, drain, gather};
pub use kept::relay_kept;
pub use key::UpstreamKey;
pub use pool::UpstreamPool;
pub use pump::{Answer, Relayed, relay};
pub use transcript::{Transcript, ask_for_ids};
pub use tunnel::{TunnelEnd, TunnelWatch, tunnel};
pub use tunnel_clock::{Toward, TunnelLimits};
pub use upstream::{Halves, Upstream, while_wanted};
pub use watch::{Client, Over, Watch};
pub use websocket::answers_key;
