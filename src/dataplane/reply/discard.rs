//! Discards the body of a refused request as it arrives, because a client may send all of it before
//! it reads the answer. Closing with unread bytes would make the kernel send a reset, which can
//! destroy the answer in flight.

use crate::exchange::phase::ConnectionReuse;
use crate::ingress::{Conn, DiscardBounds, Discarding, ReadEnd};
use crate::state::env::Env;
use forebay_http1::{BodyError, BodyFraming, BodyLimits, ChunkedDecoder, RequestHead};
use std::time::Duration;

/// Longest pause of a client during the discard.
const STALL_MAX: Duration = Duration::from_secs(5);
/// Longest discard in total.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Limits of a discard. The router discards at most the bytes that it would accept as a body.
pub(crate) fn bounds(env: &Env) -> DiscardBounds {
    DiscardBounds {
        bytes_max: env.config().limits.body_bytes_max,
        flush_max: env.config().timeouts.write,
        stall_max: STALL_MAX,
        time_max: TIME_MAX,
    }
}

/// True if the connection stays usable after a refusal: the start of the next request is known and
/// near.
pub(crate) fn goes_on(env: &Env, conn: &Conn, head: &RequestHead) -> bool {
    // A client that waits for 100 Continue may now send the body or not (RFC 9110 10.1.1). A client
    // that has sent part of the body sends the rest.
    let waits = head.expect_continue && conn.input.len() <= head.head_bytes;
    let has_near_end = match head.body {
        BodyFraming::None => true,
        BodyFraming::Length(bytes) => {
            !waits && bytes <= u64::try_from(bounds(env).bytes_max).unwrap_or(u64::MAX)
        }
        BodyFraming::Chunked => !waits,
        BodyFraming::UntilClose => false,
    };
    has_near_end && head.keep_alive && !env.draining.is_set()
}

/// Discards head and body of a refused request. The input then begins with the next request.
pub(crate) async fn request(env: &Env, conn: &mut Conn, head: &RequestHead) -> ConnectionReuse {
    let mut discarding = conn.discarding(bounds(env));
    let ended = match head.body {
        BodyFraming::None => known(&mut discarding, head.head_bytes).await,
        BodyFraming::Length(bytes) => {
            let body_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            known(&mut discarding, head.head_bytes.saturating_add(body_bytes)).await
        }
        BodyFraming::Chunked => {
            discarding.consume(head.head_bytes);
            chunked(&mut discarding).await
        }
        BodyFraming::UntilClose => Err(UnfinishedBody::Malformed),
    };
    match ended {
        Ok(()) => ConnectionReuse::KeepAlive,
        Err(UnfinishedBody::Malformed) => ConnectionReuse::Linger,
        Err(UnfinishedBody::Cut) => ConnectionReuse::Drop,
    }
}

/// Why the end of a body was not reached.
enum UnfinishedBody {
    Malformed,
    /// The client closed, stalled, or exceeded a limit.
    Cut,
}

impl From<ReadEnd> for UnfinishedBody {
    fn from(_: ReadEnd) -> Self {
        Self::Cut
    }
}

impl From<BodyError> for UnfinishedBody {
    fn from(_: BodyError) -> Self {
        Self::Malformed
    }
}

async fn known(discarding: &mut Discarding<'_>, bytes: usize) -> Result<(), UnfinishedBody> {
    let mut left = bytes;
    loop {
        left -= discarding.consume(left);
        if left == 0 {
            return Ok(());
        }
        discarding.more().await?;
    }
}

async fn chunked(discarding: &mut Discarding<'_>) -> Result<(), UnfinishedBody> {
    let mut decoder = ChunkedDecoder::new(&BodyLimits::default());
    loop {
        let step = decoder.decode(&mut discarding.conn.input)?;
        discarding.consume(step.consumed_bytes);
        if step.done {
            return Ok(());
        }
        discarding.more().await?;
    }
}
