//! Kinds of conversations that a plan can cover, from wide to narrow.

use crate::chat::ChatRole;
use std::fmt;

/// A set of role sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoleSet {
    system: System,
    /// After the system message, user and assistant alternate, and the user begins.
    takes_turns: bool,
    /// The last message is from the user.
    user_last: bool,
    /// Only conversations with the generation prompt.
    generates_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Anywhere,
    FirstOnly,
    Never,
}

/// Kinds in the order in which they are tried.
pub(super) const KINDS: [RoleSet; 10] = [
    RoleSet::new(System::Anywhere, false, false, false),
    RoleSet::new(System::Anywhere, false, false, true),
    RoleSet::new(System::FirstOnly, false, false, false),
    RoleSet::new(System::FirstOnly, true, false, false),
    RoleSet::new(System::FirstOnly, true, false, true),
    RoleSet::new(System::FirstOnly, true, true, false),
    RoleSet::new(System::FirstOnly, true, true, true),
    RoleSet::new(System::Never, true, false, false),
    RoleSet::new(System::Never, true, true, false),
    RoleSet::new(System::Never, true, true, true),
];

impl RoleSet {
    const fn new(system: System, takes_turns: bool, user_last: bool, generates_only: bool) -> Self {
        Self { system, takes_turns, user_last, generates_only }
    }

    /// True if a conversation of these roles is covered.
    pub(super) fn admits(self, roles: impl Iterator<Item = ChatRole>, generates: bool) -> bool {
        let mut last = None;
        // Number of messages of user and assistant so far.
        let mut turns = 0_usize;
        for (index, role) in roles.enumerate() {
            if role == ChatRole::System {
                let allowed = match self.system {
                    System::Anywhere => true,
                    System::FirstOnly => index == 0,
                    System::Never => false,
                };
                if !allowed {
                    return false;
                }
            } else {
                let users_turn = turns.is_multiple_of(2);
                if self.takes_turns && users_turn != (role == ChatRole::User) {
                    return false;
                }
                turns += 1;
            }
            last = Some(role);
        }
        last.is_some()
            && (generates || !self.generates_only)
            && (!self.takes_turns || turns > 0)
            && (!self.user_last || last == Some(ChatRole::User))
    }

    /// All covered sequences of up to `length_max` roles.
    pub(super) fn sequences(self, length_max: usize) -> Vec<Vec<ChatRole>> {
        let mut all: Vec<Vec<ChatRole>> = Vec::new();
        let mut longest = vec![Vec::new()];
        for _ in 0..length_max {
            let extend = |sequence: &Vec<ChatRole>| {
                ROLES.map(|role| sequence.iter().copied().chain([role]).collect::<Vec<_>>())
            };
            longest =
                longest.iter().flat_map(extend).filter(|roles| self.may_grow(roles)).collect();
            all.extend(
                longest.iter().filter(|roles| self.admits(roles.iter().copied(), true)).cloned(),
            );
        }
        all
    }

    /// True if a covered sequence may begin with these roles.
    fn may_grow(self, roles: &[ChatRole]) -> bool {
        let wider = Self { user_last: false, ..self };
        roles == [ChatRole::System] && self.system != System::Never
            || wider.admits(roles.iter().copied(), true)
    }

    /// Covered settings of `add_generation_prompt`.
    pub(super) fn generation_settings(self) -> &'static [bool] {
        if self.generates_only { &[true] } else { &[true, false] }
    }

    /// Length of the longest sequences to learn from, which fill every slot of the tables.
    pub(super) fn learnt_length(self) -> usize {
        if self.takes_turns { 7 } else { 4 }
    }

    /// Length of the sequences in which strings are tried: every role is once the last, and once
    /// before another role.
    pub(super) fn trial_length(self) -> usize {
        if self.takes_turns { 3 } else { 2 }
    }
}

impl fmt::Display for RoleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.system {
            System::Anywhere => "all roles in any order",
            System::FirstOnly if self.takes_turns => "system first or absent, then turns",
            System::FirstOnly => "system first or absent, then any order",
            System::Never => "no system message, turns",
        })?;
        f.write_str(if self.user_last { ", user last" } else { "" })?;
        f.write_str(if self.generates_only { ", with generation prompt" } else { "" })
    }
}

const ROLES: [ChatRole; 3] = [ChatRole::System, ChatRole::User, ChatRole::Assistant];
