//! A rank of the fleet, and its numbers in the index.

use super::{EngineLosses, FeedSuspicion, KvTransfer, LimitSource, Role, RoomLimits, SessionSeat};
use forebay_base::{DpRank, PoolIndex, RankIndex, WorkerIndex};
use forebay_config::KvFlow;
use forebay_index::{OddBlocks, WINDOWS_MAX, Window, WindowedRank};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

/// The unit of index, load and selection: one `(worker, dp_rank)` with its own KV cache.
#[derive(Clone, Debug)]
pub struct Rank {
    pub worker: WorkerIndex,
    pub dp_rank: DpRank,
    /// Ranks of that worker; with 1, requests need no rank pin.
    pub dp_size: u32,
    /// Address of the rank: the worker's address, or its own port.
    pub address: SocketAddr,
    /// Tokens per KV block; 0 while unknown.
    pub block_size_tokens: u32,
    /// Capacity in KV blocks; 0 while unknown.
    pub kv_block_count: u32,
    /// Most requests that the engine runs at once, as declared; 0 while unknown.
    pub running_max: u32,
    pub limit_source: LimitSource,
    /// True while a KV event stream is connected; without KV events the overlap is unknown.
    pub kv_feed_live: bool,
    /// The followed events may belong to another rank.
    pub feed_suspicion: Option<Arc<FeedSuspicion>>,
    /// `None` without a loss. Not in place: requests read ranks, and no request reads losses.
    pub losses: Option<Arc<EngineLosses>>,
    pub role: Role,
    /// KV transfer mode of a prefill rank; `None` while unknown. Without a mode the rank gets no
    /// legs.
    pub kv_transfer: Option<KvTransfer>,
    /// Connector that transfers its KV, if known: ranks with different connectors cannot be a pair.
    pub kv_flow: Option<KvFlow>,
    /// Label of its part of the network: ranks with different labels cannot be a pair.
    pub topology: Option<Arc<str>>,
    /// Tokens of a page of SGLang's KV, if reported: ranks with different pages cannot be a pair.
    pub page_tokens: Option<NonZeroU32>,
    /// Limits of requests and tokens on the rank.
    pub room: RoomLimits,
    pub pool: PoolIndex,
    /// Index numbers of its lower cache tiers.
    pub tiers: TierRanks,
    /// Identity of the rank in session hashing.
    pub seat: SessionSeat,
    /// Rank of another worker by which requests use the same engine; `None`: by this rank.
    pub used_as: Option<RankIndex>,
}

impl Rank {
    /// Capacity in KV tokens; 0: unknown.
    #[must_use]
    #[inline]
    pub const fn kv_capacity_tokens(&self) -> u64 {
        self.kv_block_count as u64 * self.block_size_tokens as u64
    }

    /// Endpoint of KV events that its engine announced, and announces no more.
    #[must_use]
    pub fn lost_kv_events(&self) -> Option<&str> {
        self.losses.as_ref().and_then(|losses| losses.kv_events.as_deref())
    }
}

/// Numbers in the index for blocks of a rank's lower cache tiers and windows. They count down from
/// [`RANKS_MAX`](forebay_base::limits::RANKS_MAX), so that no number is ever a rank. `None` until
/// KV events of the rank mention the tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierRanks {
    /// Blocks on the device or the host.
    pub host: Option<RankIndex>,
    /// Blocks on the device, the host or a disk.
    pub disk: Option<RankIndex>,
    /// Blocks of the KV pool that the rank shares with other ranks: all of them use its number.
    pub kv_pool: Option<RankIndex>,
    /// Points where a rank of a hybrid model can resume; the first entries are used. All `None` if
    /// the rank can resume anywhere, or if its events do not report the points.
    pub windows: [Option<Window>; WINDOWS_MAX],
    /// The rank can resume only behind some of its blocks, and its events do not report which: the
    /// index has an upper bound.
    pub is_bound: bool,
    /// Tokens of the smallest blocks on the device, where blocks have several sizes; else 0.
    pub finer_tokens: u32,
    /// Blocks of the second size. The rank's overlap then counts units of `finer_tokens`. `None`
    /// where its overlap is a number of blocks, and tokens are estimated for blocks of several
    /// sizes.
    pub odd: Option<OddBlocks>,
    /// The rank resumes only behind a multiple of so many tokens, because its groups have blocks of
    /// several sizes; else 0.
    pub aligned_tokens: u32,
}

impl TierRanks {
    /// Index number of the rank's resumable prefix, if it cannot resume everywhere, or if its
    /// blocks have two sizes.
    #[must_use]
    pub fn point(&self) -> Option<RankIndex> {
        let window = self.windows.first().and_then(Option::as_ref).map(|window| window.number);
        window.or(self.odd.map(|odd| odd.number))
    }

    /// Are tokens of the overlap estimated from its bytes?
    #[must_use]
    pub const fn is_estimate(&self) -> bool {
        self.finer_tokens > 0 && self.odd.is_none()
    }

    /// Is the overlap in the index an upper bound? KV pools report no exact overlap.
    #[must_use]
    pub const fn is_upper_bound(&self) -> bool {
        self.is_bound || self.is_estimate() || self.kv_pool.is_some()
    }

    /// Exactness of the overlap, as shown in admin pages.
    #[must_use]
    pub const fn overlap_kind(&self) -> &'static str {
        if self.is_upper_bound() { "upper_bound" } else { "exact" }
    }

    /// The rank's further numbers for index walks, if it has a [`Self::point`].
    #[must_use]
    pub fn windowed(&self, rank: RankIndex) -> Option<WindowedRank> {
        self.point().map(|_| WindowedRank { rank, windows: self.windows, odd: self.odd })
    }
}
