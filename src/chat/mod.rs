//! Chat templates: messages to the text that the engine tokenizes. Compiled by the control plane, used by
//! every shard through `Arc`; pure functions of their arguments.

mod message;
mod template;
mod unescape;

pub use message::{ChatRole, MessageSpan};
pub use template::ChatTemplate;
pub use unescape::unescape_into;
