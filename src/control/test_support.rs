//! What the control plane's tests share.

use forebay_fleet::worker::test_support::three_ranks;
use forebay_fleet::worker::{FleetSnapshot, pools};

pub(super) use forebay_kv_events::test_support::vocabulary;

/// Two pools on three ranks of one worker: `base` with its `adapter`, and `other`. Nobody serves
/// `nobody`.
pub(super) fn two_pools() -> FleetSnapshot {
    let mut fleet = three_ranks();
    pools::assign(&mut fleet);
    fleet
}
