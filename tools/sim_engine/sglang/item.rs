//! An answer to a prompt, as a task: connects to its other leg where the engine has a role, runs on
//! a rank, and sends its tokens. Ends early when aborted by its id, or when its client has been
//! gone for a while.

use super::error::Failure;
use super::rooms::Room;
use crate::batching::ranks::{AcceptedRequest, ScheduleRefusal};
use crate::batching::schedule::{LegPart, TokenStep, Work};
use crate::config::EngineRole;
use crate::state::EngineState;
use crate::transfer::{
    HandedKv, Patience, SeekError, TransferPeer, TransferRequest, prompt_digest,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Work of an item.
#[derive(Debug)]
pub(super) struct SglangItem {
    pub(super) rid: String,
    pub(super) room: Option<Room>,
    pub(super) prompt: Arc<[u32]>,
    /// Position among the answers to the prompt.
    pub(super) choice: u32,
    pub(super) output_tokens: usize,
    pub(super) salt: String,
    pub(super) dp_rank: Option<usize>,
    pub(super) prefill_dp_rank: Option<i64>,
}

/// Progress of an item.
#[derive(Debug)]
pub(super) enum ItemProgress {
    Token {
        token_id: u32,
        cached_tokens: usize,
        dp_rank: usize,
        last: bool,
    },
    /// The item was aborted by its id.
    Aborted,
    Failed(Failure),
}

/// An event and the position of its item.
pub(super) type ItemEvent = (usize, ItemProgress);

/// Sender of an item's events.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) index: usize,
    pub(super) events: mpsc::UnboundedSender<ItemEvent>,
}

impl Sink {
    fn send(&self, event: ItemProgress) {
        // Fails when the client left, and then the item ends soon.
        let _client_left = self.events.send((self.index, event));
    }
}

/// Runs an item to its end; without a client it ends after `patience`.
pub(super) async fn run(state: EngineState, item: SglangItem, sink: Sink, patience: Duration) {
    let mut aborts = state.requests.aborts.listen();
    let _counted = state.requests.tally.item();
    let closed = async {
        sink.events.closed().await;
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        biased;
        () = aborts.aborted(&item.rid) => {
            state.requests.tally.aborted();
            sink.send(ItemProgress::Aborted);
        }
        () = closed => state.requests.tally.aborted(),
        outcome = work(&state, &item, &sink) => if let Err(failure) = outcome {
            state.requests.tally.failed();
            sink.send(ItemProgress::Failed(failure));
        },
    }
}

async fn work(state: &EngineState, item: &SglangItem, sink: &Sink) -> Result<(), Failure> {
    let room = item.room.as_ref().filter(|room| room.host.as_deref() != Some(FAKE_HOST));
    match (state.config.role, room) {
        (EngineRole::Prefill, Some(room)) => prefill(state, item, room, sink).await,
        (EngineRole::Decode, Some(room)) => decode(state, item, room, sink).await,
        // A prefill engine answers with a single token, also without a decode for its KV.
        (EngineRole::Prefill, None) => {
            let taken = submit(state, item, LegPart::Whole, 1, item.dp_rank).await?;
            forward(taken, sink, None).await
        }
        (EngineRole::Decode, None) => {
            let output = item.output_tokens;
            let taken = submit(state, item, LegPart::Decode, output, item.dp_rank).await?;
            forward(taken, sink, None).await
        }
        (EngineRole::Both, _) => {
            let output = item.output_tokens;
            let taken = submit(state, item, LegPart::Whole, output, item.dp_rank).await?;
            forward(taken, sink, None).await
        }
    }
}

