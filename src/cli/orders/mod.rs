//! Commands of every day: each calls the admin API of a running router, and shows
//! the answer as text or JSON.

pub(crate) mod drain;
pub(crate) mod overlap;
pub(crate) mod reload;
mod answer_text;
pub(crate) mod window;
pub(crate) mod workers;
