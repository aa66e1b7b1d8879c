//! Blocks of KV-cache groups that do not keep whole prefixes: sliding windows, and states of Mamba
//! layers. Sans-IO; part of a rank's blocks, on the control plane's thread.
//!
//! All groups of a rank name a block by the same hash. Groups that need the same number of blocks
//! in a row form a window, and a window holds a block when each of its groups does. Windows have
//! trees of their own in the index ([`Tree::Window`](super::tier::Tree)), which contain a block
//! only while the rank holds its whole prefix.
//!
//! Bounded by the entries that the rank may have. Past the bound, or after a group that cannot be
//! interpreted, the windows are unknown until the next clear. The overlap from the index is then an
//! upper bound of the point at which the rank can resume.

use crate::ranks::rank_copy::GROUPS_MAX;
use forebay_index::WINDOWS_MAX;
use forebay_kv_decode::Attention;
use std::collections::HashMap;

/// Blocks behind which a rank can resume a prompt, as far as events show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// Behind each block of the rank.
    #[default]
    Anywhere,
    /// Behind a block at which all windows are whole; the blocks in a row of each window.
    Windows([Option<u16>; WINDOWS_MAX]),
    /// Behind some blocks of the rank; events do not show which.
    Unknown,
}

/// The windows of a rank.
#[derive(Debug, Default)]
pub(crate) struct RankWindows {
    /// Groups in the order of their bits, the lowest bit first.
    groups: Vec<Group>,
    /// Blocks in a row that each window takes.
    needs: [Option<u16>; WINDOWS_MAX],
    /// Groups that hold a hash, a bit each.
    held: HashMap<u64, u16, ahash::RandomState>,
    /// Stores of a hash by a group, beyond the first.
    more: HashMap<(u64, u16), u32, ahash::RandomState>,
    /// Windows with blocks in the index since the last clear, a bit each.
    posted: u8,
    is_lost: bool,
}

/// A KV-cache group that does not keep whole prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    /// Number of the group in events.
    name: u32,
    attention: Attention,
    block_tokens: u32,
    /// Place of the group's window.
    window: usize,
}

const _: () = assert!(GROUPS_MAX <= u16::BITS as usize && WINDOWS_MAX <= u8::BITS as usize);

/// Most hashes to search when a window gets a further group; with more, the windows are lost.
const HELD_BEFORE_GROUPS_MAX: usize = 16 * 1_024;

impl RankWindows {
    /// True while the rank has no windows.
    pub(crate) fn is_unused(&self) -> bool {
        self.groups.is_empty() && !self.is_lost
    }

    /// Windows with blocks in the index since the last clear, a bit each.
    pub(crate) fn posted(&self) -> u8 {
        self.posted
    }

    /// Blocks behind which the rank can resume, if its whole prefixes have blocks of that size.
    pub(crate) fn resume(&self, block_tokens: u32) -> Resume {
        // Windows in blocks of another size are whole at other points.
        let fits = |group: &Group| group.block_tokens == block_tokens;
        match self.groups.is_empty() {
            _ if self.is_lost => Resume::Unknown,
            true => Resume::Anywhere,
            false if self.groups.iter().all(fits) => Resume::Windows(self.needs),
            false => Resume::Unknown,
        }
    }

    /// Makes the windows unknown until the next clear.
    pub(crate) fn lose(&mut self) {
        let posted = self.posted;
        *self = Self { posted, is_lost: true, ..Self::default() };
    }

    /// Forgets blocks and groups, because a restarted engine may have other groups.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Approximate bytes of both maps.
    pub(crate) fn bytes(&self) -> usize {
        self.held.capacity() * size_of::<(u64, u16, u8)>()
            + self.more.capacity() * size_of::<((u64, u16), u32, u8)>()
    }

    /// Entries, for the rank's limit.
    pub(crate) fn len(&self) -> usize {
        self.held.len() + self.more.len()
    }

    /// True for a group that is part of a window.
    pub(crate) fn has(&self, name: u32) -> bool {
        self.groups.iter().any(|group| group.name == name)
    }

