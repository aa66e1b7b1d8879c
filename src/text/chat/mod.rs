//! Chat templates: messages to the text that the engine tokenizes. Compiled by the control plane,
//! used by every shard through `Arc`; pure functions of their arguments (and of the date, for
//! templates that print it).
//!
//! There are two ways to render. [`ChatTemplate::render_full`] parses the body and runs the
//! template as the engine does. [`ChatTemplate::render_plain`] joins plain messages with literals
//! that `plan` has learnt from the template and checked against it; it declines other messages.

mod anthropic;
mod printing;
mod date;
mod encoded_prompt;
mod encoder;
mod environment;
mod error;
mod harmony;
mod layers;
mod load;
mod message;
mod methods;
mod mistral;
mod plan;
mod renderer;
mod rules;
mod frontends;
mod shape;
mod source;
mod special;
mod steps;
mod template;
mod values;

pub use date::{strftime, utc_now};
pub use encoder::ChatEncoder;
pub use error::{RenderError, TemplateError};
pub use layers::has_layers_that_forget;
pub use load::{
    LoadError, ModelTextParts, find_image_tokens, find_model_dir, has_tokenizer, load_model_text,
    load_model_text_for,
};
pub use message::{ChatApi, ChatRole, MessageSpan};
pub use mistral::{MistralEncoder, MistralVersion};
pub use rules::EngineRules;
pub use special::SpecialTokens;
pub use steps::{EncoderSteps, encoder_steps};
pub use template::ChatTemplate;
