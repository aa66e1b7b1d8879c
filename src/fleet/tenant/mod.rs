//! Tenants: identities and keys ([`Tenants`]), use ([`TenantBoard`]), and limits per minute
//! ([`MinuteRate`]).

mod board;
mod rate;
mod tenants;

pub use board::{InFlightCount, TenantBoard, TenantCell};
pub use forebay_base::TokenUsage;
pub use rate::{MinuteRate, RateRefusal, RateStatus, TakenUnits};
pub use tenants::{
    ANY_TENANT, Grant, Quota, TENANT_SLOTS, Tenant, TenantNumbers, TenantPart, Tenants, tenant_slot,
};
