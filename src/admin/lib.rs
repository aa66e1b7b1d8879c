//! The admin API: metrics, the fleet as JSON, explanations, and operator calls.
//!
//! [`port`] owns the connections, [`access`] authorizes callers, [`routes`] lists the calls, and
//! [`form`] refuses what a call does not take. Each call is a [`question`] to the control plane's
//! loop, which owns the answers. [`metrics::render`], [`calls::workers`] and [`calls::windows`]
//! write answers from data that the loop lends ([`sources`]); [`explanation::explain_thread`] has a
//! thread of its own. [`calls::engines`] forwards calls to engines. [`live`] streams the same facts
//! to the page that [`page`] serves.
//! Runs on the control plane's thread. Limits: [`port`] bounds connections and their time,
//! `/metrics` has bounded label sets. Except through [`calls::engines`], no call reaches a worker,
//! so calls cost the engines nothing.

mod access;
mod calls;
mod metrics;
mod client_port;
mod explanation;
mod form;
mod live;
mod notes;
mod page;
mod port;
mod question;
mod readiness;
mod routes;
mod socket;
mod sources;

pub use access::{Access, AdminTokens};
pub use calls::add_worker::{AddRefusal, AddWorkerRequest};
pub use calls::engine_call::{EngineCall, EngineCallRefusal, EngineCallResult, EngineReply};
pub use calls::rank_faults::{callers, failure_help, is_callers_fault};
pub use calls::reload::{ReloadRefusal, ReloadReport};
pub use calls::roles::{lone_legs, why_not};
pub use calls::sleep_refusal::SleepRefusal;
pub use calls::windows::{
    UnknownModel, WindowRequest, cause_by, list as list_windows, opener, pool_name,
};
pub use calls::worker_drain::{NoStreamMove, WorkerDrain};
pub use calls::workers::{list as list_workers, named as worker_named};
pub use client_port::{ClientCallers, ClientPortConnector, client_port};
pub use explanation::explain::ExplainRequest;
pub use explanation::explain_thread::{ExplainFacts, ExplainReplySender, ExplainThread};
pub use form::AdminRoute;
pub use live::{LiveFeed, LiveSources, LiveViewer};
pub use metrics::catalogue::all_metrics;
pub use metrics::render::render as render_metrics;
pub use notes::{NotePieces, NotesReader};
pub use port::{AdminAcceptor, AdminListener};
pub use question::{Question, Questions};
pub use readiness::{
    PortCertificate, RouterReadiness, locked_out, missing_feeds, odd_prompts, suspect_feeds,
};
pub use routes::{admin_routes, serve};
pub use socket::{AdminSocket, SocketFile};
pub use sources::{
    FeedsView, FleetView, KvPoolView, ProcessFigures, ReloadFigures, SavedSnapshot, ScrapeSources,
    ShardsView, SnapshotFigures, SourceFault, SpanFigures, StateFileFigures, WorkerSource,
    WorkerSources, WorkerTrouble,
};
