//! Decides which address of a worker's name is queried and used. Sans-IO.
//!
//! | the worker | the name has its address | the name has lost its address |
//! |---|---|---|
//! | is up | stays | is described at the new address, and used there from then on |
//! | does not respond | is queried at the next address | is queried at the new address |

use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// The system's resolver does not report a TTL. Envoy resolves names as often (`dns_refresh_rate`).
pub(crate) const NAME_AGE_MAX: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried in turn per description.
const TRIED_MAX: usize = 4;

/// The name of a worker, with the time of its last look-up.
#[derive(Debug)]
pub(crate) struct FollowedName {
    looked_at: Instant,
    age_max: Duration,
}

/// Consequence of a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// The worker keeps its address.
    Stays,
    /// The worker must be described at its new address.
    Moved,
    /// The worker is queried at this address from now on.
    Ask(SocketAddr),
}

impl FollowedName {
    pub(crate) const fn looked_up_at(now: Instant, age_max: Duration) -> Self {
        Self { looked_at: now, age_max }
    }

    /// True if the name must be looked up again, which this records. Always if the worker does not
    /// respond.
    pub(crate) fn take_due(&mut self, now: Instant, is_well: bool) -> bool {
        let is_due = !is_well || now.duration_since(self.looked_at) >= self.age_max;
        if is_due {
            self.looked_at = now;
        }
        is_due
    }
}

/// Consequence of a look-up for a worker that is used at `current`.
pub(crate) fn change(
    current: Option<SocketAddr>,
    found: &[SocketAddr],
    is_up: bool,
    is_well: bool,
) -> NameChange {
    let place = current.and_then(|current| found.iter().position(|at| *at == current));
    match (place, is_up) {
        (Some(_), true) => NameChange::Stays,
        (Some(_), false) if is_well => NameChange::Stays,
        (None, true) if found.is_empty() => NameChange::Stays,
        (None, true) => NameChange::Moved,
        (place, false) => {
            let next = place.map_or(0, |place| (place + 1) % found.len().max(1));
            found.get(next).map_or(NameChange::Stays, |at| NameChange::Ask(*at))
        }
    }
}

/// Addresses to try: the current address first, if the name still has it.
pub(crate) fn tried(current: Option<SocketAddr>, mut found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if let Some(place) = found.iter().position(|at| Some(*at) == current) {
        let current = found.remove(place);
        found.insert(0, current);
    }
    found.truncate(TRIED_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 8000))
    }

    #[test]
    fn a_name_is_followed_when_it_has_lost_the_address() {
        use NameChange::{Ask, Moved, Stays};
        let both = [at(1), at(2)];
        // Up: the order of the answers says nothing, and a resolver without an answer neither.
        assert_eq!(change(Some(at(2)), &both, true, true), Stays);
        assert_eq!(change(Some(at(2)), &both, true, false), Stays);
        assert_eq!(change(Some(at(3)), &both, true, true), Moved);
        assert_eq!(change(Some(at(3)), &[], true, true), Stays);
        // Down: each address in turn, and the new one at once.
        assert_eq!(change(Some(at(1)), &both, false, false), Ask(at(2)));
        assert_eq!(change(Some(at(2)), &both, false, false), Ask(at(1)));
        assert_eq!(change(Some(at(2)), &both, false, true), Stays, "it comes back");
        assert_eq!(change(Some(at(3)), &both, false, false), Ask(at(1)));
        assert_eq!(change(None, &both, false, false), Ask(at(1)));
        assert_eq!(change(Some(at(3)), &[], false, false), Stays);
        assert_eq!(tried(Some(at(2)), vec![at(1), at(2), at(3)]), [at(2), at(1), at(3)]);
        assert_eq!(tried(Some(at(9)), both.to_vec()), both);
    }

    #[test]
    fn a_name_is_looked_up_in_time_and_after_each_failure() {
        let start = Instant::now();
        let mut name = FollowedName::looked_up_at(start, NAME_AGE_MAX);
        assert!(!name.take_due(start + NAME_AGE_MAX / 2, true));
        assert!(name.take_due(start + NAME_AGE_MAX, true));
        assert!(!name.take_due(start + NAME_AGE_MAX, true));
        assert!(name.take_due(start + NAME_AGE_MAX, false));
    }
}
