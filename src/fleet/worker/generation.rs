//! Counts of what a worker has lost.

/// Counts of the events after which what is known of a worker may be wrong. Both wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerGeneration {
    /// Increases when another engine may run there: the worker was down, or its description
    /// changed. Speeds, learned limits and loaded adapters belong to a generation of the engine.
    pub engine: u32,
    /// Increases when the caches may be lost: with each generation of the engine, and when the
    /// engine has emptied its caches. Blocks belong to a generation of the cache.
    pub cache: u32,
}

impl WorkerGeneration {
    /// The same engine, with empty caches.
    #[must_use]
    pub const fn with_empty_caches(self) -> Self {
        Self { cache: self.cache.wrapping_add(1), ..self }
    }

    /// The engine after a possible restart. Its caches are empty.
    #[must_use]
    pub const fn with_other_engine(self) -> Self {
        Self { engine: self.engine.wrapping_add(1), ..self }.with_empty_caches()
    }
}
