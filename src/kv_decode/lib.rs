//! Decodes KV-event messages of engines into events ([`KvEvent`]), and the MessagePack of these
//! messages. Sans-IO. The feeds, the recorder and the load reports call the crate on the control
//! plane's thread. Allocates no more than the payload can fill. Must never panic, recurse, or trust
//! a length in a payload.

mod decode;
mod event;
mod fields;
mod images;
pub mod msgpack;

pub use decode::{Batch, BatchHead, Decoder, EventPart};
pub use event::{Attention, BlockRemoved, BlockStored, ExtraKeys, KvEvent, Medium};
pub use images::{BlockImages, ImagesOfBlock};
pub use msgpack::MsgpackError;
