//! The bodies of both legs: the client's, with the members of the flow.

use super::ids::KvTransferId;
use super::members::{Member, Named};
use super::rooms::{RoomSet, RoomShape};
use super::splice::{Change, Splice, push_escaped, push_string};
use super::wanted::{Wanted, rid_key, rid_start};
use forebay_fleet::worker::{Bootstrap, KvTransfer, Leg, MooncakeSource, PushSource};
use forebay_http1::push_decimal;
use forebay_prompt::parse::Endpoint;

/// Bytes that a leg's body is longer than the client's, for one prompt; only to reserve memory.
const ADDED_BYTES: usize = 512;
/// The same for each further prompt of a list; about that.
pub const ADDED_BYTES_PER_ROOM: usize = 64;

/// What a vLLM prefill is told: compute, and keep the KV for somebody.
const REMOTE_DECODE: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false"#;

/// The data-parallel rank of one leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPin {
    /// Its number inside the worker.
    pub dp_rank: u32,
    /// Ranks of the worker.
    pub dp_size: u32,
    /// Several ranks stand behind one port, and the body has to say which (SGLang). Then no header
    /// may say it too.
    pub in_body: bool,
}

/// One request that is split, and to whom.
#[derive(Clone, Copy, Debug)]
pub struct LegBodies<'a> {
    /// What the client sent.
    pub body: &'a [u8],
    /// Of that body.
    pub wanted: &'a Wanted,
    /// The prefill rank's way.
    pub kv_transfer: &'a KvTransfer,
    /// The prefill rank.
    pub prefill: RankPin,
    /// The decode rank.
    pub decode: RankPin,
    /// Rooms of the prefill rank ([`Wanted::rooms`]); used by [`KvTransfer::Bootstrap`] alone.
    pub rooms: RoomSet,
    /// Names this attempt at both engines.
    pub id: KvTransferId,
}

/// `X-Request-Id` of both legs. vLLM pairs the legs of a push by it, so there it is of this attempt
/// alone: two requests that clients call the same would get each other's KV.
#[must_use]
pub fn legs_request_id<'a>(
    kv_transfer: &KvTransfer,
    id: &'a KvTransferId,
    of_client: &'a [u8],
) -> &'a [u8] {
    if matches!(kv_transfer, KvTransfer::Push(_)) { id.rid() } else { of_client }
}

/// Appends the body of the prefill leg.
pub fn prefill_body(legs: &LegBodies<'_>, out: &mut Vec<u8>) {
    match legs.kv_transfer {
        KvTransfer::Bootstrap(bootstrap) => legs.bootstrap(bootstrap, Leg::Prefill, out),
        KvTransfer::TwoPhase | KvTransfer::Push(_) => legs.vllm(Leg::Prefill, out, |params| {
            params.extend_from_slice(REMOTE_DECODE);
            params.push(b'}');
        }),
        KvTransfer::Mooncake(_) => legs.vllm(Leg::Prefill, out, |params| {
            params.extend_from_slice(REMOTE_DECODE);
            legs.push_transfer_id(params);
            params.push(b'}');
        }),
    }
}

/// Appends the body of the decode leg. `handed`: the object that prefill has answered with, for
/// [`KvTransfer::TwoPhase`]; without it decode is to compute everything itself.
pub fn decode_body(legs: &LegBodies<'_>, handed: Option<&[u8]>, out: &mut Vec<u8>) {
    match legs.kv_transfer {
        KvTransfer::Bootstrap(bootstrap) => legs.bootstrap(bootstrap, Leg::Decode, out),
        KvTransfer::TwoPhase => match handed {
            Some(handed) => {
                legs.vllm(Leg::Decode, out, |params| params.extend_from_slice(handed));
            }
            None => out.extend_from_slice(legs.body),
        },
        KvTransfer::Push(source) => {
            legs.vllm(Leg::Decode, out, |params| legs.push_source(source, params));
        }
        KvTransfer::Mooncake(source) => {
            legs.vllm(Leg::Decode, out, |params| legs.push_mooncake(source, params));
        }
    }
}

