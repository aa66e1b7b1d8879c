//! Tenants: identities and keys ([`Tenants`]), and limits per minute ([`MinuteRate`]).

mod rate;
mod tenants;

pub use forebay_base::TokenUsage;
pub use rate::{MinuteRate, RateRefusal, RateStatus, TakenUnits};
pub use tenants::{
    ANY_TENANT, Grant, Quota, TENANT_SLOTS, Tenant, TenantNumbers, TenantPart, Tenants, tenant_slot,
};
