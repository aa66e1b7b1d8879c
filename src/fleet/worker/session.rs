//! Session affinity by rendezvous hashing: a session has a distance to each rank, and the nearest
//! rank is its anchor. All routers and shards agree without a table and without a message. A rank
//! that joins or leaves moves only its own sessions.

use forebay_base::DpRank;

/// Longest name of a session. `prompt_cache_key` of OpenAI has at most 64 characters.
pub const SESSION_NAME_BYTES_MAX: usize = 256;
/// Bits of distances and draws.
const DRAW_BITS: u32 = 40;
/// Exclusive upper bound of distances and draws.
pub const SESSION_DRAW_END: u64 = 1 << DRAW_BITS;

/// The hashed name of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionKey(u64);

/// Identity of a rank in session hashing: the address of its worker and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSeat(u64);

impl SessionKey {
    /// `None` for an empty name, or a name that takes too long to hash.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        let is_name = !name.is_empty() && name.len() <= SESSION_NAME_BYTES_MAX;
        is_name.then(|| Self(mixed(folded(name))))
    }

    /// A number that the session draws for a name: always the same, and different for different
    /// names.
    #[must_use]
    pub fn draw(self, name: &str) -> u64 {
        mixed(self.0 ^ mixed(folded(name.as_bytes()))) >> (u64::BITS - DRAW_BITS)
    }

    /// Distance from the session to a rank.
    #[must_use]
    pub const fn distance(self, seat: SessionSeat) -> u64 {
        mixed(self.0 ^ seat.0) >> (u64::BITS - DRAW_BITS)
    }
}

impl SessionSeat {
    /// Seat of a rank of the worker at `authority`, as in its URL.
    #[must_use]
    pub fn of(authority: &str, dp_rank: DpRank) -> Self {
        Self(mixed(folded(authority.as_bytes()).wrapping_add(u64::from(dp_rank.0))))
    }
}

/// FNV-1a. Not keyed: routers of different versions and machines have to agree.
fn folded(bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(BASIS, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// The last steps of `SplitMix64`: each bit of the sum reaches each bit of the result.
const fn mixed(sum: u64) -> u64 {
    let sum = sum.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let sum = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let sum = (sum ^ (sum >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ (sum >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(workers: u32) -> Vec<SessionSeat> {
        let seat =
            |worker| SessionSeat::of(&format!("10.0.0.{}:8000", worker / 2), DpRank(worker % 2));
        (0..workers).map(seat).collect()
    }

    fn anchor(session: u32, seats: &[SessionSeat]) -> SessionSeat {
        let key = SessionKey::of(format!("session-{session}").as_bytes()).unwrap();
        *seats.iter().min_by_key(|seat| key.distance(**seat)).unwrap()
    }

    #[test]
    fn sessions_are_spread_evenly() {
        let seats = seats(16);
        let mut counts = [0_u32; 16];
        for session in 0..16_000 {
            let anchor = anchor(session, &seats);
            counts[seats.iter().position(|seat| *seat == anchor).unwrap()] += 1;
        }
        // Six standard deviations of a fair draw.
        assert!(counts.iter().all(|count| (810..=1_190).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_rank_that_leaves_moves_its_own_sessions_alone() {
        let all = seats(9);
        let (gone, left) = all.split_last().unwrap();
        let mut moved = 0;
        for session in 0..9_000 {
            let before = anchor(session, &all);
            match before == *gone {
                true => moved += 1,
                false => assert_eq!(anchor(session, left), before),
            }
        }
        assert!((820..=1_180).contains(&moved), "{moved}");
    }

    #[test]
    fn the_hash_stays_as_it_is() {
        // Routers of different versions share a fleet during an upgrade.
        let key = SessionKey::of(b"alice").unwrap();
        assert_eq!(key.distance(SessionSeat::of("10.0.0.1:8000", DpRank(1))), 343_782_202_874);
    }

    #[test]
    fn names_have_bounds() {
        assert_eq!(SessionKey::of(b""), None);
        assert!(SessionKey::of(&[b'a'; SESSION_NAME_BYTES_MAX]).is_some());
        assert_eq!(SessionKey::of(&[b'a'; SESSION_NAME_BYTES_MAX + 1]), None);
    }
}
