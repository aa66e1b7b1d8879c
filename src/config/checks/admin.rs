//! Checks the keys of the admin API.

use super::check::{Check, collide, folder_fault};
use crate::sections::schema::Config;
use crate::sections::tls::AdminTlsConfig;
use crate::values::admin_address::AdminAddress;
use crate::values::token::read_token;
use forebay_base::FileFault;
use forebay_tls::CertificateFiles;
use rustix::fs::{Access, access};
use std::net::SocketAddr;
use std::path::Path;

/// Shorter tokens can be guessed.
const TOKEN_BYTES_LEAST: usize = 16;

impl Check<'_> {
    pub(crate) fn admin(&mut self, config: &Config) {
        match &config.admin {
            AdminAddress::Tcp(admin) => self.admin_port(config, *admin),
            AdminAddress::Unix(path) => self.admin_socket(path),
        }
        self.admin_tls(config);
        let token = self.token("admin_token_file", config.admin_token_file.as_deref());
        let read = self.token("admin_read_token_file", config.admin_read_token_file.as_deref());
        if read.is_some() && config.admin_token_file.is_none() {
            let what = "`admin_read_token_file` without `admin_token_file`";
            let help = "give the calls that change something a token of their own";
            self.error("admin_read_token_file", what, help);
        }
        if config.admin_on_client_port && config.admin_token_file.is_none() {
            let what = "`admin_on_client_port` without `admin_token_file`";
            self.error("admin_on_client_port", what, "set the token that these calls need");
        }
        if read.is_some() && read == token {
            let what = "`admin_read_token_file` and `admin_token_file` hold the same token";
            self.error("admin_read_token_file", what, "readers could change everything");
        }
    }

    fn admin_port(&mut self, config: &Config, admin: SocketAddr) {
        if collide(config.listen, admin) {
            let what = format!("`admin` {admin} collides with `listen` {}", config.listen);
            self.error(self.either("admin", "listen"), what, "give each its own port");
        }
        let is_open = config.admin_token_file.is_none() && config.admin_tls.client_ca.is_none();
        if is_open && !admin.ip().is_loopback() {
            let what = format!("`admin` {admin} can be reached from outside and asks for no token");
            self.warning("admin", what, "set `admin_token_file`, or bind it to 127.0.0.1");
        } else if !admin.ip().is_loopback() {
            self.admin_network(config, admin);
        }
    }

    /// Checks the admin API's exposure on a network.
    fn admin_network(&mut self, config: &Config, admin: SocketAddr) {
        if config.admin_tls.cert.is_none() {
            let what = format!("`admin` {admin} takes tokens in clear text");
            self.warning("admin", what, "set `admin_tls.cert` and `admin_tls.key`");
        }
        let asks_readers =
            config.admin_read_token_file.is_some() || config.admin_tls.client_ca.is_some();
        if !asks_readers {
            let what = format!("`admin` {admin} shows metrics and workers to anybody");
            self.warning("admin", what, "set `admin_read_token_file`");
        }
    }

    fn admin_tls(&mut self, config: &Config) {
        let AdminTlsConfig { cert, key, client_ca } = &config.admin_tls;
        match (cert, key) {
            (Some(cert), Some(key)) => {
                let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
                self.certificate("admin_tls", &files);
            }
            (None, None) if client_ca.is_none() => return,
            _ => {
                let what = "`[admin_tls]` needs `cert` and `key`";
                self.error("admin_tls", what, "add both, or neither");
            }
        }
        if let Some(path) = client_ca {
            self.authorities("admin_tls.client_ca", "admin_tls.client_ca", path);
        }
        if config.admin.port_address().is_none() {
            let what = "`[admin_tls]` with a Unix socket";
            self.error("admin_tls", what, "the mode of the socket says who may call");
        }
    }

    fn admin_socket(&mut self, path: &Path) {
        let folder = path.parent().unwrap_or(Path::new("/"));
        if path.is_dir() {
            let what = format!("`admin` unix:{} is a directory", path.display());
            self.error("admin", what, "name a file in it");
        } else if let Some(FileFault { what, help }) = folder_fault(folder) {
            self.error("admin", format!("`admin`: {what}"), help);
        } else if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            let what = format!("`admin`: no socket can be made in {}", folder.display());
            self.warning("admin", what, "the user who runs the router has to be able to");
        }
    }

    /// The token in the file; an unreadable file is a finding.
    pub(crate) fn token(&mut self, key: &str, path: Option<&Path>) -> Option<String> {
        match read_token(path?) {
            Ok(token) => {
                if token.len() < TOKEN_BYTES_LEAST {
                    let what = format!("`{key}` holds a token of {} characters", token.len());
                    self.warning(key, what, "write a longer one: openssl rand -hex 32");
                }
                Some(token)
            }
            Err(FileFault { what, help }) => {
                self.error(key, format!("`{key}` {what}"), help);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ConfigText;
    use crate::Flags;
    use crate::checks::test_findings::findings;
    use crate::load;
    use std::path::Path;

    fn file(folder: &Path, name: &str, text: &str) -> String {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    const LONG: &str = "0123456789abcdef\n";
    const OTHER: &str = "fedcba9876543210\n";

    #[test]
    fn readers_have_another_token() {
        let folder = tempfile::tempdir().unwrap();
        let read = file(folder.path(), "read", LONG);
        let change = file(folder.path(), "change", OTHER);
        let both = |read: &str, change: &str| {
            findings(&format!(
                "admin_read_token_file = \"{read}\"\nadmin_token_file = \"{change}\""
            ))
        };
        assert!(both(&read, &change).is_empty());
        let same = both(&change, &change);
        assert!(same.len() == 1 && same[0].contains("hold the same token"), "{same:?}");
        let alone = findings(&format!("admin_read_token_file = \"{read}\""));
        assert!(alone.len() == 1 && alone[0].contains("without `admin_token_file`"), "{alone:?}");
        let none = both("/nonexistent", &change);
        assert!(none.len() == 1 && none[0].contains("`admin_read_token_file` /non"), "{none:?}");
    }

    #[test]
    fn the_secret_of_images_is_read_too() {
        let none = findings("image_key_file = \"/nonexistent\"");
        assert!(none.len() == 1 && none[0].contains("`image_key_file` /non"), "{none:?}");
    }

    #[test]
    fn images_get_names_from_policy_kv_alone() {
        let folder = tempfile::tempdir().unwrap();
        let secret = file(folder.path(), "secret", LONG);
        let with = |policy: &str| {
            let text = format!(
                "policy = \"{policy}\"\nimage_key_file = \"{secret}\"\n\
                 [[worker]]\nurl = \"http://a:1\"\n"
            );
            let loaded = load(Some(ConfigText { name: "f", text: &text }), &Flags::default());
            loaded.findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(with("kv"), [""; 0]);
        let found = with("session");
        let expected = "f:2:18: warning: `image_key_file` is not used: the policy is \"session\"";
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }

    #[test]
    fn a_socket_needs_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().display();
        assert!(findings(&format!("admin = \"unix:{there}/admin.sock\"")).is_empty());
        for (path, says) in [
            (format!("unix:{there}"), "is a directory"),
            (format!("unix:{there}/none/admin.sock"), "is not a directory"),
            ("unix:admin.sock".to_owned(), "begins with /"),
        ] {
            let found = findings(&format!("admin = \"{path}\""));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }
}
