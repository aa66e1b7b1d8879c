//! Dense indices and wire ids as types, so that two of them cannot be exchanged by mistake.

/// Dense number of one rank, i.e. one `(worker, dp_rank)`; stable for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankIndex(pub u16);

/// Dense number of one worker in the fleet; stable for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u16);

/// Dense number of one served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelIndex(pub u16);

/// Number of one shard, in the order of `cores`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardIndex(pub u16);

/// Dense number of one pool: the ranks that share models. The lowest [`ModelIndex`] among those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolIndex(pub u16);

/// Number of one queue: that of its pool, or of its rank, as `queue.mode` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueIndex(pub u16);

/// Dense number of one tenant; stable for the life of the process. 0: all that have no number of
/// their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantIndex(pub u16);

/// Data-parallel rank inside a worker, as the engines count it: from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DpRank(pub u32);

macro_rules! dense {
    ($($name:ident),*) => {$(
        impl $name {
            /// The number as an array position.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// From an array position; `None` past `u16::MAX`.
            #[must_use]
            pub fn try_from_index(index: usize) -> Option<Self> {
                u16::try_from(index).ok().map(Self)
            }
        }
    )*};
}
dense!(RankIndex, WorkerIndex, ModelIndex, ShardIndex, PoolIndex, QueueIndex, TenantIndex);
