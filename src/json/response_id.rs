//! The id of a response, read from the answer of `POST /v1/responses` as the answer passes.
//!
//! | answer | place of `id` |
//! |---|---|
//! | JSON | the outermost object |
//! | a stream | `response` of an event |

use crate::event_lines::{DataPart, EventLines};
use crate::member_path::MemberPath;
use forebay_base::ResponseId;
use forebay_base::limits::{RESPONSE_ID_BYTES_MAX, RESPONSE_ID_SEARCH_BYTES_MAX};
use std::ops::ControlFlow::{self, Break, Continue};

/// The search through the beginning of an answer.
#[derive(Debug)]
pub struct ResponseIdScan {
    lines: EventLines,
    path: MemberPath,
    text: Option<Vec<u8>>,
    bytes_left: usize,
}

impl ResponseIdScan {
    /// For a stream of events, or an answer of JSON.
    #[must_use]
    pub fn new(is_stream: bool) -> Self {
        let lines = EventLines::new(is_stream);
        let path = MemberPath::new(b"id");
        Self { lines, path, text: None, bytes_left: RESPONSE_ID_SEARCH_BYTES_MAX }
    }

    /// Takes the next bytes of the body. Breaks when the search is over, with the id if the answer
    /// has an id.
    pub fn feed(&mut self, data: &[u8]) -> ControlFlow<Option<ResponseId>> {
        let mut rest = data.get(..self.bytes_left).unwrap_or(data);
        self.bytes_left -= rest.len();
        while let Some((part, behind)) = self.lines.next(rest) {
            rest = behind;
            match part {
                DataPart::Data(data) => self.read(data)?,
                DataPart::End if self.text.is_some() => return Break(None),
                DataPart::End => self.path.begin_event(),
            }
        }
        if self.bytes_left == 0 { Break(None) } else { Continue(()) }
    }

    fn read(&mut self, data: &[u8]) -> ControlFlow<Option<ResponseId>> {
        let value = match self.text {
            Some(_) => data,
            None => match self.path.feed(data) {
                Some(at) => data.get(at..).unwrap_or_default(),
                None => return Continue(()),
            },
        };
        let text = self.text.get_or_insert_default();
        for &byte in value {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' if text.is_empty() => {}
                b'"' if text.is_empty() => text.push(byte),
                b'"' => return Break(text.get(1..).and_then(ResponseId::of)),
                _ if text.is_empty() || text.len() > RESPONSE_ID_BYTES_MAX => return Break(None),
                _ => text.push(byte),
            }
        }
        Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str, is_stream: bool, piece: usize) -> Option<ResponseId> {
        let mut scan = ResponseIdScan::new(is_stream);
        for piece in body.as_bytes().chunks(piece) {
            if let Break(found) = scan.feed(piece) {
                return found;
            }
        }
        None
    }

    #[test]
    fn it_is_found_however_it_is_cut() {
        let whole =
            r#"{ "metadata":{"id":"resp_2"},"x":"\"id\":\"resp_3\"","id" : "resp_1","y":1}"#;
        let stream = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"object\":\
                      \"response\"},\"type\":\"response.created\"}\n\n";
        for piece in 1..whole.len() {
            for (body, is_stream) in [(whole, false), (stream, true)] {
                assert_eq!(found(body, is_stream, piece), ResponseId::of(b"resp_1"), "{piece}");
            }
        }
    }

    #[test]
    fn what_is_no_id_ends_the_search() {
        let long = format!("{{\"id\":\"{}\"}}", "a".repeat(65));
        let late = format!("{{\"x\":\"{}\",\"id\":\"resp_1\"}}", "a".repeat(16 * 1024));
        for body in ["{\"id\":7}", "{\"id\":\"a/b\"}", "{\"id\":\"\"}", "[]", &long, &late] {
            assert_eq!(found(body, false, 100), None, "{body}");
        }
    }
}
