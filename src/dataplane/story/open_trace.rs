//! Trace of a request in progress: its steps, and the context for workers.

use forebay_base::limits::{RECORDED_TEXT_BYTES_MAX, TRACE_STEPS_MAX};
use forebay_base::{NanosSinceStart, RankIndex, TRACEPARENT_BYTES, TraceParent};
use forebay_http1::Method;
use forebay_http1::header::{TRACEPARENT, TRACESTATE};
use forebay_mailbox::{LegTrace, RequestTrace, StepKind, TraceStep};

/// Stride between span ids. Odd, so that no two spans of a request share an id.
const SPAN_STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Trace of a request in progress.
#[derive(Debug)]
pub(crate) struct OpenTrace {
    /// Context of the request's root span.
    pub(crate) context: TraceParent,
    /// `traceparent` for the worker.
    pub(crate) header: [u8; TRACEPARENT_BYTES],
    /// The client's `tracestate` belongs to no valid trace and is removed.
    pub(crate) drops_state: bool,
    /// Number of span ids given out.
    pub(crate) span_count: u64,
    /// Record of a sampled request.
    pub(crate) recorded: Option<Box<RequestTrace>>,
    /// First byte of the answer's body.
    pub(crate) first_at: Option<NanosSinceStart>,
}

impl OpenTrace {
    /// Trace id, as in logs.
    pub(crate) const fn trace(&self) -> u128 {
        self.context.trace
    }

    /// `traceparent`, and an empty `tracestate` to remove the client's.
    pub(crate) fn fields(&self) -> [Option<(&'static str, &[u8])>; 2] {
        let dropped = self.drops_state.then_some((TRACESTATE, &b""[..]));
        [Some((TRACEPARENT, &self.header[..])), dropped]
    }

    pub(crate) const fn next_span(&mut self) -> u64 {
        self.span_count += 1;
        // Never 0, and never the root span's id: the id is odd, and a request has few spans.
        self.context.span.wrapping_add(self.span_count.wrapping_mul(SPAN_STRIDE)) | 1
    }

    /// The request has waited in a queue.
    pub(crate) fn queued(&mut self, from: NanosSinceStart, until: NanosSinceStart) {
        self.step(StepKind::Queue, from, until, None);
    }

    /// The request is sent to a rank. From here on workers receive the context of this attempt.
    pub(crate) fn leaves(&mut self, rank: RankIndex, now: NanosSinceStart) {
        // A stale pooled connection failed the attempt before.
        self.failed("the connection was closed before an answer came", now);
        if let Some(span) = self.step(StepKind::FirstByte, now, now, Some(rank)) {
            self.header = TraceParent { span, ..self.context }.write();
        }
    }

    /// The attempt has failed before its answer began.
    pub(crate) fn failed(&mut self, fault: &'static str, now: NanosSinceStart) {
        let first_at = self.first_at;
        let last = self.recorded.as_mut().and_then(|recorded| recorded.steps.last_mut());
        let is_open = |step: &&mut TraceStep| {
            step.kind == StepKind::FirstByte && step.fault.is_none() && first_at.is_none()
        };
        if let Some(step) = last.filter(is_open) {
            step.until = now;
            step.fault = Some(fault);
        }
    }

    fn step(
        &mut self,
        kind: StepKind,
        from: NanosSinceStart,
        until: NanosSinceStart,
        rank: Option<RankIndex>,
    ) -> Option<u64> {
        let span = self.next_span();
        let steps = &mut self.recorded.as_mut()?.steps;
        if steps.len() >= TRACE_STEPS_MAX {
            return None;
        }
        steps.push(TraceStep { kind, span, from, until, rank, fault: None });
        Some(span)
    }

    /// A prefill leg is sent to this rank. From here on workers receive the context of this leg.
    pub(crate) fn leg(&mut self, rank: RankIndex) -> Option<Box<LegTrace>> {
        self.recorded.as_ref()?;
        let context = TraceParent { span: self.next_span(), ..self.context };
        self.header = context.write();
        let from = NanosSinceStart::default();
        let until = NanosSinceStart::default();
        let parent = self.context.span;
        Some(Box::new(LegTrace { context, parent, rank, from, until, fault: None }))
    }
}

/// Client text, cut to a bounded length.
pub(crate) fn cut(text: &[u8]) -> String {
    let end = text.len().min(RECORDED_TEXT_BYTES_MAX);
    String::from_utf8_lossy(text.get(..end).unwrap_or_default()).into_owned()
}

/// Method name, by OpenTelemetry's semantic conventions.
pub(crate) const fn method_name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
        Method::Patch => "PATCH",
        Method::Connect => "CONNECT",
        Method::Trace => "TRACE",
        Method::Other => "_OTHER",
    }
}
