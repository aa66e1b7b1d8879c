//! Tenants: who they are ([`Tenants`]), what they have used ([`TenantBoard`]), and limits per
//! minute ([`MinuteRate`]).

mod board;
mod rate;
mod who;

pub use board::{InFlightCount, TenantBoard, TenantCell};
pub use rate::{MinuteRate, RateRefusal, RateStanding, TakenUnits};
pub use who::{
    ANY_TENANT, Grant, Quota, TENANT_SLOTS, Tenant, TenantNumbers, TenantPart, Tenants, TokenUsage,
    tenant_slot,
};
