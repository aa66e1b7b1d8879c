//! Prefill on a rank, decode on another: the bodies of both legs, and the answer of the prefill
//! leg. Sans-IO.
//!
//! [`inspect`] reads a request a second time, only before a split; [`prefill_body`] and
//! [`decode_body`] copy the client's bytes with the members of the flow, never re-serialized.
//!
//! | flow | engine | legs | prefill gets | decode gets |
//! |---|---|---|---|---|
//! | [`KvTransfer::Bootstrap`] | SGLang | together | the room and `rid` | the same |
//! | [`KvTransfer::TwoPhase`] | vLLM, NIXL | prefill first | token limit | prefill's parameters |
//! | [`KvTransfer::Push`] | vLLM, NIXL push | together | token limit | source of the KV |
//! | [`KvTransfer::Mooncake`] | vLLM, Mooncake | together | token limit, transfer id | that id |
//!
//! * The room is `bootstrap_host`, `bootstrap_port` and `bootstrap_room`.
//! * The token limit is 1, and comes with `do_remote_decode`.
//! * Prefill's parameters are `kv_transfer_params` of its answer.
//! * The legs of a push share an id ([`legs_request_id`]).
//!
//! # Endpoints
//! From the sources of SGLang 0.5.23 and vLLM 0.32 and 0.33:
//! * chat completions and completions: all flows. Only SGLang has `/generate`.
//! * `/v1/messages`: both engines copy the members to the chat request that they derive, and vLLM's
//!   answer also has `kv_transfer_params`. SGLang has no id for such a request, so only closing the
//!   connection aborts it.
//! * `/v1/responses`: both engines, with `max_output_tokens` as the limit. Not for a push, which
//!   finds its request by the id, because vLLM generates ids of responses itself. A request that
//!   continues a response is not split, because a single worker stores that response.
//! * requests that vLLM cannot split go to a decode rank as a whole ([`SplitRequest::obstacle`]):
//!   several prompts or samples, beam search, scores of the prompt, embeddings, the client's own
//!   `kv_transfer_params`.
//!
//! [`KvTransfer::Bootstrap`]: forebay_fleet::worker::KvTransfer::Bootstrap
//! [`KvTransfer::TwoPhase`]: forebay_fleet::worker::KvTransfer::TwoPhase
//! [`KvTransfer::Push`]: forebay_fleet::worker::KvTransfer::Push
//! [`KvTransfer::Mooncake`]: forebay_fleet::worker::KvTransfer::Mooncake

mod answer;
mod stream_start;
mod bodies;
mod error;
mod ids;
mod inspect;
mod members;
mod transfer_mode;
mod rooms;
mod shape;
mod splice;
mod verdict;
mod split_request;
mod accusation;

pub use accusation::{Accusation, message_of};
pub use answer::{AnswerForm, PrefillAnswer, PrefillHandover};
pub use bodies::{
    ADDED_BYTES_PER_ROOM, LegBodies, RankPin, decode_body, legs_request_id, prefill_body,
};
pub use error::KvTransferError;
pub use ids::{KvTransferId, RID_BYTES};
pub use inspect::inspect;
pub use rooms::{RoomRequest, RoomSet, RoomShape, Rooms};
pub use split_request::{Obstacle, SplitRequest};
pub use stream_start::has_begun;
pub use transfer_mode::transfer_mode;
