//! The other owners, as the answers of the admin API read them.

use super::super::environment::Environment;
use super::super::feeds::Feeds;
use super::super::lifecycle::Lifecycle;
use super::super::membership::Membership;
use super::super::reports::Reports;

/// Sources of all answers beside the published fleet.
#[derive(Clone, Copy)]
pub(in crate::control) struct Owners<'a> {
    pub(in crate::control) env: &'a Environment,
    pub(in crate::control) membership: &'a Membership,
    pub(in crate::control) feeds: &'a Feeds,
    pub(in crate::control) reports: &'a Reports,
    pub(in crate::control) lifecycle: &'a Lifecycle,
}
