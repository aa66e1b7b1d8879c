//! Counts connections per address, over all shards. Two rows of counters form a count-min sketch:
//! an address counts in a cell of each row, and has at most the lesser of both counts. The table
//! never fills and never undercounts. It overcounts only an address that shares both cells with
//! other addresses. Keyed hashes prevent an attacker from choosing such addresses.

use ahash::RandomState;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Cells of a row. Of 16,384 addresses, 1 in 10,000 shares both its cells with a full address.
const CELLS: usize = 1 << 16;
/// Rows of cells, each with a hash of its own.
const ROWS: usize = 2;
/// An IPv6 client has a whole network with this many leading bits.
const V6_PREFIX_BITS: u32 = 64;

/// Connection counts of all addresses.
#[derive(Debug)]
pub struct AddressCounts {
    cells: Box<[AtomicU32]>,
    hashes: [RandomState; ROWS],
    per_address_max: u32,
}

/// The place of a connection. Dropping it releases the place.
#[derive(Debug)]
pub struct AddressPlace {
    counts: Arc<AddressCounts>,
    cells: [usize; ROWS],
}

impl AddressCounts {
    /// Without connections. `seed` is a secret of the process.
    #[must_use]
    pub fn new(per_address_max: u32, seed: u64) -> Self {
        let hash = |row| RandomState::with_seeds(seed, row, !seed, 0x5eed);
        let cells = std::iter::repeat_with(AtomicU32::default).take(ROWS * CELLS).collect();
        Self { cells, hashes: [hash(0), hash(1)], per_address_max }
    }

    /// Counts a connection of this address; `None` if the address has reached its limit. An IPv6
    /// address counts with its /64.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        let cells @ [first, second] = self.cells_of(address);
        let place = AddressPlace { counts: Arc::clone(self), cells };
        // ordering: if two shards take the last place, the shard that is later at the second cell
        // sees the other shard's addition to the first cell. At least 1 of both is refused.
        let add = |cell: &AtomicU32| cell.fetch_add(1, Ordering::AcqRel);
        self.cells.get(first).map(add)?;
        let had = self.cells.get(second).map(add)?;
        // ordering: Acquire, after the addition above.
        let has_now = self.cells.get(first)?.load(Ordering::Acquire);
        (had < self.per_address_max || has_now <= self.per_address_max).then_some(place)
    }

    fn cells_of(&self, address: IpAddr) -> [usize; ROWS] {
        let client = match address.to_canonical() {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            // Sets a bit that no IPv4 address has.
            IpAddr::V6(address) => address.to_bits() >> V6_PREFIX_BITS | 1 << 127,
        };
        let mut row = 0;
        self.hashes.each_ref().map(|hash| {
            let cell = usize::try_from(hash.hash_one(client) & 0xffff).unwrap_or(0) + row;
            row += CELLS;
            cell
        })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        for cell in self.cells {
            if let Some(count) = self.counts.cells.get(cell) {
                // ordering: as in `take`; a place that is released early does no harm.
                let before = count.fetch_sub(1, Ordering::AcqRel);
                debug_assert!(before > 0, "given back twice");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_limit_is_exact_and_places_come_back() {
        let counts = Arc::new(AddressCounts::new(3, 7));
        let mut places: Vec<_> = (0..3).map(|_| counts.take(ip("192.0.2.1")).unwrap()).collect();
        assert!(counts.take(ip("192.0.2.1")).is_none());
        assert!(counts.take(ip("::ffff:192.0.2.1")).is_none(), "the same address");
        assert!(counts.take(ip("192.0.2.2")).is_some(), "another one");
        places.pop();
        assert!(counts.take(ip("192.0.2.1")).is_some());
        drop(places);
        let left: u32 = counts.cells.iter().map(|cell| cell.load(Ordering::Relaxed)).sum();
        assert_eq!(left, 0, "refusals leave nothing either");
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let counts = Arc::new(AddressCounts::new(1, 7));
        let _place = counts.take(ip("2001:db8:1:2::1")).unwrap();
        assert!(counts.take(ip("2001:db8:1:2:ffff::9")).is_none());
        assert!(counts.take(ip("2001:db8:1:3::1")).is_some());
    }

    #[test]
    fn addresses_that_are_at_their_limit_cost_others_nothing() {
        let counts = Arc::new(AddressCounts::new(1, 7));
        let all: Vec<_> =
            (0..1_000_u32).filter_map(|n| counts.take(IpAddr::V4((n << 8).into()))).collect();
        assert!(all.len() >= 999, "{}", all.len());
        let of_all = (0..1_000_u32).filter(|n| counts.take(IpAddr::V4((n << 8).into())).is_some());
        assert_eq!(of_all.count(), 0);
    }

    #[test]
    fn shards_share_the_limit() {
        let counts = Arc::new(AddressCounts::new(10, 7));
        let taken: Vec<Vec<AddressPlace>> = std::thread::scope(|scope| {
            let shard = || {
                let take = |_| counts.take(ip("192.0.2.1"));
                (0..1_000).filter_map(take).collect::<Vec<_>>()
            };
            let shards: Vec<_> = (0..4).map(|_| scope.spawn(shard)).collect();
            shards.into_iter().map(|shard| shard.join().unwrap()).collect()
        });
        // Two that meet at the last place may both be turned away; more than the limit never pass.
        let places: usize = taken.iter().map(Vec::len).sum();
        assert!((1..=10).contains(&places), "{places}");
    }
}
