//! The fast way: what a template does to plain messages, as a table of literals.
//!
//! For most templates the prompt of a plain conversation is `literal, content, literal, content, …
//! literal`, where a literal depends only on the roles beside it and on where in the conversation
//! it stands, and contents are printed as they are or without whitespace at their ends. `learn`
//! renders short conversations of unique contents through the template and reads the table off;
//! `verify` then renders some hundred random ones both ways. A plan that differs once is thrown
//! away and a narrower kind of conversation is tried ([`RoleSet`]). Contents that hold a string
//! which the template searches for (`</think>`) are never covered.
//!
//! Runs on any thread. Writing a prompt allocates nothing but the growth of the output.

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
    /// Learns the plan of a template. `probe` renders with marks in place of dates.
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
