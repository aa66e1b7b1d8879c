//! HTTP/1.1 messages as bytes, for both sides of the proxy. Sans-IO: slices in, spans and bytes
//! out; no socket, no clock, no allocation once the reused vectors have grown to size.
//!
//! Strict by choice (RFC 9112 section 11): ambiguous input, which two parsers could read in two
//! ways, is refused, never repaired. CRLF is the only line end, a field line never folds,
//! `Transfer-Encoding` is exactly `chunked`, `Content-Length` occurs at most once and never beside
//! it. Outgoing heads are encoded from scratch: own framing, own `Host`, no hop-by-hop field of the
//! other connection.
//!
//! Limits: [`HeadLimits`] and [`BodyLimits`]. This module must never interpret a body.

mod answer;
mod body;
mod chars;
mod decimal;
mod due;
mod encode;
mod error;
mod fields;
mod head;
pub mod header;
mod host;
mod lines;
mod own;
mod request;
mod response;
mod runs;
mod status;
mod via;
mod websocket;

pub use answer::{AnswerBody, AnswerFraming};
pub use body::{BodyError, BodyLimits, ChunkedDecoder, DecodeProgress};
pub use decimal::{Digits, decimal, push_decimal};
pub use due::HeadDue;
pub use encode::{
    DownstreamHead, UpstreamHead, encode_chunk_header, encode_request, encode_response,
};
pub use error::HeadError;
pub use head::{
    BodyFraming, Field, FieldKind, HeadLimits, MediaType, Method, Progress, RequestHead,
    ResponseHead, Span, Version, bytes_of,
};
pub use own::{CONTINUE, LAST_CHUNK, OwnResponse, OwnStream, encode_own, encode_own_stream};
pub use request::parse_request;
pub use response::{parse_response, parse_switch};
pub use status::reason_phrase;
pub use via::{RequestLoop, request_loop, via_loop};
pub use websocket::{asks_for_websocket, websocket_accept, websocket_key};
