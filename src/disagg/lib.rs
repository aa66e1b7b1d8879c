//! Prefill on one rank, decode on another: what each of the two is sent, and what prefill's answer
//! says. Sans-IO.
//!
//! [`inspect`] reads a request once more, only when it is to be split; [`prefill_body`] and
//! [`decode_body`] copy the client's bytes with the members of the flow, never re-serialised.
//!
//! | flow | engine | legs | prefill gets | decode gets |
//! |---|---|---|---|---|
//! | [`KvTransfer::Bootstrap`] | SGLang | together | the room and `rid` | the same |
//! | [`KvTransfer::TwoPhase`] | vLLM, NIXL | prefill first | one token | prefill's parameters |
//! | [`KvTransfer::Push`] | vLLM, NIXL push | together | one token | where the KV comes from |
//! | [`KvTransfer::Mooncake`] | vLLM, Mooncake | together | one token, a transfer id | that id |
//!
//! * The room is `bootstrap_host`, `bootstrap_port` and `bootstrap_room`.
//! * With one token goes `do_remote_decode`.
//! * Prefill's parameters are `kv_transfer_params` of its answer.
//! * The legs of a push have one id ([`legs_request_id`]).
//!
//! # Endpoints
//! Read in the sources of SGLang 0.5.23 and vLLM 0.32 and 0.33:
//! * chat completions and completions: all flows. `/generate` is SGLang's.
//! * `/v1/messages`: both engines pass the members on to the chat they make of it, and vLLM's
//!   answer has `kv_transfer_params` too. SGLang has no name for such a request, so it is ended by
//!   closing its connection alone.
//! * `/v1/responses`: both engines, with `max_output_tokens` as the limit. A push finds its request
//!   by the id, which vLLM makes up for responses, so there it is none. What continues another
//!   response is kept by one worker and is not split.
//! * what vLLM cannot split goes to a decode rank as a whole ([`Wanted::obstacle`]): several
//!   prompts or samples, beam search, scores of the prompt, embeddings, `kv_transfer_params` of the
//!   client's own.
//!
//! [`KvTransfer::Bootstrap`]: forebay_fleet::worker::KvTransfer::Bootstrap
//! [`KvTransfer::TwoPhase`]: forebay_fleet::worker::KvTransfer::TwoPhase
//! [`KvTransfer::Push`]: forebay_fleet::worker::KvTransfer::Push
//! [`KvTransfer::Mooncake`]: forebay_fleet::worker::KvTransfer::Mooncake

mod answer;
mod beginning;
mod bodies;
mod error;
mod ids;
mod inspect;
mod members;
mod mode;
mod rooms;
mod shape;
mod splice;
mod verdict;
mod wanted;
mod words;

pub use answer::{AnswerForm, Handed, PrefillAnswer};
pub use beginning::has_begun;
pub use bodies::{
    ADDED_BYTES_PER_ROOM, LegBodies, RankPin, decode_body, legs_request_id, prefill_body,
};
pub use error::KvTransferError;
pub use ids::{KvTransferId, RID_BYTES};
pub use inspect::inspect;
pub use mode::transfer_mode;
pub use rooms::{RoomSet, RoomShape, Rooms, RoomsWanted};
pub use wanted::{Obstacle, Wanted};
pub use words::{Accusation, message_of};
