//! Queues for requests while no rank has room: lines with classes and fair shares ([`Home`], on the
//! shard that owns a queue), the waits of a shard's own requests ([`WaitTable`]), and entry
//! (`enter.rs`). Sans-IO: the shards and the simulator run the same code. Nothing polls: a queue is
//! served when a place was returned, when a request joined, or at [`Home::look_again_at`].

mod backlog;
mod bounds;
mod closed;
mod wait_table;
mod enter;
mod flows;
mod home;
mod line;
mod line_check;
mod outbox;
mod pair;
mod place;
mod waiter;

pub use closed::is_closed;
pub(crate) use closed::{closed_pool, has_share, is_relieved};
pub(crate) use enter::{Applicant, Entry, QueuePlace, Rejection};
pub use home::Home;
pub use line::TurnEnd;
pub use outbox::Outbox;
pub(crate) use pair::{WantedRanks, enter_by};
pub use wait_table::{NoWait, WaitTable};
pub use waiter::{prompt_tokens, tokens_to_compute};

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tenant_tests;
#[cfg(test)]
mod tests;
