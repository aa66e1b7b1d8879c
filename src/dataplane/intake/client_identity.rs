//! Address of a request's client: the peer of its connection, or the address that a trusted proxy
//! reports. Costs nothing per request unless configured.

use super::body::NoRequest;
use super::first_byte::first_byte;
use crate::exchange::buffers::{Buffers, FieldBuffers};
use crate::exchange::request::Request;
use crate::ingress::{ClientSource, Conn};
use crate::state::env::Env;
use crate::state::shard::Shard;
use forebay_board::account::Count;
use forebay_config::Forwarded;
use forebay_http1::{RequestHead, bytes_of};
use forebay_identity::{ForwardedFields, ProxyFault, client_of, parse_proxy_header};
use forebay_prompt::parse::{Reason, Refusal};
use std::net::SocketAddr;

/// Identifies the client of a new connection. False: close the connection without an answer,
/// because the client may not speak plain HTTP.
pub(crate) async fn connected(shard: &Shard, conn: &mut Conn) -> bool {
    let env = &shard.env;
    let trusted = shard.intake.trusted();
    if trusted.holds(conn.client.peer.ip()) && env.config().client.proxy_protocol {
        match proxy_header(env, conn).await {
            Ok(Some(source)) => conn.client.speaks_for(source),
            // The origin of these bytes is unknown, so even the first hop's forwarded fields are
            // not trusted.
            Ok(None) => conn.client.source = ClientSource::Unknown,
            Err(fault) => {
                if let Some(fault) = fault {
                    env.count(Count::ProxyHeaderFaults);
                    tracing::debug!(peer = %conn.client.peer, "a connection was closed: {fault}");
                }
                return false;
            }
        }
    }
    let is_known = conn.client.source != ClientSource::Unknown;
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

/// Source address in the PROXY header. The client's own bytes stay in the input. The error is
/// `None` if the connection ends without a byte: load balancers probe the port that way.
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

/// Finds the client of a request that a trusted proxy forwards. The trust is that of the last
/// reload.
pub(crate) fn find_client(shard: &Shard, conn: &mut Conn, head: &RequestHead) {
    let trusted = shard.intake.trusted();
    let expects_header = shard.env.config().client.proxy_protocol;
    conn.client.trust_again(|address| trusted.holds(address), expects_header);
    if conn.client.is_proxy {
        let values = sent(head, &conn.input, "x-forwarded-for");
        conn.client.address = client_of(conn.client.from.ip(), values, &trusted);
    }
}

/// Counts a forwarded request as a connection of its client, and writes the forwarded fields for
/// the worker.
///
/// # Errors
/// A refusal if the client has too many connections.
pub(crate) fn admit(
    shard: &Shard,
    conn: &mut Conn,
    request: &mut Request<'_>,
) -> Result<(), Refusal> {
    let intake = &shard.intake;
    // After a reload a connection may have lost its place with its trust.
    let is_uncounted = conn.client.place.is_none();
    if is_uncounted && !(conn.client.is_proxy && intake.trusted().holds(conn.client.address)) {
        let taken = intake.addresses.take(conn.client.address);
        conn.client.place = taken.map_err(|_| Refusal::new(Reason::RejectedAddress))?;
    }
    let address = match shard.env.config().client.forwarded {
        Forwarded::Off => return Ok(()),
        Forwarded::Append => conn.client.from.ip(),
        Forwarded::Replace => conn.client.address,
    };
    let Buffers { head, fields: FieldBuffers { forwarded: fields, .. }, .. } =
        &mut *request.buffers;
    fields.is_only = shard.env.config().client.forwarded == Forwarded::Replace;
    if shard.env.config().client.forwarded == Forwarded::Append {
        copy_fields(head, &conn.input, fields);
    }
    fields.say(address);
    Ok(())
}

/// Copies the forwarded fields that the client has sent.
fn copy_fields(head: &RequestHead, input: &[u8], fields: &mut ForwardedFields) {
    sent(head, input, "x-forwarded-for").for_each(|value| fields.keep_x_forwarded_for(value));
    sent(head, input, "forwarded").for_each(|value| fields.keep_forwarded(value));
}

/// Values of a field, in order.
pub(crate) fn sent<'a>(
    head: &'a RequestHead,
    input: &'a [u8],
    name: &'static str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> {
    let has_name = move |field: &[u8]| field.eq_ignore_ascii_case(name.as_bytes());
    let named = head.fields.iter().filter(move |field| has_name(bytes_of(input, &field.name)));
    named.map(|field| bytes_of(input, &field.value))
}

/// Ends a request. A proxy's connection counts for a client only while it serves the client's
/// request.
pub(crate) fn answered(conn: &mut Conn) {
    if conn.client.is_proxy {
        conn.client.place = None;
    }
}
