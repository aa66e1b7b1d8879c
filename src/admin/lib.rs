//! The admin API: metrics, the fleet as JSON, explanations, and operator calls.
//!
//! [`port`] owns the connections, [`access`] authorizes callers, [`routes`] lists the calls. Each
//! call is a [`question`] to the control plane's loop, which owns the answers. [`scrape`],
//! [`workers`] and [`windows`] write them from data that the loop lends ([`sources`]);
//! [`explain_thread`] has a thread of its own. [`engines`] forwards calls to engines. [`live`]
//! streams the same facts to the page that [`page`] serves. Runs on the control plane's thread.
//! Limits: [`port`] bounds connections and their time, `/metrics` has bounded label sets. Except
//! through [`engines`], no call reaches a worker, so calls cost the engines nothing.

mod access;
mod add_worker;
mod catalogue;
mod client_door;
mod worker_drain;
mod drop_in;
mod engine_call;
mod engines;
mod explain;
mod explain_words;
#[cfg(test)]
mod explain_tests;
mod explain_thread;
mod flow;
mod live;
mod metrics_text;
mod notes;
mod page;
mod port;
mod question;
mod reload;
mod replicas;
mod roles;
mod routes;
mod scrape;
mod scrape_choices;
mod scrape_flow;
mod scrape_load;
mod scrape_process;
mod scrape_replicas;
mod sleep_refusal;
mod socket;
mod scrape_tenants;
mod sources;
mod windows;
mod workers;

pub use access::{Access, AdminTokens};
pub use add_worker::{AddRefusal, AddWorkerRequest};
pub use catalogue::all_metrics;
pub use client_door::{ClientCallers, ClientPortDoor, client_door};
pub use engine_call::{CallAnswer, EngineCall, EngineCallRefusal, EngineReply};
pub use explain::ExplainRequest;
pub use explain_thread::{ExplainAnswer, ExplainFacts, ExplainThread};
pub use live::{LiveFeed, LiveSources, LiveViewer};
pub use notes::{NotePieces, NotesReader};
pub use port::{AdminAcceptor, AdminListener};
pub use question::{Question, Questions};
pub use reload::{ReloadRefusal, ReloadReport};
pub use roles::why_not;
pub use routes::{AdminRoute, admin_routes, serve};
pub use scrape::render as render_metrics;
pub use sleep_refusal::SleepRefusal;
pub use socket::{AdminSocket, SocketFile};
pub use sources::{
    FeedsView, FleetView, KvPoolView, RecordFigures, SavedSnapshot, ScrapeSources, ShardsView,
    SnapshotFigures, SpanFigures, WorkerSources,
};
pub use windows::{UnknownModel, WindowRequest, list as list_windows};
pub use worker_drain::{NoStreamMove, WorkerDrain};
pub use workers::{list as list_workers, named as worker_named};
