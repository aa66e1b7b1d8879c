//! The text for a name that does not resolve: which resolver was asked, for which name, and which
//! key to correct. Each look-up of the process has this text.

use std::fmt::{self, Display, Formatter};

/// A name that the resolver of the system did not resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFault {
    /// The resolver, the name and the fault.
    pub what: String,
    /// Advice with the key.
    pub help: String,
}

impl NameFault {
    /// `key`: the key of the configuration that has the name.
    pub fn new(host: &str, key: &str, fault: impl Display) -> Self {
        Self {
            what: Self::text(host, fault),
            help: format!("look {host} up by hand; correct `{key}`, the records or the resolver"),
        }
    }

    /// The fault without advice, where the reader knows the key.
    pub fn text(host: &str, fault: impl Display) -> String {
        format!("resolver of the system, asked for {host}: {fault}")
    }
}

impl Display for NameFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}. help: {}", self.what, self.help)
    }
}
