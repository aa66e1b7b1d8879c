//! Sizes in tokens of the blocks that a rank stores on its device. vLLM names a size in each event:
//! groups of layers may have blocks of several sizes, and a group may store parts of a block while
//! the block is not full. Part of a rank's blocks, on the control plane's thread.

use crate::ranks::rank_copy::GROUPS_MAX;

/// Sizes of a rank's blocks since the last clear.
#[derive(Debug, Default)]
pub(crate) struct SizeMix {
    /// Size of whole blocks on the device, 0 before the first. Survives a clear.
    pub(crate) device_tokens: u32,
    groups: Vec<GroupSize>,
    /// Size of the first block that prompts are matched with.
    first: u32,
    /// The second size among these blocks.
    second: u32,
    /// There are more than two sizes.
    is_lost: bool,
}

/// The largest blocks of a KV-cache group: smaller blocks are parts.
#[derive(Debug)]
struct GroupSize {
    /// Number of the group in events.
    name: u32,
    block_tokens: u32,
}

/// The sizes as shards use them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSizes {
    /// The smallest size, where blocks that prompts are matched with have several sizes; else 0.
    pub finer_tokens: u32,
    /// Units of `finer_tokens` in a block of the second size and in a block of the first size.
    pub units: Option<[u16; 2]>,
    /// The least common multiple of the sizes of all groups, where they differ; else 0. vLLM
    /// resumes only behind whole blocks of all groups.
    pub aligned_tokens: u32,
}

impl SizeMix {
    /// Takes the size of an event's blocks.
    pub(crate) fn meet(&mut self, group: u32, block_tokens: u32) {
        let known = self.groups.iter_mut().find(|known| known.name == group);
        if let Some(known) = known {
            known.block_tokens = known.block_tokens.max(block_tokens);
        } else if self.groups.len() < GROUPS_MAX {
            self.groups.push(GroupSize { name: group, block_tokens });
        }
    }

    /// Size in the root of a group's prompts: parts belong to the prompts of whole blocks.
    pub(crate) fn root_tokens(&self, group: u32, block_tokens: u32) -> u32 {
        let known = self.groups.iter().find(|known| known.name == group);
        known.map_or(block_tokens, |known| known.block_tokens.max(block_tokens))
    }

    /// Takes the size of a block that prompts are matched with. True for the second size.
    pub(crate) fn take(&mut self, block_tokens: u32) -> bool {
        if self.first == 0 {
            self.first = block_tokens;
        }
        if block_tokens == self.first {
            return false;
        }
        if self.second == 0 {
            self.second = block_tokens;
        }
        self.is_lost |= block_tokens != self.second;
        true
    }

    /// True once blocks of the second size were stored.
    pub(crate) const fn is_mixed(&self) -> bool {
        self.second > 0
    }

    pub(crate) fn sizes(&self) -> DeviceSizes {
        let is_mixed = self.second > 0 && self.first > 0;
        let finer_tokens = if is_mixed { self.first.min(self.second) } else { 0 };
        let units = |size: u32| {
            let is_multiple = size.checked_rem(finer_tokens) == Some(0);
            u16::try_from(size.checked_div(finer_tokens)?).ok().filter(|_| is_multiple)
        };
        let pair = || Some([units(self.second)?, units(self.first)?]);
        let units = pair().filter(|_| !self.is_lost);
        DeviceSizes { finer_tokens, units, aligned_tokens: self.aligned_tokens() }
    }

    fn aligned_tokens(&self) -> u32 {
        let sizes = || self.groups.iter().map(|group| group.block_tokens);
        let Some(first) = sizes().next().filter(|first| sizes().any(|size| size != *first)) else {
            return 0;
        };
        sizes().fold(first, least_common_multiple)
    }

    /// Forgets the blocks. The engine may have restarted with other groups.
    pub(crate) fn clear(&mut self) {
        *self = Self { device_tokens: self.device_tokens, ..Self::default() };
    }

    /// Continues with restored blocks, which have one size.
    pub(crate) fn restore(&mut self, block_tokens: u32) {
        *self = Self { device_tokens: block_tokens, first: block_tokens, ..Self::default() };
    }
}

/// The largest number stands for larger results: no prompt reaches them.
fn least_common_multiple(one: u32, other: u32) -> u32 {
    let mut divisor = one;
    let mut rest = other;
    while rest > 0 {
        let next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    one.checked_div(divisor).map_or(0, |part| part.saturating_mul(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_several_sizes_resume_together() {
        let aligned = |sizes: &[u32]| {
            let mut mix = SizeMix::default();
            sizes.iter().zip(0..).for_each(|(size, group)| mix.meet(group, *size));
            // Parts change nothing.
            sizes.iter().zip(0..).for_each(|(size, group)| mix.meet(group, size / 2));
            mix.sizes().aligned_tokens
        };
        for (sizes, tokens) in [
            (&[64, 64][..], 0),
            (&[], 0),
            (&[16], 0),
            (&[64, 16], 64),
            (&[16, 64, 16], 64),
            (&[48, 32], 96),
            (&[u32::MAX, u32::MAX - 1], u32::MAX),
        ] {
            assert_eq!(aligned(sizes), tokens, "{sizes:?}");
        }
    }

    #[test]
    fn two_sizes_have_units_and_three_are_an_estimate() {
        let mut mix = SizeMix::default();
        assert_eq!(mix.sizes(), DeviceSizes::default());
        assert!(!mix.take(64) && !mix.take(64) && !mix.is_mixed());
        assert_eq!(mix.sizes(), DeviceSizes::default());
        assert!(mix.take(16) && mix.is_mixed());
        let sizes = DeviceSizes { finer_tokens: 16, units: Some([1, 4]), aligned_tokens: 0 };
        assert_eq!(mix.sizes(), sizes);
        assert!(mix.take(32));
        assert_eq!(mix.sizes(), DeviceSizes { units: None, ..sizes });
        mix.clear();
        assert!(!mix.take(16) && mix.take(64));
        assert_eq!(mix.sizes(), DeviceSizes { units: Some([4, 1]), ..sizes });
        let mut odd = SizeMix::default();
        odd.take(48);
        odd.take(32);
        assert_eq!((odd.sizes().finer_tokens, odd.sizes().units), (32, None));
    }
}
