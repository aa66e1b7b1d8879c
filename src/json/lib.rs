//! JSON and server-sent events, read where they lie: no tree, and no copy of what is not kept.
//! Sans-IO, on any thread.
//!
//! - [`Cursor`] reads one JSON text that is all there, strictly, and knows each position.
//! - [`EventLines`], [`EventCutter`] and [`EventTail`] cut a stream of events, wherever reads end.
//! - [`UsageScan`] and [`ResponseIdScan`] read single members of an answer as it passes, wherever
//!   reads end.
//!
//! Limits are [`forebay_base::limits`]. This crate must never follow JSON deeper than
//! [`forebay_base::limits::JSON_DEPTH_MAX`], and never holds more of a stream than one event.

mod cursor;
mod error;
mod event_cutter;
mod event_lines;
mod event_tail;
mod response_id;
mod token_usage;
mod unescape;
mod usage_object;
mod usage_path;
mod usage_text;
mod values;

pub use cursor::{Cursor, EncodedData, ID_DIGITS_MAX, Text, check_json, unescaped};
pub use error::JsonError;
pub use event_cutter::{CutPart, EventCutter, data_of, is_comment};
pub use event_lines::{DataPart, EventLines};
pub use event_tail::EventTail;
pub use response_id::ResponseIdScan;
pub use token_usage::{UsageForm, UsageScan};
pub use unescape::{unescape_into, unescape_up_to};
pub use usage_object::UsageNumbers;
pub use values::{flag, present, switch};
