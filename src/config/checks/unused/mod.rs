//! Keys without an effect, by the values of other keys.

mod cut_short_times;
pub(crate) mod reached_first;
pub(crate) mod unused_key;
pub(crate) mod unused_keys;
