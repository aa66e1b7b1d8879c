//! Owner of the workers.

mod model_log;
mod model_memory;
mod probes;
mod sources;
mod workers_state;

pub(super) use model_log::{named, say_lengths, say_new, say_shared};
pub(super) use model_memory::{ModelMemory, file_of};
pub(super) use probes::Probes;
pub(super) use sources::{SourceNews, WorkerList, WorkerLists};
pub(super) use workers_state::{Confirmation, WorkerOrder, WorkersState};
