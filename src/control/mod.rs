//! The control plane.
pub mod kv_events;
#[cfg(test)]
mod test_support;
