//! Sends a request and waits for the head of its answer, as long as the client waits for the
//! answer.

use super::{Upstream, Watch, WatchEnd};
use crate::ingress::Turn;
use forebay_base::limits::{INTERIM_HEADS_MAX, READ_BYTES};
use forebay_http1::{
    HeadDue, HeadLimits, Method, Progress, ResponseHead, parse_response, parse_switch,
};
use forebay_link::LinkWriter;
use forebay_net::submit_alone;
use forebay_router::dispatch::RelayError;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::Poll;

/// Body bytes of a system call. Pieces limit how long a large body keeps the shard busy.
const PIECE_BYTES: usize = 8 * READ_BYTES;
/// A longer body is sent from where it lies, without a copy.
const COPIED_BYTES_MAX: usize = READ_BYTES - 2 * 1024;

/// The request as it goes to the worker.
#[derive(Debug)]
pub struct Outbound<'a> {
    /// Encoded head; a short body is appended to it.
    pub head: Vec<u8>,
    /// The body, verbatim.
    pub body: &'a [u8],
    /// The method: answers to HEAD have no body.
    pub method: &'a Method,
    /// The request asks for another protocol: a 101 is an answer, else an error.
    pub may_switch: bool,
    /// Limits of the answer's head.
    pub limits: &'a HeadLimits,
}

/// Sends the request; returns when the final answer's head is complete in `upstream.input` and
/// parsed into `response`. True if the whole request had been sent by then (else the connection
/// cannot be used again). The deadline for the first byte is that of `watch`, set by the caller.
///
/// # Errors
/// [`RelayError`], all of them `before_head`, or an error of `watch`.
pub async fn send(
    watch: &mut impl Watch,
    upstream: &mut Upstream,
    outbound: Outbound<'_>,
    response: &mut ResponseHead,
) -> Result<bool, RelayError> {
    let Outbound { head, body, method, may_switch, limits } = outbound;
    let Upstream { reader, writer, input, .. } = upstream;
    let mut writing = pin!(write_all(writer, head, body));
    let mut is_over = false;
    let mut sent = false;
    let mut heads = Heads { may_switch, ..Heads::default() };
    poll_fn(|cx| {
        if !is_over && let Poll::Ready(result) = writing.as_mut().poll(cx) {
            // A worker may refuse early and stop reading; its answer is on the way then, so go on
            // reading.
            is_over = true;
            sent = result.is_ok();
            submit_alone();
        }
        loop {
            match reader.poll_chunk(cx) {
                Poll::Ready(Ok(chunk)) if !chunk.is_empty() => {
                    if input.is_empty() {
                        *input = chunk;
                    } else {
                        input.extend_from_slice(&chunk);
                    }
                    match heads.last(input, method, limits, response) {
                        Ok(Progress::Complete) => return Poll::Ready(Ok(sent)),
                        Ok(Progress::Partial) => {}
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                // An interim head is a byte too: the worker has read the request.
                Poll::Ready(_) if input.is_empty() && heads.interim_count == 0 => {
                    return Poll::Ready(Err(RelayError::ClosedBeforeHead));
                }
                Poll::Ready(_) => return Poll::Ready(Err(RelayError::ClosedInHead)),
                Poll::Pending => break,
            }
        }
        if let Poll::Ready(lost) = watch.poll_lost(cx) {
            return Poll::Ready(Err(lost));
        }
        watch.poll_over(cx).map(|over| {
            Err(match over {
                WatchEnd::Late => RelayError::FirstByteTimedOut,
                WatchEnd::Down => RelayError::DownBeforeHead,
                WatchEnd::Stalled => RelayError::Stalled,
            })
        })
    })
    .await
}

/// State of the heads of an answer.
#[derive(Default)]
struct Heads {
    may_switch: bool,
    due: HeadDue,
    interim_count: usize,
}

impl Heads {
    /// Parses heads up to the final head. Interim heads (100, 103) end here: the router asked, not
    /// the client.
    fn last(
        &mut self,
        input: &mut Vec<u8>,
        method: &Method,
        limits: &HeadLimits,
        response: &mut ResponseHead,
    ) -> Result<Progress, RelayError> {
        let parse = if self.may_switch { parse_switch } else { parse_response };
        while self.due.is_due(input, limits) {
            match parse(input, method, limits, response) {
                Err(_) => return Err(RelayError::HeadInvalid),
                Ok(Progress::Partial) => return Ok(Progress::Partial),
                Ok(Progress::Complete) if response.status == 101 => return Ok(Progress::Complete),
                Ok(Progress::Complete) if response.status >= 200 => return Ok(Progress::Complete),
                Ok(Progress::Complete) if self.interim_count == INTERIM_HEADS_MAX => {
                    return Err(RelayError::InterimEndless);
                }
                Ok(Progress::Complete) => {
                    self.interim_count += 1;
                    self.due = HeadDue::default();
                    input.drain(..response.head_bytes.min(input.len()));
                }
            }
        }
        Ok(Progress::Partial)
    }
}

async fn write_all(writer: &mut LinkWriter, head: Vec<u8>, mut body: &[u8]) -> io::Result<()> {
    if body.len() <= COPIED_BYTES_MAX {
        let mut message = head;
        message.extend_from_slice(body);
        let sent = writer.send(message).await?;
        writer.recycle(sent);
        return Ok(());
    }
    let mut begin = head.as_slice();
    let mut turn = Turn::default();
    while !body.is_empty() {
        let piece = body.get(..PIECE_BYTES).unwrap_or(body);
        let sent = writer.try_send(&[IoSlice::new(begin), IoSlice::new(piece)])?;
        if sent == 0 {
            writer.room().await?;
            continue;
        }
        let of_head = sent.min(begin.len());
        begin = begin.get(of_head..).unwrap_or_default();
        body = body.get(sent - of_head..).unwrap_or_default();
        turn.copied(sent).await;
    }
    writer.flush().await?;
    writer.recycle(head);
    Ok(())
}
