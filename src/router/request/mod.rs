//! The state machine of a request, without I/O: [`RequestFlow`] takes events and returns actions.
//! `dataplane/request/deliver.rs` performs the actions on sockets, `tests/sim` on a schedule. Time,
//! random numbers and the state that a step may touch are arguments ([`Scene`]).

mod blame;
mod event;
mod failing;
mod flow;
mod flow_check;
mod meaning;
mod moving;
mod outlier;
mod pressure;
mod queueing;
mod scene;
mod split;
mod stages;
mod stop;

pub use blame::{FailedPair, Fault, Judgement, LegEnd, PairBlame, may_be_blamed};
pub use event::{Action, ChosenRanks, PrefillDispatch, RequestEvent, WaitEnd};
pub use flow::RequestFlow;
pub use meaning::{AnswerMeaning, SentCredentials};
pub use outlier::hold_against;
pub use pressure::{NewRequest, engine_refused};
pub use queueing::{TakeOutcome, Wait, wait_deadline};
pub use scene::Scene;
pub use split::Split;
pub use stages::{Loads, Matching, Ratios, Sends, StageRules, Stages};
pub use stop::{FailedAttempt, Stop, WorkerReply, body_too_large, in_flight_full, no_worker};