async fn prefill(
    state: &EngineState,
    item: &SglangItem,
    room: &Room,
    sink: &Sink,
) -> Result<(), Failure> {
    let settings = &state.config.transfer.sglang;
    let bootstrap = |why: &str| prefill_failure("bootstrap", item, room, why);
    let offered = state.transfer.offers.offer(key(room.id)).await;
    let mut offer = offered.ok_or_else(|| bootstrap("Duplicate or cancelled bootstrap room"))?;
    let dp_rank = match prefill_rank(item, room, state.config.ranks) {
        Ok(dp_rank) => dp_rank,
        Err(why) => {
            offer.withdraw(&why);
            return Err(bootstrap(&why));
        }
    };
    if room.id == 0 {
        return Err(bootstrap(ROOM_0));
    }
    let asked = tokio::time::timeout(settings.bootstrap_timeout, offer.asked()).await;
    asked.map_err(|_| bootstrap("Request timed out in KVPoll.Bootstrapping"))?;
    let RunningItem { submitted, mut steps } =
        submit(state, item, LegPart::Prefill, 1, Some(dp_rank)).await?;
    let step = steps.recv().await.ok_or_else(stopping)?;
    let TokenStep { token_id, cached_tokens, .. } = step;
    let prompt_tokens = item.prompt.len();
    let prompt_digest = prompt_digest(&item.prompt, &item.salt);
    offer.ready(HandedKv { token_id, cached_tokens, prompt_tokens, prompt_digest, dp_rank });
    let taken = tokio::time::timeout(settings.waiting_timeout, offer.taken()).await;
    let late = "Request timed out waiting for the decode instance";
    taken.map_err(|_| prefill_failure("transfer", item, room, late))?;
    // Its blocks are free from here on.
    drop(submitted);
    sink.send(ItemProgress::Token { token_id, cached_tokens, dp_rank, last: true });
    Ok(())
}

/// The rank that computes the prompt: implied by the room, unless the request specifies another.
fn prefill_rank(item: &SglangItem, room: &Room, rank_count: u32) -> Result<usize, String> {
    let ranks = i64::from(rank_count).max(1);
    let implied = usize::try_from(room.id.rem_euclid(ranks)).unwrap_or_default();
    let dp_rank = item.dp_rank.unwrap_or(implied);
    if item.prefill_dp_rank.is_some() || dp_rank == implied {
        return Ok(dp_rank);
    }
    Err(format!(
        "follow_bootstrap_room conflict: dispatched to dp_rank {dp_rank} but bootstrap_room {} \
         implies dp_rank {implied}. Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to \
         allow mixed routing.",
        room.id
    ))
}

fn prefill_failure(phase: &str, item: &SglangItem, room: &Room, why: &str) -> Failure {
    Failure::internal(format!(
        "Prefill {phase} failed for request rank=0 req.rid='{}' req.bootstrap_room={} with exception \
         KVTransferError(bootstrap_room={}): {why}",
        item.rid, room.id, room.id
    ))
}

async fn decode(
    state: &EngineState,
    item: &SglangItem,
    room: &Room,
    sink: &Sink,
) -> Result<(), Failure> {
    let failed = |why: &str| decode_failure(item, room, why);
    // Offered while it waits, to detect a room that is used twice: a decode engine has a single
    // table of rooms for all prefill engines.
    let waiting = state.transfer.offers.offer(format!("waits in {}", key(room.id))).await;
    let waiting = waiting.ok_or_else(|| failed("Duplicate decode bootstrap room"))?;
    if room.id == 0 {
        return Err(failed(ROOM_0));
    }
    let kv = fetch(state, room).await.map_err(|why| failed(&why))?;
    drop(waiting);
    if item.prefill_dp_rank.is_some_and(|hint| usize::try_from(hint) != Ok(kv.dp_rank)) {
        return Err(failed(&format!("the prompt was computed by dp_rank {}", kv.dp_rank)));
    }
    if (kv.prompt_tokens, kv.prompt_digest)
        != (item.prompt.len(), prompt_digest(&item.prompt, &item.salt))
    {
        return Err(failed("the prefill instance computed another prompt"));
    }
    let output = item.output_tokens;
    let taken = submit(state, item, LegPart::Decode, output, item.dp_rank).await?;
    forward(taken, sink, Some(kv.cached_tokens)).await
}