impl LegBodies<'_> {
    fn vllm(&self, leg: Leg, out: &mut Vec<u8>, params: impl FnOnce(&mut Vec<u8>)) {
        let endpoint = self.wanted.endpoint;
        let change = |member: &Member| vllm_change(endpoint, leg, member.named);
        let mut splice = Splice::begin(self.body, self.wanted, change, ADDED_BYTES, out);
        let limit = limit_key(endpoint);
        let lacks = |named: &Named| leg == Leg::Prefill && self.wanted.last(*named).is_none();
        let least = has_least(endpoint).then_some(Named::MinTokens);
        for named in [Some(limit), least].into_iter().flatten().filter(lacks) {
            splice.member(named.key()).push(b'1');
        }
        params(splice.member(Named::KvTransferParams.key()));
        splice.finish();
    }

    /// Where a push comes from (vLLM 0.33, `kv_connector/v1/nixl/push_scheduler.py`). An IPv6
    /// address stands there without brackets: vLLM puts them itself (`make_zmq_path`).
    fn push_source(&self, source: &PushSource, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"do_remote_prefill":true,"do_remote_decode":false,"#);
        out.extend_from_slice(br#""remote_engine_id":"#);
        push_string(&source.engine_id, out);
        out.extend_from_slice(br#","remote_host":"#);
        push_string(without_brackets(&source.host), out);
        out.extend_from_slice(br#","remote_port":"#);
        push_decimal(u64::from(source.port), out);
        out.extend_from_slice(br#","tp_size":"#);
        push_decimal(u64::from(source.tp_size), out);
        out.extend_from_slice(br#","pp_size":"#);
        push_decimal(u64::from(source.pp_size), out);
        out.extend_from_slice(br#","remote_request_id":"#);
        out.push(b'"');
        out.extend_from_slice(self.id.rid());
        out.extend_from_slice(b"\"}");
    }

    fn push_mooncake(&self, source: &MooncakeSource, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"do_remote_decode":false,"do_remote_prefill":true,"#);
        out.extend_from_slice(br#""remote_bootstrap_addr":"#);
        push_string(&source.bootstrap_addr, out);
        out.extend_from_slice(br#","remote_engine_id":"#);
        push_string(&source.engine_id, out);
        self.push_transfer_id(out);
        out.push(b'}');
    }

    fn push_transfer_id(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#","transfer_id":"xfer-"#);
        out.extend_from_slice(self.id.digits());
        out.push(b'"');
    }

    /// The same for both legs but for the pin. All members are put anew, whatever the client sent:
    /// a name that stands there twice is an error to some parsers.
    fn bootstrap(&self, bootstrap: &Bootstrap, leg: Leg, out: &mut Vec<u8>) {
        let endpoint = self.wanted.endpoint;
        let rid = rid_key(endpoint).filter(|rid| !self.wanted.is_set(*rid, self.body));
        let change = |member: &Member| sglang_change(member.named, rid);
        let rooms = self.rooms.iter().count();
        let added = ADDED_BYTES.saturating_add(rooms.saturating_mul(ADDED_BYTES_PER_ROOM));
        let mut splice = Splice::begin(self.body, self.wanted, change, added, out);
        let host = Host::of(&bootstrap.host);
        self.push_each(splice.member(Named::BootstrapHost.key()), |_, out| host.push(out));
        self.push_each(splice.member(Named::BootstrapPort.key()), |_, out| match bootstrap.port {
            Some(port) => push_decimal(u64::from(port), out),
            None => out.extend_from_slice(b"null"),
        });
        self.push_each(splice.member(Named::BootstrapRoom.key()), push_decimal);
        if let Some(rid) = rid {
            let out = splice.member(rid.key());
            out.push(b'"');
            out.extend_from_slice(rid_start(endpoint));
            out.extend_from_slice(self.id.rid());
            out.push(b'"');
        }
        if bootstrap.dp_size > 1 {
            let rank = splice.member(Named::DisaggPrefillDpRank.key());
            push_decimal(u64::from(self.prefill.dp_rank), rank);
        }
        let pin = if leg == Leg::Prefill { self.prefill } else { self.decode };
        if pin.in_body {
            push_decimal(u64::from(pin.dp_rank), splice.member(Named::RoutedDpRank.key()));
        }
        splice.finish();
    }

    /// One value, or a list with one for each room.
    fn push_each(&self, out: &mut Vec<u8>, push: impl Fn(u64, &mut Vec<u8>)) {
        if self.rooms.shape() == RoomShape::Range {
            return push(self.rooms.first(), out);
        }
        for (index, room) in self.rooms.iter().enumerate() {
            out.push(if index == 0 { b'[' } else { b',' });
            push(room, out);
        }
        out.push(b']');
    }
}

/// Host of a registry. SGLang 0.5.23 takes IPv6 addresses with and without brackets
/// (`NetworkAddress`), older ones made `{host}:{port}` of it: with brackets both work.
struct Host<'a> {
    name: &'a str,
    is_bare_ipv6: bool,
}

impl<'a> Host<'a> {
    fn of(name: &'a str) -> Self {
        Self { name, is_bare_ipv6: name.contains(':') && !name.starts_with('[') }
    }

    fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.is_bare_ipv6 { b"\"[" } else { b"\"" });
        push_escaped(self.name, out);
        out.extend_from_slice(if self.is_bare_ipv6 { b"]\"" } else { b"\"" });
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// `rid`: the member that will be put anew.
fn sglang_change(named: Named, rid: Option<Named>) -> Change {
    match named {
        Named::BootstrapHost
        | Named::BootstrapPort
        | Named::BootstrapRoom
        | Named::RoutedDpRank
        | Named::DataParallelRank
        | Named::DisaggPrefillDpRank => Change::Cut,
        named if rid == Some(named) => Change::Cut,
        _ => Change::Keep,
    }
}

/// Prefill is to answer with one token, in one piece. At least one, so that it ends at the limit:
/// after a token that ends the answer Mooncake, and NIXL in older vLLM, hand nothing over
/// (`request_finished` of their schedulers).
fn vllm_change(endpoint: Endpoint, leg: Leg, named: Named) -> Change {
    let is_responses = endpoint == Endpoint::Responses;
    match (leg, named) {
        (_, Named::KvTransferParams) => Change::Cut,
        (Leg::Prefill, Named::MaxTokens | Named::MaxCompletionTokens) if !is_responses => {
            Change::Replace(b"1")
        }
        (Leg::Prefill, Named::MaxOutputTokens) if is_responses => Change::Replace(b"1"),
        (Leg::Prefill, Named::Stream) => Change::Replace(b"false"),
        (Leg::Prefill, Named::MinTokens) if has_least(endpoint) => Change::Replace(b"1"),
        (Leg::Prefill, Named::StreamOptions | Named::MinTokens) => Change::Cut,
        _ => Change::Keep,
    }
}

/// The member that limits the answer's length.
fn limit_key(endpoint: Endpoint) -> Named {
    if endpoint == Endpoint::Responses { Named::MaxOutputTokens } else { Named::MaxTokens }
}

/// vLLM knows `min_tokens` there (0.33); not in messages and responses.
fn has_least(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions)
}
