//! Every type that crosses a thread, and the rings that carry them. The tables of
//! docs/internals/threads.md list both. Holds `Send` data only, no behavior beyond building the
//! rings.

mod adapter;
mod admin_connector;
mod command;
mod facts;
mod prefill;
mod stored_response;
mod trace_record;
mod waiting;
mod wiring;

pub use adapter::{AdapterRefusal, AdapterRequest};
pub use admin_connector::{AdminConnectError, AdminConnector, is_on_client_port};
#[cfg(debug_assertions)]
pub use command::PlantedFault;
pub use command::{DrainOrder, MeshMessage, ShardCommand};
pub use facts::{Caller, Pin, RequestFacts};
pub use forebay_base::ResponseId;
pub use prefill::{
    AbortCall, EngineAnswer, LegCall, PrefillFault, PrefillLeg, PrefillOutcome, ReceivedHead,
};
pub use stored_response::{ResponsePlace, StoredResponse};
pub use trace_record::{
    LegTrace, RequestTrace, StepKind, TraceRecord, TraceStep, TracedAnswer, TracedRequest,
};
pub use waiting::{Holding, Ticket, Verdict, Waiter, WaitingPrompt};
pub use wiring::{ControlEnd, ShardEnd, ShardPeers, ShardPort, ToControl, wire};
