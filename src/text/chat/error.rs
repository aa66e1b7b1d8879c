//! Errors of chat templates: in compiling, and in rendering a body.

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the chat template does not compile: {0}")]
pub struct TemplateError(#[from] minijinja::Error);

/// Why a body was not rendered. The request is still served, but not matched by prefix.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// Not a JSON object, or nested deeper than `JSON_DEPTH_MAX`.
    #[error("the body is not a JSON object that can be read")]
    Body,
    /// The body has no list of messages, and no input that can become a list.
    #[error("the body has no messages")]
    NoMessages,
    /// The form of the body is not supported.
    #[error("not rendered: {0}")]
    Unsupported(&'static str),
    /// The template refused the messages or failed.
    #[error("the chat template failed: {0}")]
    Template(#[from] minijinja::Error),
}

impl RenderError {
    /// True if the template took more than `TEMPLATE_STEPS_MAX` steps.
    #[must_use]
    pub fn is_out_of_steps(&self) -> bool {
        let Self::Template(error) = self else { return false };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            let engine = error.downcast_ref::<minijinja::Error>();
            if engine.is_some_and(|error| error.kind() == minijinja::ErrorKind::OutOfFuel) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}
