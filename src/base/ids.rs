//! Dense indices and wire ids as types, so that the compiler prevents mix-ups.

/// Dense number of a rank, i.e. of a `(worker, dp_rank)`; stable for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankIndex(pub u16);

/// Dense number of a worker in the fleet; stable for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u16);

/// Dense number of a served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelIndex(pub u16);

/// Number of a shard, in the order of `cores`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardIndex(pub u16);

/// Number of a pool, i.e. of ranks that share models: the lowest [`ModelIndex`] of these. The pool
/// of their prefill ranks has this number plus `RANKS_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolIndex(pub u16);

/// Number of a queue: the number of its pool or of its rank, depending on `queue.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueIndex(pub u16);

/// Dense number of a tenant; stable for the life of the process. All tenants without a number share
/// 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantIndex(pub u16);

/// Data-parallel rank inside a worker, as engines count: from 0.
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
