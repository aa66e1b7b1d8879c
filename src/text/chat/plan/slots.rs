//! Slots of the table, by the properties that a literal or a trim depends on.

use crate::chat::message::ChatRole;

/// Number of places of a message that literals depend on: first, second, later.
const PLACES: usize = 3;

const ROLES: usize = 3;

fn place(index: usize) -> usize {
    index.min(PLACES - 1)
}

fn role_index(role: ChatRole) -> usize {
    match role {
        ChatRole::System => 0,
        ChatRole::User => 1,
        ChatRole::Assistant => 2,
    }
}

/// Slot of the literal before a message.
pub(super) fn slot_before(
    previous: Option<ChatRole>,
    role: ChatRole,
    index: usize,
    last: bool,
) -> usize {
    let previous = previous.map_or(ROLES, role_index);
    ((previous * ROLES + role_index(role)) * PLACES + place(index)) * 2 + usize::from(last)
}

/// Slot of the literal after the last message.
pub(super) fn slot_after(
    previous: Option<ChatRole>,
    role: ChatRole,
    index: usize,
    generates: bool,
) -> usize {
    slot_before(previous, role, index, generates)
}

/// Slot of the trim of a content.
pub(super) fn slot_trim(role: ChatRole, index: usize, last: bool) -> usize {
    (role_index(role) * PLACES + place(index)) * 2 + usize::from(last)
}

pub(super) const LITERAL_SLOTS: usize = (ROLES + 1) * ROLES * PLACES * 2;

pub(super) const TRIM_SLOTS: usize = ROLES * PLACES * 2;
