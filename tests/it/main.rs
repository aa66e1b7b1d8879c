//! Behaviour through bytes: a real router in this process, scripted workers and clients on loopback sockets.

mod client_leaves;
mod drain;
mod http_rules;
mod kv_routing;
mod relay_bytes;
mod rig;
mod starvation;
mod worker_fails;
