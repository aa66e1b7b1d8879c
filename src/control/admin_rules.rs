//! Who may call the admin API, and which certificates callers see. Files are read again with the
//! configuration, of the paths that the router was started with.

use super::tls::{AdminTls, ServerTls};
use forebay_admin::{Access, AdminAcceptor, AdminTokens};
use forebay_config::{Config, read_token};
use std::path::PathBuf;
use std::sync::Arc;
use tracing::error;

const TOKEN: &str = "admin_token_file";
const READ_TOKEN: &str = "admin_read_token_file";

/// What the admin port asks of callers, and shows them.
#[derive(Debug)]
pub(super) struct AdminRules {
    tls: Option<AdminTls>,
    access: Arc<Access>,
}

impl AdminRules {
    pub(super) fn new(tls: Option<ServerTls>, access: Access) -> Self {
        Self { tls: tls.map(AdminTls::new), access: Arc::new(access) }
    }

    /// The certificate that callers are shown.
    pub(super) fn shown(&self) -> Option<AdminAcceptor> {
        self.tls.as_ref().map(AdminTls::shown)
    }

    pub(super) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }

    /// Reads all files again; true if there is another token. What cannot be read leaves in use
    /// what was.
    pub(super) fn read_again(&mut self, config: &Config) -> bool {
        self.tls.iter_mut().for_each(|tls| tls.read_again(config));
        match admin_tokens(config) {
            Ok(tokens) => self.access.set_tokens(tokens),
            Err((key, what)) => {
                error!("`{key}` {what}; the tokens of before stay");
                false
            }
        }
    }
}

/// The tokens that callers of the admin API have to know.
///
/// # Errors
/// The key of the file that cannot be read, and why.
pub fn admin_tokens(config: &Config) -> Result<AdminTokens, (&'static str, String)> {
    let token = |key, path: &Option<PathBuf>| {
        path.as_deref().map(read_token).transpose().map_err(|what| (key, what))
    };
    Ok(AdminTokens {
        change: token(TOKEN, &config.admin_token_file)?,
        read: token(READ_TOKEN, &config.admin_read_token_file)?,
    })
}
