//! Fast rendering of plain messages with a table of literals.
//!
//! For most templates the prompt of a plain conversation is `literal, content, literal, content, …
//! literal`. A literal depends only on the roles beside it and on its position in the conversation,
//! and contents are printed unchanged, or without whitespace at their ends. `learn` renders short
//! conversations of unique contents through the template and derives the table; `verify` then
//! renders some hundred random conversations both ways. After a single difference the plan is
//! dropped, and a narrower kind of conversation is tried ([`RoleSet`]). Contents with a string that
//! the template searches for (`</think>`) are never covered.
//!
//! Runs on any thread. Writing a prompt only allocates to grow the output.

mod kind;
mod learn;
mod literal;
mod slots;
mod triggers;
mod trim;
mod verify;
mod write;

pub(super) use write::Plan;

use super::renderer::Renderer;
use literal::Dates;

impl Plan {
    /// Learns the plan of a template; `probe` renders marks in place of dates.
    pub(super) fn learn(source: &str, probe: &Renderer) -> Option<Self> {
        kind::KINDS.into_iter().find_map(|kind| {
            let plan = learn::learn(kind, probe)?;
            let mut plan = verify::verify(plan, source, probe)?;
            plan.dates = Dates::Today;
            Some(plan)
        })
    }
}

#[cfg(test)]
mod tests;