    /// Adds a group, unless known. `shrunk` gets hashes with the window, as a bit, that does not
    /// hold them any more. False if the event does not count.
    pub(crate) fn meet(
        &mut self,
        name: u32,
        attention: Attention,
        block_tokens: u32,
        mut shrunk: impl FnMut(u8, u64),
    ) -> bool {
        if self.is_lost {
            return false;
        }
        let known = self.groups.iter_mut().find(|group| group.name == name);
        if let Some(group) = known {
            let is_same = group.attention == attention;
            if attention == Attention::State && is_same {
                // vLLM also reports states inside of a block, at which a prompt cannot resume.
                let is_part = block_tokens < group.block_tokens;
                group.block_tokens = group.block_tokens.max(block_tokens);
                return !is_part;
            }
            if !is_same || group.block_tokens != block_tokens {
                self.lose();
            }
            return !self.is_lost;
        }
        let place = need(attention, block_tokens).and_then(|need| self.window(need));
        let Some(window) = place.filter(|_| self.groups.len() < GROUPS_MAX) else {
            self.lose();
            return false;
        };
        if self.held.len() > HELD_BEFORE_GROUPS_MAX {
            self.lose();
            return false;
        }
        let before = self.groups_of(window);
        self.groups.push(Group { name, attention, block_tokens, window });
        let no_more = |(hash, held): (&u64, &u16)| (held & before == before).then_some(*hash);
        if before != 0 {
            self.held.iter().filter_map(no_more).for_each(|hash| shrunk(1 << window, hash));
        }
        true
    }

    /// Applies a store of a hash by a group. Returns the windows, as bits, that hold the hash now
    /// and did not before. Past `entries_max` the windows are lost.
    pub(crate) fn store(&mut self, name: u32, hash: u64, entries_max: usize) -> u8 {
        let Some((bit, window)) = self.bit(name) else { return 0 };
        let groups = self.groups_of(window);
        if self.len() >= entries_max {
            self.lose();
            return 0;
        }
        let held = self.held.entry(hash).or_insert(0);
        let before = *held;
        *held |= bit;
        if before & bit != 0 {
            let more = self.more.entry((hash, bit)).or_insert(0);
            *more = more.saturating_add(1);
        }
        let is_whole = before & groups != groups && *held & groups == groups;
        let windows = u8::from(is_whole) << window;
        self.posted |= windows;
        windows
    }

    /// Applies a removal of a hash by a group. Returns the windows, as bits, that do not hold the
    /// hash any more.
    pub(crate) fn remove(&mut self, name: u32, hash: u64) -> u8 {
        let Some((bit, window)) = self.bit(name) else { return 0 };
        let groups = self.groups_of(window);
        let Some(held) = self.held.get_mut(&hash).filter(|held| **held & bit != 0) else {
            return 0;
        };
        if let Some(more) = self.more.get_mut(&(hash, bit)) {
            *more -= 1;
            if *more == 0 {
                self.more.remove(&(hash, bit));
            }
            return 0;
        }
        let was_whole = *held & groups == groups;
        *held &= !bit;
        if *held == 0 {
            self.held.remove(&hash);
        }
        u8::from(was_whole) << window
    }

    /// The windows, as bits, that hold a hash.
    pub(crate) fn of(&self, hash: u64) -> u8 {
        let Some(held) = self.held.get(&hash) else { return 0 };
        let is_whole = |window: &usize| {
            let groups = self.groups_of(*window);
            groups != 0 && held & groups == groups
        };
        (0..WINDOWS_MAX).filter(is_whole).fold(0, |all, window| all | 1 << window)
    }

    /// The window of so many blocks in a row; `None` if the rank has too many windows.
    fn window(&mut self, need: u16) -> Option<usize> {
        let known = self.needs.iter().position(|other| *other == Some(need));
        let place = known.or_else(|| self.needs.iter().position(Option::is_none))?;
        *self.needs.get_mut(place)? = Some(need);
        Some(place)
    }

    /// The bit of a group, and the place of its window.
    fn bit(&self, name: u32) -> Option<(u16, usize)> {
        let place = self.groups.iter().position(|group| group.name == name)?;
        let bit = 1_u16.checked_shl(u32::try_from(place).ok()?)?;
        Some((bit, self.groups.get(place)?.window))
    }

    /// The bits of all groups of a window.
    fn groups_of(&self, window: usize) -> u16 {
        let groups = self.groups.iter().enumerate();
        groups.filter(|(_, group)| group.window == window).fold(0, |all, (at, _)| all | 1 << at)
    }
}

/// Blocks in a row that resuming takes. The next token is itself part of its window, so the cache
/// must hold a token less.
fn need(attention: Attention, block_tokens: u32) -> Option<u16> {
    let blocks = match attention {
        Attention::Window(tokens) if block_tokens > 0 => {
            tokens.saturating_sub(1).div_ceil(block_tokens).max(1)
        }
        Attention::State => 1,
        _ => return None,
    };
    u16::try_from(blocks).ok()
}
