//! Admin API calls on the client port. The shard relays the bytes between client and control plane
//! without parsing them. The connection ends with the answer.

use crate::exchange::buffers::Buffers;
use crate::exchange::phase::ConnectionReuse;
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::relay::{Halves, TunnelDirection, TunnelEnd, TunnelLimits, TunnelWatch, tunnel};
use crate::reply::refusal;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_http1::{BodyFraming, FieldKind, RequestHead, UpstreamHead, encode_request};
use forebay_link::link;
use forebay_mailbox::{AdminConnectError, AdminConnector, is_on_client_port};
use forebay_net::Socket;
use forebay_prompt::parse::{Reason, Refusal};
use forebay_router::dispatch::RelayError;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Adding a worker may wait up to 10 minutes.
const ANSWER_MAX: Duration = Duration::from_secs(660);
/// Time for the client to close after its answer.
const AFTER_ANSWER_MAX: Duration = Duration::from_secs(1);
const TOO_MANY: &str = "\
Too many calls of the admin API are under way by this port. Try again later, or call its own.";

/// Connector to the admin API, if the request is an admin call.
pub(crate) fn connector<'a>(
    shard: &'a Shard,
    conn: &Conn,
    head: &RequestHead,
) -> Option<&'a dyn AdminConnector> {
    let connector = shard.links.control.admin.as_deref()?;
    is_on_client_port(head.path(&conn.input)).then_some(connector)
}

/// Relays the call and its answer.
pub(crate) async fn pass(
    shard: &Shard,
    conn: &mut Conn,
    buffers: &mut Buffers,
    connector: &dyn AdminConnector,
) -> ConnectionReuse {
    let opened = connector.open(conn.client.peer).map_err(|closed| match closed {
        AdminConnectError::Full => Refusal::new(Reason::RejectedInFlight).with_message(TOO_MANY),
        AdminConnectError::Closed => Refusal::new(Reason::Draining),
    });
    let socket = opened.and_then(|stream| {
        // Any connected stream socket works.
        let socket = Socket::from_std(TcpStream::from(OwnedFd::from(stream)));
        socket.map_err(|_| Refusal::new(Reason::OutOfSockets))
    });
    let socket = match socket {
        Ok(socket) => socket,
        Err(refusal) => {
            let request = Request::unread(buffers, shard.fresh_id());
            return refusal::and_close(&shard.env, conn, &request, &refusal).await;
        }
    };
    let call = call(&buffers.head, &conn.input);
    conn.consume(buffers.head.head_bytes);
    conn.input.splice(..0, call);
    let (mut reader, mut writer) = link(socket, None);
    let far = Halves { reader: &mut reader, writer: &mut writer };
    let write_max = shard.env.config().timeouts.write;
    let limits = TunnelLimits {
        idle_max: ANSWER_MAX,
        half_closed_max: AFTER_ANSWER_MAX,
        client_write_max: write_max,
        worker_write_max: write_max,
    };
    let first = conn.buffer();
    match tunnel(conn, far, first, limits, &mut DrainWatch(&shard.env)).await {
        Ok(TunnelEnd::Over) => ConnectionReuse::Linger,
        Ok(TunnelEnd::Closed) | Err(_) => ConnectionReuse::Drop,
    }
}

/// Rewrites the head with `connection: close`, so that bytes after the call are not taken for
/// another call.
fn call(head: &RequestHead, input: &[u8]) -> Vec<u8> {
    let host = head.value_of(FieldKind::Host, input).unwrap_or_default();
    let mut fields = vec![("connection", &b"close"[..])];
    let mut content_length = None;
    match head.body {
        BodyFraming::Length(bytes) => content_length = Some(bytes),
        BodyFraming::Chunked => fields.push(("transfer-encoding", b"chunked")),
        BodyFraming::None | BodyFraming::UntilClose => {}
    }
    if head.expect_continue {
        fields.push(("expect", b"100-continue"));
    }
    let upstream = UpstreamHead {
        authority: str::from_utf8(host).unwrap_or_default(),
        // Without the router's id, by which the admin API would take the call for a worker's.
        via: b"forebay",
        content_length,
        request_id: b"",
        authorization: None,
        extra: &fields,
    };
    let mut call = Vec::with_capacity(head.head_bytes + 64);
    encode_request(head, input, &upstream, &mut call);
    call
}

/// Ends the tunnel with the drain. Counts no bytes, because no worker receives them.
struct DrainWatch<'a>(&'a Env);

impl TunnelWatch for DrainWatch<'_> {
    fn passes(&mut self, _: TunnelDirection, _: usize) {}

    fn look(&mut self) -> Option<Result<TunnelEnd, RelayError>> {
        let over = self.0.drain_until().is_some_and(|until| self.0.now() >= until);
        over.then_some(Ok(TunnelEnd::Over))
    }
}
