//! Cells of a shard: single-writer atomics, read in place by the control plane.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of counters. Most rows never count anything: a row allocates memory at its first count.
/// Only the shard initializes rows, so no thread waits for the lock.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Box<[OnceLock<Box<[AtomicU64]>>]>,
    width: usize,
}

impl Rows {
    pub(super) fn new(rows: usize, width: usize) -> Self {
        debug_assert!(rows > 0 && width > 0, "rows without a cell");
        Self { rows: (0..rows).map(|_| OnceLock::new()).collect(), width }
    }

    /// Rows past the last row share it. Cells past the last cell count nothing.
    pub(super) fn add(&self, row: usize, place: usize, amount: u64) {
        let Some(row) = self.rows.get(row.min(self.rows.len() - 1)).filter(|_| amount > 0) else {
            return;
        };
        if let Some(cell) = row.get_or_init(|| zeroed(self.width)).get(place) {
            bump(cell, amount);
        }
    }

    pub(super) fn count(&self, row: usize, place: usize) -> u64 {
        self.used(row).and_then(|row| row.get(place)).map_or(0, read)
    }

    /// True once a cell of the row has counted.
    pub(super) fn is_used(&self, row: usize) -> bool {
        self.used(row).is_some()
    }

    fn used(&self, row: usize) -> Option<&[AtomicU64]> {
        self.rows.get(row.min(self.rows.len() - 1)).and_then(OnceLock::get).map(|row| &**row)
    }
}

pub(super) fn zeroed(length: usize) -> Box<[AtomicU64]> {
    (0..length).map(|_| AtomicU64::new(0)).collect()
}

pub(super) fn bump(cell: &AtomicU64, amount: u64) {
    // ordering: statistic with a single writer: load and store need no lock prefix and pair with
    // nothing.
    let value = cell.load(Ordering::Relaxed);
    // ordering: as above.
    cell.store(value.wrapping_add(amount), Ordering::Relaxed);
}

pub(super) fn read(cell: &AtomicU64) -> u64 {
    // ordering: statistic; pairs with nothing.
    cell.load(Ordering::Relaxed)
}
