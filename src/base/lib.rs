//! Ids, units, limits, the clock and the invariant macro. Owns nothing, runs on any thread, imports
//! nothing.

mod clock;
mod document;
mod file_fault;
mod foreign_format;
mod ids;
mod invariant;
pub mod limits;
mod name_fault;
mod response_id;
mod router_id;
mod shown_seconds;
mod sockets;
mod text_file;
mod thread_name;
mod token_usage;
mod toml_fault;
mod trace_parent;
mod units;

pub use clock::{Clock, process_cpu_ns, since_1970};
pub use document::{EncodingFault, document_text, read_bytes, read_document};
pub use file_fault::FileFault;
pub use foreign_format::foreign_format;
pub use ids::{
    DpRank, ModelIndex, PoolIndex, QueueIndex, RankIndex, ShardIndex, TenantIndex, WorkerIndex,
};
pub use invariant::{broken_invariant_count, count_broken_invariant};
pub use name_fault::NameFault;
pub use response_id::ResponseId;
pub use router_id::RouterId;
pub use shown_seconds::shown_seconds;
pub use sockets::is_out_of_sockets;
pub use text_file::{open_file, read_file, read_text, replaceable_path};
pub use thread_name::ThreadName;
pub use token_usage::TokenUsage;
pub use toml_fault::TomlFault;
pub use trace_parent::{TRACEPARENT_BYTES, TraceParent};
pub use units::NanosSinceStart;
