//! Identifies clients, sans-IO: addresses of trusted proxies ([`TrustedNets`]), the client that a
//! proxy names (PROXY headers, `X-Forwarded-For`), the fields for workers ([`ForwardedFields`]),
//! connections per address ([`AddressCounts`]), and pages that may read responses ([`Cors`]).
//!
//! Limits: `PROXY_HEADER_BYTES_MAX`, `FORWARDED_HOPS_MAX`, `TRUSTED_NETS_MAX`, `ORIGINS_MAX`. An
//! untrusted address can only name itself.

mod cors;
mod forwarded;
mod per_address;
mod proxy_header;
mod rules;
mod trusted;

pub use cors::{AnswerField, Cors, CorsFields, CorsPolicy, Preflight, origin_fault};
pub use forwarded::{ForwardMode, ForwardedFields, client_of};
pub use per_address::{AddressCounts, AddressPlace};
pub use proxy_header::{ProxyFault, ProxyHeader, parse_proxy_header};
pub use rules::{AddressRules, TooManyConnections};
pub use trusted::TrustedNets;
