//! Who sends a request: the other end of its connection, or whom a proxy speaks for that is
//! trusted. Nothing of it is looked at on the way of a request unless the configuration asks.

use super::body::NoRequest;
use super::first_byte::first_byte;
use crate::exchange::buffers::{Buffers, FieldBuffers};
use crate::exchange::request::Request;
use crate::ingress::Conn;
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_config::Forwarded;
use forebay_fleet::account::Count;
use forebay_http1::{RequestHead, bytes_of};
use forebay_identity::{ForwardedFields, ProxyFault, client_of, parse_proxy_header};
use forebay_prompt::parse::{Reason, Refusal};
use std::net::SocketAddr;

/// The beginning of a connection. False: it ends here, without an answer, because nothing says yet
/// that its client speaks HTTP in clear text.
pub(crate) async fn connected(shard: &Shard, conn: &mut Conn) -> bool {
    let env = &shard.env;
    let trusted = shard.intake.trusted();
    let mut is_known = true;
    if trusted.holds(conn.client.peer.ip()) && env.config().client.proxy_protocol {
        match proxy_header(env, conn).await {
            Ok(Some(source)) => conn.client.speaks_for(source),
            // Nobody knows whose bytes these are: not even their first hop is believed.
            Ok(None) => is_known = false,
            Err(fault) => {
                if let Some(fault) = fault {
                    env.count(Count::ProxyHeaderFaults);
                    tracing::debug!(peer = %conn.client.peer, "a connection was closed: {fault}");
                }
                return false;
            }
        }
    }
    conn.client.is_proxy = is_known && trusted.holds(conn.client.from.ip());
    if conn.client.is_proxy {
        return true;
    }
    let Ok(place) = shard.intake.addresses.take(conn.client.address) else {
        env.count(Count::ConnectionsRefusedAddress);
        return false;
    };
    conn.client.place = place;
    true
}

/// What the PROXY header says; the client's own bytes stay in the input. The error is `None` where
/// the connection ends without a byte: balancers look in this way whether the port is open.
async fn proxy_header(
    env: &Env,
    conn: &mut Conn,
) -> Result<Option<SocketAddr>, Option<ProxyFault>> {
    conn.wait_at_most(env.config().timeouts.head);
    first_byte(env, conn).await.map_err(|_: NoRequest| None)?;
    loop {
        if let Some(header) = parse_proxy_header(&conn.input)? {
            conn.consume(header.bytes);
            return Ok(header.source);
        }
        conn.fill().await.map_err(|_| ProxyFault::Malformed)?;
    }
}

/// Finds the client of a request that a trusted proxy sends.
pub(crate) fn find_client(shard: &Shard, conn: &mut Conn, head: &RequestHead) {
    if conn.client.is_proxy {
        let said = sent(head, &conn.input, "x-forwarded-for");
        conn.client.address = client_of(conn.client.from.ip(), said, &shard.intake.trusted());
    }
}

/// Counts a request that a proxy sends for its client as a connection of this client, and writes
/// what a worker is told.
///
/// # Errors
/// A refusal when the client has too many.
pub(crate) fn admit(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
) -> Result<(), Refusal> {
    let intake = &shard.intake;
    if conn.client.is_proxy && !intake.trusted().holds(conn.client.address) {
        let taken = intake.addresses.take(conn.client.address);
        conn.client.place = taken.map_err(|_| Refusal::new(Reason::RejectedAddress))?;
    }
    let said = match shard.env.config().client.forwarded {
        Forwarded::Off => return Ok(()),
        Forwarded::Append => conn.client.from.ip(),
        Forwarded::Replace => conn.client.address,
    };
    let Buffers { head, fields: FieldBuffers { forwarded: fields, .. }, .. } =
        &mut *request.buffers;
    fields.is_only = shard.env.config().client.forwarded == Forwarded::Replace;
    if shard.env.config().client.forwarded == Forwarded::Append {
        keep(head, &conn.input, fields);
    }
    fields.say(said);
    Ok(())
}

/// What the client has sent.
fn keep(head: &RequestHead, input: &[u8], fields: &mut ForwardedFields) {
    sent(head, input, "x-forwarded-for").for_each(|value| fields.keep_x_forwarded_for(value));
    sent(head, input, "forwarded").for_each(|value| fields.keep_forwarded(value));
}

/// Values of a field, in their order.
pub(crate) fn sent<'a>(
    head: &'a RequestHead,
    input: &'a [u8],
    name: &'static str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> {
    let is_it = move |field: &[u8]| field.eq_ignore_ascii_case(name.as_bytes());
    let named = head.fields.iter().filter(move |field| is_it(bytes_of(input, &field.name)));
    named.map(|field| bytes_of(input, &field.value))
}

/// A request has ended. A proxy's connection counts for a client only while it serves one.
pub(crate) fn answered(conn: &mut Conn) {
    if conn.client.is_proxy {
        conn.client.place = None;
    }
}
