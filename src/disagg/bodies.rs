//! The bodies of both legs: the client's body, with the members of the flow.

use super::ids::KvTransferId;
use super::members::{Member, MemberName};
use super::rooms::{RoomSet, RoomShape};
use super::splice::{Change, Splice, push_escaped, push_string};
use super::split_request::{SplitRequest, rid_key, rid_start};
use forebay_fleet::worker::{Bootstrap, KvTransfer, Leg, MooncakeSource, PushSource};
use forebay_http1::push_decimal;
use forebay_prompt::parse::Endpoint;

/// Bytes that a flow adds to a body with a single prompt; only to reserve memory.
const ADDED_BYTES: usize = 512;
/// Bytes added for each further prompt of a list, about.
pub const ADDED_BYTES_PER_ROOM: usize = 64;

/// Parameters of a vLLM prefill leg: compute the KV, and keep it for a decode rank.
const REMOTE_DECODE: &[u8] = br#"{"do_remote_decode":true,"do_remote_prefill":false"#;

/// The data-parallel rank of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPin {
    /// Number of the rank inside the worker.
    pub dp_rank: u32,
    /// Number of ranks of the worker.
    pub dp_size: u32,
    /// Several ranks share a port, so the body must specify the rank (SGLang). A header must not
    /// specify it too.
    pub in_body: bool,
}

/// A request that is split, and the ranks of its legs.
#[derive(Clone, Copy, Debug)]
pub struct LegBodies<'a> {
    /// Body of the client.
    pub body: &'a [u8],
    /// Result of [`inspect`](super::inspect()) for the body.
    pub wanted: &'a SplitRequest,
    /// KV transfer of the prefill rank.
    pub kv_transfer: &'a KvTransfer,
    pub prefill: RankPin,
    pub decode: RankPin,
    /// Rooms of the prefill rank ([`SplitRequest::rooms`]); only for [`KvTransfer::Bootstrap`].
    pub rooms: RoomSet,
    /// Id of this attempt at both engines.
    pub id: KvTransferId,
}

/// `X-Request-Id` of both legs. vLLM pairs the legs of a push by this id, so a push uses the id of
/// the attempt: two requests with the same id of their clients would get each other's KV.
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

/// Appends the body of the decode leg. `handed` is the object from prefill's answer, for
/// [`KvTransfer::TwoPhase`]; without the object, decode computes the whole request.
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
        let lacks = |named: &MemberName| leg == Leg::Prefill && self.wanted.last(*named).is_none();
        let least = has_least(endpoint).then_some(MemberName::MinTokens);
        for named in [Some(limit), least].into_iter().flatten().filter(lacks) {
            splice.member(named.key()).push(b'1');
        }
        params(splice.member(MemberName::KvTransferParams.key()));
        splice.finish();
    }

    /// Appends the source of a push (vLLM 0.33, `kv_connector/v1/nixl/push_scheduler.py`). An IPv6
    /// address has no brackets here, because vLLM adds them (`make_zmq_path`).
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

    /// Appends the body of an SGLang leg; only the pin differs between the legs. Members of the
    /// client are cut before new members are added, because some parsers refuse duplicate keys.
    fn bootstrap(&self, bootstrap: &Bootstrap, leg: Leg, out: &mut Vec<u8>) {
        let endpoint = self.wanted.endpoint;
        let rid = rid_key(endpoint).filter(|rid| !self.wanted.is_set(*rid, self.body));
        let change = |member: &Member| sglang_change(member.named, rid);
        let rooms = self.rooms.iter().count();
        let added = ADDED_BYTES.saturating_add(rooms.saturating_mul(ADDED_BYTES_PER_ROOM));
        let mut splice = Splice::begin(self.body, self.wanted, change, added, out);
        let host = Host::of(&bootstrap.host);
        self.push_each(splice.member(MemberName::BootstrapHost.key()), |_, out| host.push(out));
        self.push_each(splice.member(MemberName::BootstrapPort.key()), |_, out| {
            match bootstrap.port {
                Some(port) => push_decimal(u64::from(port), out),
                None => out.extend_from_slice(b"null"),
            }
        });
        self.push_each(splice.member(MemberName::BootstrapRoom.key()), push_decimal);
        if let Some(rid) = rid {
            let out = splice.member(rid.key());
            out.push(b'"');
            out.extend_from_slice(rid_start(endpoint));
            out.extend_from_slice(self.id.rid());
            out.push(b'"');
        }
        if bootstrap.dp_size > 1 {
            let rank = splice.member(MemberName::DisaggPrefillDpRank.key());
            push_decimal(u64::from(self.prefill.dp_rank), rank);
        }
        let pin = if leg == Leg::Prefill { self.prefill } else { self.decode };
        if pin.in_body {
            push_decimal(u64::from(pin.dp_rank), splice.member(MemberName::RoutedDpRank.key()));
        }
        splice.finish();
    }

    /// Appends a single value, or a list with a value for each room.
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

/// Host of a registry. SGLang 0.5.23 accepts IPv6 addresses with and without brackets
/// (`NetworkAddress`); older versions format `{host}:{port}`. Brackets work with both.
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

/// `rid` is the member that the flow adds itself.
fn sglang_change(named: MemberName, rid: Option<MemberName>) -> Change {
    match named {
        MemberName::BootstrapHost
        | MemberName::BootstrapPort
        | MemberName::BootstrapRoom
        | MemberName::RoutedDpRank
        | MemberName::DataParallelRank
        | MemberName::DisaggPrefillDpRank => Change::Cut,
        named if rid == Some(named) => Change::Cut,
        _ => Change::Keep,
    }
}

/// Limits the prefill leg to a response of 1 token, not streamed. The minimum is 1 token too, so
/// that the response ends at the limit: after a stop token, Mooncake, and NIXL in older vLLM, send
/// no parameters (`request_finished` of their schedulers).
fn vllm_change(endpoint: Endpoint, leg: Leg, named: MemberName) -> Change {
    let is_responses = endpoint == Endpoint::Responses;
    match (leg, named) {
        (_, MemberName::KvTransferParams) => Change::Cut,
        (Leg::Prefill, MemberName::MaxTokens | MemberName::MaxCompletionTokens)
            if !is_responses =>
        {
            Change::Replace(b"1")
        }
        (Leg::Prefill, MemberName::MaxOutputTokens) if is_responses => Change::Replace(b"1"),
        (Leg::Prefill, MemberName::Stream) => Change::Replace(b"false"),
        (Leg::Prefill, MemberName::MinTokens) if has_least(endpoint) => Change::Replace(b"1"),
        (Leg::Prefill, MemberName::StreamOptions | MemberName::MinTokens) => Change::Cut,
        _ => Change::Keep,
    }
}

/// The member that limits the tokens of the response.
fn limit_key(endpoint: Endpoint) -> MemberName {
    if endpoint == Endpoint::Responses {
        MemberName::MaxOutputTokens
    } else {
        MemberName::MaxTokens
    }
}

/// True where vLLM supports `min_tokens` (0.33): not in messages and responses.
fn has_least(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions)
}
