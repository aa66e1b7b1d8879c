//! What becomes of a body that nobody wants: thrown away as it comes, so that the client, which may
//! send all of it before it reads, gets its answer. Closing with unread bytes would make the kernel
//! send a reset, which can destroy the answer on its way.

use crate::exchange::phase::After;
use crate::ingress::{Conn, DiscardBounds, Discarding, ReadEnd};
use crate::state::env::Env;
use forebay_http1::{BodyError, BodyFraming, BodyLimits, ChunkedDecoder, RequestHead};
use std::time::Duration;

/// A client that sends nothing for so long while its answer waits for it is cut.
const STALL_MAX: Duration = Duration::from_secs(5);
/// Longest that one is listened to in all.
const TIME_MAX: Duration = Duration::from_secs(30);

/// What the router would take as a body it also throws away; a client that sends more is cut.
pub(crate) fn bounds(env: &Env) -> DiscardBounds {
    DiscardBounds {
        bytes_max: env.config().limits.body_bytes_max,
        stall_max: STALL_MAX,
        time_max: TIME_MAX,
    }
}

/// Whether the connection can go on after a refusal: it is known where the next request starts, and
/// not too far.
pub(crate) fn goes_on(env: &Env, conn: &Conn, head: &RequestHead) -> bool {
    // Who waits for 100 Continue may now leave the body out or not (RFC 9110 10.1.1); who has
    // begun, sends it.
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

/// Throws the head and body of a refused request away. What then stands in the input is the next
/// request.
pub(crate) async fn request(env: &Env, conn: &mut Conn, head: &RequestHead) -> After {
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
        BodyFraming::UntilClose => Err(Unfinished::Malformed),
    };
    match ended {
        Ok(()) => After::KeepAlive,
        Err(Unfinished::Malformed) => After::Linger,
        Err(Unfinished::Cut) => After::Drop,
    }
}

/// Why the end of a body was not found.
enum Unfinished {
    Malformed,
    /// The client closed, stalled, or went on for too long.
    Cut,
}

impl From<ReadEnd> for Unfinished {
    fn from(_: ReadEnd) -> Self {
        Self::Cut
    }
}

impl From<BodyError> for Unfinished {
    fn from(_: BodyError) -> Self {
        Self::Malformed
    }
}

async fn known(discarding: &mut Discarding<'_>, bytes: usize) -> Result<(), Unfinished> {
    let mut left = bytes;
    loop {
        left -= discarding.consume(left);
        if left == 0 {
            return Ok(());
        }
        discarding.more().await?;
    }
}

async fn chunked(discarding: &mut Discarding<'_>) -> Result<(), Unfinished> {
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
