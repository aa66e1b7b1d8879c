//! Bodies of both legs of a pair. Each is a copy of the client's body. The shard writes small
//! bodies, the offload thread large bodies.

use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::runtime::offloaded;
use crate::state::io::Io;
use forebay_base::limits::INLINE_BODY_BYTES_MAX;
use forebay_disagg::{
    KvTransferId, LegBodies, RankPin, RoomSet, SplitRequest, decode_body, prefill_body,
};
use forebay_fleet::worker::KvTransfer;
use forebay_router::dispatch::RelayError;
use std::mem::take;

/// A split request and the ranks of its legs; see [`LegBodies`].
#[derive(Clone, Debug)]
pub(crate) struct Legs {
    pub(crate) kv_transfer: KvTransfer,
    pub(crate) prefill: RankPin,
    pub(crate) decode: RankPin,
    pub(crate) rooms: RoomSet,
    pub(crate) id: KvTransferId,
}

/// Leg that a body is for.
pub(crate) enum LegKind {
    Prefill,
    /// With the KV transfer parameters of the prefill answer.
    Decode(Option<Vec<u8>>),
}

/// A leg whose body is to be written, and the buffer for it.
pub(crate) struct LegOrder {
    pub(crate) made: LegKind,
    pub(crate) out: Vec<u8>,
}

impl Legs {
    pub(crate) const fn of<'a>(
        &'a self,
        body: &'a [u8],
        wanted: &'a SplitRequest,
    ) -> LegBodies<'a> {
        let Self { kv_transfer, prefill, decode, rooms, id } = self;
        LegBodies {
            body,
            wanted,
            kv_transfer,
            prefill: *prefill,
            decode: *decode,
            rooms: *rooms,
            id: *id,
        }
    }

    fn make(&self, body: &[u8], wanted: &SplitRequest, made: &LegKind, out: &mut Vec<u8>) {
        let bodies = self.of(body, wanted);
        match made {
            LegKind::Prefill => prefill_body(&bodies, out),
            LegKind::Decode(handed) => decode_body(&bodies, handed.as_deref(), out),
        }
    }

    /// Writes the body of a leg.
    ///
    /// # Errors
    /// [`RelayError::ClientGone`] when the client has left, or the offload thread dropped the
    /// request.
    pub(crate) async fn body(
        &self,
        io: &Io,
        conn: &mut Conn,
        request: &mut Request<'_>,
        wanted: &SplitRequest,
        making: LegOrder,
    ) -> Result<Vec<u8>, RelayError> {
        let LegOrder { made, mut out } = making;
        out.clear();
        let head_bytes = request.head.head_bytes;
        let body_bytes = request.message.len().saturating_sub(head_bytes);
        if body_bytes <= INLINE_BODY_BYTES_MAX {
            let body = request.message.get(head_bytes..).unwrap_or_default();
            self.make(body, wanted, &made, &mut out);
            return Ok(out);
        }
        let legs = self.clone();
        let message = take(&mut request.message);
        let its_wanted = wanted.clone();
        let done = offloaded(&io.offload, conn, body_bytes, move |_| {
            let body = message.get(head_bytes..).unwrap_or_default();
            legs.make(body, &its_wanted, &made, &mut out);
            (message, out)
        });
        let (message, out) = done.await.map_err(|_| RelayError::ClientGone)?;
        request.message = message;
        Ok(out)
    }
}
