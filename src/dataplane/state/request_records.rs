//! What the shard tells of single requests: records in the log, and traces.

use super::slow_log::SlowLog;
use super::trace_outlet::TraceOutlet;
use forebay_config::{Config, RecordFormat};
use forebay_fleet::mailbox::TraceRecord;
use forebay_ring::Producer;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What of it the shard keeps.
pub(crate) struct RequestRecords {
    pub(crate) slow_log: Cell<SlowLog>,
    pub(crate) traces: TraceOutlet,
    /// `log.format` as it was read.
    format: RefCell<Option<Rc<RecordFormat>>>,
}

impl RequestRecords {
    pub(crate) fn new(config: &Config, ring: Producer<TraceRecord>) -> Self {
        let format = RefCell::new(format_of(config));
        Self { slow_log: Cell::default(), traces: TraceOutlet::new(ring), format }
    }

    /// Goes by this configuration from now on.
    pub(crate) fn set_config(&self, config: &Config) {
        self.format.replace(format_of(config));
    }

    /// How a record is written, where that is configured.
    pub(crate) fn format(&self) -> Option<Rc<RecordFormat>> {
        self.format.borrow().clone()
    }

    /// Has a record the path of its request?
    pub(crate) fn has_path(&self) -> bool {
        self.format.borrow().as_ref().is_some_and(|format| format.has_path())
    }
}

/// `None` also for JSON, whose records stay as they are.
fn format_of(config: &Config) -> Option<Rc<RecordFormat>> {
    let is_used = config.log.requests && !config.log.json;
    let text = config.log.format.as_ref().filter(|_| is_used)?;
    RecordFormat::parse(text).ok().map(Rc::new)
}