/// The KV of the room, once the prefill engine has it, or the reason for a failure.
async fn fetch(state: &EngineState, room: &Room) -> Result<HandedKv, String> {
    let settings = &state.config.transfer;
    let lost_after = settings.sglang.prefill_lost_after;
    let patience = Patience {
        total: settings.sglang.waiting_timeout,
        unreached: lost_after.unwrap_or(UNREACHED_MAX),
        lost: lost_after.unwrap_or(LOST_MAX),
    };
    let host = room.host.clone().unwrap_or_default();
    let port = room.port.or(settings.bootstrap_port).unwrap_or(BOOTSTRAP_PORT_DEFAULT);
    let address = format!("{host}:{port}");
    let peer = TransferPeer { host, port };
    let wanted = TransferRequest { peer, key: key(room.id), engine_id: None, patience };
    state.transfer.seeker.take(&wanted).await.map_err(|error| match error {
        SeekError::Unreached => {
            format!("Could not fetch prefill parallel info from bootstrap_addr: {address}")
        }
        SeekError::Lost => {
            format!("Lost connection with prefill instance (bootstrap_addr: {address})")
        }
        SeekError::TimedOut => "Request timed out waiting for the prefill instance".to_owned(),
        SeekError::Prefill(why) => why,
    })
}

fn decode_failure(item: &SglangItem, room: &Room, why: &str) -> Failure {
    Failure::internal(format!(
        "Decode transfer failed for request rank=0 decode_req.req.rid='{}' \
         decode_req.req.bootstrap_room={} with exception KVTransferError(bootstrap_room={}): {why}",
        item.rid, room.id, room.id
    ))
}

/// An item on a rank, with the receiver of its tokens.
struct RunningItem {
    submitted: AcceptedRequest,
    steps: mpsc::UnboundedReceiver<TokenStep>,
}

async fn submit(
    state: &EngineState,
    item: &SglangItem,
    part: LegPart,
    output_tokens: usize,
    dp_rank: Option<usize>,
) -> Result<RunningItem, Failure> {
    let (sink, steps) = mpsc::unbounded_channel();
    let work = Work {
        prompt: item.prompt.to_vec(),
        output: state.encode.tokenizer().answer(&item.prompt, item.choice, output_tokens.max(1)),
        salt: item.salt.clone(),
        part,
    };
    match state.ranks.submit(dp_rank, work, sink).await {
        Ok(submitted) => Ok(RunningItem { submitted, steps }),
        Err(ScheduleRefusal::Refused) => Err(Failure::unavailable("The request queue is full.")),
        Err(ScheduleRefusal::Stopping) => Err(stopping()),
    }
}

/// Forwards every token. `cached_tokens` is the value from the prefill.
async fn forward(
    running: RunningItem,
    sink: &Sink,
    cached_tokens: Option<usize>,
) -> Result<(), Failure> {
    let RunningItem { mut submitted, mut steps } = running;
    let dp_rank = submitted.dp_rank;
    while let Some(step) = steps.recv().await {
        submitted.guard.finished = step.last;
        let cached_tokens = cached_tokens.unwrap_or(step.cached_tokens);
        let token_id = step.token_id;
        let last = step.last;
        sink.send(ItemProgress::Token { token_id, cached_tokens, dp_rank, last });
        if last {
            return Ok(());
        }
    }
    Err(stopping())
}

fn stopping() -> Failure {
    Failure::unavailable("service unavailable")
}

/// Key of a room's offer.
fn key(room: i64) -> String {
    format!("room {room}")
}

/// Host of health checks and warm-ups, which transfer no KV.
const FAKE_HOST: &str = "2.2.2.2";
const ROOM_0: &str = "room 0 stands for metadata that are not ready";
const BOOTSTRAP_PORT_DEFAULT: u16 = 8_998;
/// As in SGLang: 15 attempts at intervals of 1 s.
const UNREACHED_MAX: Duration = Duration::from_secs(15);
/// As in SGLang: two failed checks at intervals of 5 s.
const LOST_MAX: Duration = Duration::from_secs(10);
