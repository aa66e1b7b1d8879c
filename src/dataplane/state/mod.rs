//! State of a shard, in parts by use: time and counters, buffers and connections to workers, the
//! current fleet, links to other shards. Knows no request.

pub(crate) mod connecting;
pub(crate) mod down;
pub(crate) mod env;
pub(crate) mod io;
pub(crate) mod leg;
pub(crate) mod links;
pub(crate) mod prompt_text;
pub(crate) mod pulse;
pub(crate) mod request_records;
pub(crate) mod routing;
pub(crate) mod shard;
pub(crate) mod slow_log;
pub(crate) mod trace_outlet;
pub(crate) mod workers;
