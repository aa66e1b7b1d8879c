//! decode: what an engine's message says of its caches, as events ([`KvEvent`]), and the
//! MessagePack in which engines write. Sans-IO. The feeds, the recorder and the load reports call
//! it on the control plane's thread. What is allocated fits the payload. Must never panic, recurse,
//! or trust a length that it reads.

mod decode;
mod event;
mod fields;
mod images;
pub mod msgpack;

pub use decode::{Batch, BatchHead, Decoder, EventPart};
pub use event::{Attention, KvEvent, Medium, Removed, Stored};
pub use images::{BlockImages, ImagesOfBlock};
pub use msgpack::MsgpackError;
