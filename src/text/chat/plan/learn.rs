//! Learns a plan from the renderings of short conversations.

use super::kind::RoleSet;
use super::literal::{Dates, TemplateLiteral};
use super::slots::{LITERAL_SLOTS, TRIM_SLOTS, slot_after, slot_before, slot_trim};
use super::triggers::Triggers;
use super::trim::{EDGES, Trim};
use super::write::Plan;
use crate::chat::message::ChatRole;
use crate::chat::renderer::Renderer;

/// The plan for a kind of conversation; `None` when a rendering does not fit.
pub(super) fn learn(kind: RoleSet, probe: &Renderer) -> Option<Plan> {
    let mut plan = Plan {
        kind,
        before: vec![None; LITERAL_SLOTS],
        after: vec![None; LITERAL_SLOTS],
        trims: vec![Trim::default(); TRIM_SLOTS],
        triggers: Triggers::default(),
        covers_blank: true,
        dates: Dates::Marks,
    };
    let mut trims = vec![None; TRIM_SLOTS];
    for roles in kind.sequences(kind.learnt_length()) {
        for generates in kind.generation_settings() {
            let gaps = rendered_gaps(probe, &roles, "", "", *generates)?;
            plan.take_literals(&roles, *generates, &gaps)?;
            let padded = rendered_gaps(probe, &roles, LEFT_SPACE, RIGHT_SPACE, *generates)?;
            take_trims(&roles, &gaps, &padded, &mut trims)?;
        }
    }
    for (slot, trim) in plan.trims.iter_mut().zip(trims) {
        *slot = trim.unwrap_or_default();
    }
    Some(plan)
}

impl Plan {
    fn take_literals(
        &mut self,
        roles: &[ChatRole],
        generates: bool,
        gaps: &[String],
    ) -> Option<()> {
        let mut previous = None;
        for (index, role) in roles.iter().enumerate() {
            let last = index + 1 == roles.len();
            let slot = self.before.get_mut(slot_before(previous, *role, index, last))?;
            settle(slot, TemplateLiteral::from_rendered(gaps.get(index)?)?)?;
            if last {
                let slot = self.after.get_mut(slot_after(previous, *role, index, generates))?;
                settle(slot, TemplateLiteral::from_rendered(gaps.get(index + 1)?)?)?;
            }
            previous = Some(*role);
        }
        Some(())
    }
}

/// Fills an empty slot; `None` when the slot has another value.
fn settle<T: PartialEq>(slot: &mut Option<T>, value: T) -> Option<()> {
    match slot {
        Some(known) => (*known == value).then_some(()),
        None => {
            *slot = Some(value);
            Some(())
        }
    }
}

/// The text before, between and after the contents.
fn rendered_gaps(
    probe: &Renderer,
    roles: &[ChatRole],
    left: &str,
    right: &str,
    generates: bool,
) -> Option<Vec<String>> {
    let contents: Vec<String> =
        (0..roles.len()).map(|index| format!("{left}{}{right}", core(index))).collect();
    let messages: Vec<(ChatRole, &str)> =
        roles.iter().copied().zip(contents.iter().map(String::as_str)).collect();
    let rendered = probe.render_plain(&messages, generates)?;
    let mut gaps = Vec::with_capacity(roles.len() + 1);
    let mut rest = rendered.as_str();
    for index in 0..roles.len() {
        let (gap, tail) = rest.split_once(&core(index))?;
        gaps.push(gap.to_owned());
        rest = tail;
    }
    gaps.push(rest.to_owned());
    // A content printed twice or out of order leaves a core in some gap.
    let clean = gaps.iter().all(|gap| !gap.contains(CORE));
    clean.then_some(gaps)
}

/// Learns the trims of contents from gaps with and without whitespace around the contents.
fn take_trims(
    roles: &[ChatRole],
    gaps: &[String],
    padded: &[String],
    trims: &mut [Option<Trim>],
) -> Option<()> {
    let mut rights = Vec::with_capacity(roles.len());
    let mut lefts = Vec::with_capacity(roles.len());
    for index in 0..=roles.len() {
        let gap = gaps.get(index)?;
        let padded = padded.get(index)?;
        let after = if index == 0 { &EDGES[..1] } else { &EDGES };
        let before = if index == roles.len() { &EDGES[..1] } else { &EDGES };
        let fits = |right: &super::trim::Edge, left: &super::trim::Edge| {
            let end = if index == 0 { "" } else { right.right_of(RIGHT_SPACE) };
            let start = if index == roles.len() { "" } else { left.left_of(LEFT_SPACE) };
            padded.strip_prefix(end).and_then(|rest| rest.strip_suffix(start)) == Some(gap)
        };
        let pairs = after.iter().flat_map(|right| before.iter().map(move |left| (right, left)));
        let (right, left) = pairs.into_iter().find(|(right, left)| fits(right, left))?;
        if index > 0 {
            rights.push(*right);
        }
        if index < roles.len() {
            lefts.push(*left);
        }
    }
    for (index, role) in roles.iter().enumerate() {
        let trim = Trim { left: *lefts.get(index)?, right: *rights.get(index)? };
        let last = index + 1 == roles.len();
        settle(trims.get_mut(slot_trim(*role, index, last))?, trim)?;
    }
    Some(())
}

fn core(index: usize) -> String {
    format!("{CORE}{index}Zq")
}

/// A content that no template prints or searches for.
const CORE: &str = "Xq7Kv";
/// Whitespace around a content. The two differ, also after any trim.
const LEFT_SPACE: &str = "\n\t\n";
const RIGHT_SPACE: &str = "\n  \n";
