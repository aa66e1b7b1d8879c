//! Access to the admin API, and its certificates. Files are read again with the configuration, from
//! the paths of the start.

use super::super::tls::{AdminTls, ServerTls};
use super::handover::AdminSetup;
use forebay_admin::{Access, AdminListener, AdminSocket, AdminTokens, ClientCallers, Question};
use forebay_config::{Config, read_token};
use forebay_tls::Acceptor;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::error;

const TOKEN: &str = "admin_token_file";
const READ_TOKEN: &str = "admin_read_token_file";

/// Tokens that callers of the admin port need, and its certificates.
#[derive(Debug)]
pub(crate) struct AdminRules {
    tls: Option<AdminTls>,
    access: Arc<Access>,
}

impl AdminRules {
    pub(crate) fn new(tls: Option<ServerTls>, access: Access) -> Self {
        Self { tls: tls.map(AdminTls::new), access: Arc::new(access) }
    }

    /// The admin API by these rules, before it answers.
    pub(crate) fn admin_setup(
        &self,
        socket: AdminSocket,
        callers: Option<ClientCallers>,
        questions: mpsc::Sender<Question>,
    ) -> io::Result<AdminSetup> {
        let listener = AdminListener::new(socket, self.tls.as_ref().map(AdminTls::shown))?;
        Ok(AdminSetup { listener, callers, questions, access: Arc::clone(&self.access) })
    }

    /// Certificates of the admin API.
    pub(crate) fn acceptor(&self) -> Option<Acceptor> {
        self.tls.as_ref().map(AdminTls::acceptor)
    }

    /// Reads all files again. Returns the keys of files with another token. An unreadable file
    /// leaves its earlier content in use.
    pub(crate) fn read_again(&mut self, config: &Config) -> Vec<&'static str> {
        self.tls.iter_mut().for_each(|tls| tls.read_again(config));
        let tokens = match admin_tokens(config) {
            Ok(tokens) => tokens,
            Err((key, what)) => {
                error!("`{key}` {what}; the tokens of before stay: mend the file and reload");
                return Vec::new();
            }
        };
        let before = self.access.set_tokens(tokens.clone());
        let is_new =
            [(TOKEN, before.change != tokens.change), (READ_TOKEN, before.read != tokens.read)];
        is_new.into_iter().filter_map(|(key, is_new)| is_new.then_some(key)).collect()
    }
}

/// Tokens that callers of the admin API must send.
///
/// # Errors
/// The configuration key of an unreadable file, and the fault.
pub fn admin_tokens(config: &Config) -> Result<AdminTokens, (&'static str, String)> {
    let token = |key, path: &Option<PathBuf>| {
        let read = path.as_deref().map(read_token).transpose();
        read.map_err(|fault| (key, fault.to_string()))
    };
    Ok(AdminTokens {
        change: token(TOKEN, &config.admin_token_file)?,
        read: token(READ_TOKEN, &config.admin_read_token_file)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_names_the_tokens_that_changed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, token: &str| {
            let place = folder.path().join(name);
            std::fs::write(&place, token).unwrap();
            Some(place)
        };
        let config = Config {
            admin_token_file: write("change", "one"),
            admin_read_token_file: write("read", "two"),
            ..Config::default()
        };
        let access = Access::new(Vec::new(), admin_tokens(&config).unwrap());
        let mut rules = AdminRules::new(None, access);
        assert!(rules.read_again(&config).is_empty());
        write("read", "three");
        assert_eq!(rules.read_again(&config), [READ_TOKEN]);
        write("change", "no token");
        write("read", "four");
        assert!(rules.read_again(&config).is_empty(), "one is faulty: both stay");
        write("change", "five");
        assert_eq!(rules.read_again(&config), [TOKEN, READ_TOKEN]);
    }
}
