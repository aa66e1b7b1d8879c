//! Which of its name's addresses a worker is asked and used at. Sans-IO.
//!
//! | the worker | the name has its address | the name has lost its address |
//! |---|---|---|
//! | is up | stays | is described at the new address, and used there from then on |
//! | does not answer | is asked at the next address | is asked at the new address |

use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// The system's resolver does not say how long an answer is good for. Envoy looks names up as
/// often (`dns_refresh_rate`).
pub(super) const NAME_AGE_MAX: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried in turn for one description.
const TRIED_MAX: usize = 4;

/// The name of one worker, as it was last looked up.
#[derive(Debug)]
pub(super) struct FollowedName {
    looked_at: Instant,
    age_max: Duration,
}

/// What follows from a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameChange {
    /// The worker stays where it is.
    Stays,
    /// It has to be described where the name leads now.
    Moved,
    /// It is asked there from now on.
    Ask(SocketAddr),
}

impl FollowedName {
    pub(super) const fn looked_up_at(now: Instant, age_max: Duration) -> Self {
        Self { looked_at: now, age_max }
    }

    /// Is it time to look the name up again? Whenever the worker does not answer.
    pub(super) fn is_due(&mut self, now: Instant, is_well: bool) -> bool {
        let is_due = !is_well || now.duration_since(self.looked_at) >= self.age_max;
        if is_due {
            self.looked_at = now;
        }
        is_due
    }
}

/// What a look-up changes for a worker that is used at `current`.
pub(super) fn change(
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

/// The addresses to be tried: the present one first, if the name still has it.
pub(super) fn tried(current: Option<SocketAddr>, mut found: Vec<SocketAddr>) -> Vec<SocketAddr> {
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
        assert!(!name.is_due(start + NAME_AGE_MAX / 2, true));
        assert!(name.is_due(start + NAME_AGE_MAX, true));
        assert!(!name.is_due(start + NAME_AGE_MAX, true));
        assert!(name.is_due(start + NAME_AGE_MAX, false));
    }
}
