//! Records of requests: log lines and traces.

use super::slow_log::SlowLog;
use super::trace_outlet::TraceOutlet;
use forebay_config::{Config, RecordFormat};
use forebay_mailbox::TraceRecord;
use forebay_ring::Producer;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Log and trace state of a shard.
pub(crate) struct RequestRecords {
    pub(crate) slow_log: Cell<SlowLog>,
    pub(crate) traces: TraceOutlet,
    /// `log.format`, parsed once per configuration.
    format: RefCell<Option<Rc<RecordFormat>>>,
}

impl RequestRecords {
    pub(crate) fn new(config: &Config, ring: Producer<TraceRecord>) -> Self {
        let format = RefCell::new(format_of(config));
        Self { slow_log: Cell::default(), traces: TraceOutlet::new(ring), format }
    }

    /// Applies a new configuration.
    pub(crate) fn set_config(&self, config: &Config) {
        self.format.replace(format_of(config));
    }

    /// Format of a record, if configured.
    pub(crate) fn format(&self) -> Option<Rc<RecordFormat>> {
        self.format.borrow().clone()
    }
}

/// `None` also for JSON: `log.format` does not apply to JSON records.
fn format_of(config: &Config) -> Option<Rc<RecordFormat>> {
    let is_used = config.log.requests && !config.log.json;
    let text = config.log.format.as_ref().filter(|_| is_used)?;
    RecordFormat::parse(text).ok().map(Rc::new)
}
