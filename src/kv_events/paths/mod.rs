//! Blocks as paths of the index: keys, tiers, windows, and blocks without a parent.

pub(crate) mod naming;
pub(crate) mod opaque;
pub(crate) mod orphans;
pub(crate) mod recent_links;
pub(crate) mod size_mix;
pub(crate) mod slice_ops;
pub(crate) mod tier;
pub(crate) mod windows;
