//! Buffers of a connection. A request borrows them, and their memory is reused by the next request.

use super::rate_fields::RateFields;
use forebay_http1::{FieldKind, RequestHead, ResponseHead};
use forebay_identity::ForwardedFields;
use forebay_prompt::parse::ApiRequest;
use forebay_select::Prompt;

/// Longest client `x-request-id` that the router uses.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Buffers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Parsed head. Its spans point into `message`, or into the connection's input until the
    /// message is read.
    pub(crate) head: RequestHead,
    /// Head and body of the request, without the body's framing.
    pub(crate) message: Vec<u8>,
    /// Scan of the body. Boxed: it goes to the offload thread and back.
    pub(crate) api: Box<ApiRequest>,
    /// Prompt of the request, rendered and matched.
    pub(crate) prompt: Prompt,
    /// Body of the decode leg.
    pub(crate) leg_body: Vec<u8>,
    /// Head of the worker's answer.
    pub(crate) answer_head: ResponseHead,
    pub(crate) fields: FieldBuffers,
}

/// Values of fields that the router adds to messages.
#[derive(Debug, Default)]
pub(crate) struct FieldBuffers {
    /// Id of the request: the client's, or a generated id.
    pub(crate) request_id: Vec<u8>,
    /// Forwarded fields for workers.
    pub(crate) forwarded: ForwardedFields,
    /// Rate limit fields for the client.
    pub(crate) limits: RateFields,
}

impl Buffers {
    /// Begins a request: empties what a phase reads before it writes. `message`, `prompt` and
    /// `answer_head` are written first. `input` holds the head; `None` where it cannot be read.
    pub(crate) fn begin(&mut self, input: Option<&[u8]>, fresh_id: u64) {
        let sent = input.and_then(|input| self.head.value_of(FieldKind::RequestId, input));
        let mut buffer = [0; 16];
        let id = request_id(sent, fresh_id, &mut buffer);
        self.fields.request_id.clear();
        self.fields.request_id.extend_from_slice(id);
        self.fields.forwarded.clear();
        self.fields.limits.clear();
        self.api.clear();
        // Its length counts for each attempt. A pair that failed may have left a body.
        self.leg_body.clear();
    }

    /// Body of the request, once the message is read.
    pub(crate) fn body(&self) -> &[u8] {
        self.message.get(self.head.head_bytes..).unwrap_or_default()
    }

    pub(crate) fn request_id(&self) -> &[u8] {
        &self.fields.request_id
    }
}

/// Id of a request: the client's if short and printable, else 16 hex digits.
fn request_id<'a>(sent: Option<&'a [u8]>, fresh: u64, buffer: &'a mut [u8; 16]) -> &'a [u8] {
    if let Some(id) = sent
        && !id.is_empty()
        && id.len() <= REQUEST_ID_BYTES_MAX
        && id.iter().all(u8::is_ascii_graphic)
    {
        return id;
    }
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for (position, byte) in buffer.iter_mut().enumerate() {
        let nibble = (fresh >> (60 - 4 * position)) & 15;
        *byte = usize::try_from(nibble).ok().and_then(|n| DIGITS.get(n)).copied().unwrap_or(b'0');
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::request_id;

    #[test]
    fn ids_are_kept_when_sane_and_made_otherwise() {
        let mut buffer = [0; 16];
        assert_eq!(request_id(Some(b"abc-1"), 0, &mut buffer), b"abc-1");
        let fresh = 0x0123_4567_89ab_cdef;
        for bad in [Some(&b""[..]), Some(b"a b"), Some(&[b'x'; 129]), None] {
            assert_eq!(request_id(bad, fresh, &mut buffer), b"0123456789abcdef");
        }
    }
}
