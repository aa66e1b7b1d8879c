//! JSON and server-sent events, read where they lie: no tree, and no copy of bytes that are not
//! stored. Sans-IO, on any thread.
//!
//! - [`Cursor`] reads a whole JSON text, strictly, and knows each position.
//! - [`EventLines`], [`EventCutter`] and [`EventTail`] cut a stream of events, wherever reads end.
//! - [`UsageReader`] and [`ResponseIdScan`] read single members of an answer as the answer passes,
//!   wherever reads end.
//!
//! Limits are [`forebay_base::limits`]. This crate must never follow JSON deeper than
//! [`forebay_base::limits::JSON_DEPTH_MAX`], and never holds more of a stream than an event.

mod cursor;
mod error;
mod event_cutter;
mod event_lines;
mod event_tail;
mod member_path;
mod response_id;
mod short_text;
mod unescape;
mod usage_finder;
mod usage_form;
mod usage_glance;
mod usage_numbers;
mod usage_object;
mod usage_reader;
mod usage_scan;
mod values;

pub use cursor::{Cursor, EncodedData, ID_DIGITS_MAX, Text, check_json, unescaped};
pub use error::JsonError;
pub use event_cutter::{CutPart, EventCutter, data_of, is_comment};
pub use event_lines::{DataPart, EventLines};
pub use event_tail::EventTail;
pub use response_id::ResponseIdScan;
pub use unescape::{unescape_into, unescape_up_to};
pub use usage_finder::UsageFinder;
pub use usage_form::UsageForm;
pub use usage_glance::UsageGlance;
pub use usage_reader::UsageReader;
pub use usage_scan::UsageScan;
pub use values::{flag, present, switch};
