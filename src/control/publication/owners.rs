//! The other owners, as the answers of the admin API read them.

use super::super::environment::Environment;
use super::super::feeds::Feeds;
use super::super::lifecycle::Lifecycle;
use super::super::membership::Membership;
use super::super::reports::Reports;

/// Sources of all answers beside the published fleet.
#[derive(Clone, Copy)]
pub(crate) struct Owners<'a> {
    pub(crate) env: &'a Environment,
    pub(crate) membership: &'a Membership,
    pub(crate) feeds: &'a Feeds,
    pub(crate) reports: &'a Reports,
    pub(crate) lifecycle: &'a Lifecycle,
}
