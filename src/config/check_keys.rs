//! What the file of the clients' keys may get wrong, and who may call without one.

use super::check::Check;
use super::finding::{Finding, Origin};
use super::schema::Config;
use forebay_keys::{KeyFileError, read};

impl Check<'_> {
    pub(super) fn keys(&mut self, config: &Config) {
        let Some(path) = &config.api_keys else {
            if !config.listen.ip().is_loopback() {
                let what = format!(
                    "`listen` {} can be reached from outside and asks clients for no key",
                    config.listen
                );
                self.warning("listen", what, "set `api_keys`, or bind it to 127.0.0.1");
            }
            return;
        };
        if !config.flow.queue.tenant_header.is_empty() {
            let what = "`queue.tenant_header` is not read while `api_keys` is set";
            self.warning("queue.tenant_header", what, "remove one of the two");
        }
        match read(path) {
            Ok(keys) if keys.keys().is_empty() => {
                let what = format!("`api_keys` {} holds no key", path.display());
                self.warning("api_keys", what, "add one with `forebay key add`");
            }
            Ok(_) => {}
            Err(KeyFileError::Unreadable(what)) => {
                let what = format!("`api_keys`: {what}");
                self.error("api_keys", what, "write it with `forebay key add`");
            }
            Err(KeyFileError::Faulty(faults)) => {
                let name = path.display().to_string();
                self.findings.extend(faults.into_iter().map(|fault| {
                    let (line, column) = (fault.line, fault.column);
                    let origin = Origin::File { name: name.clone(), line, column };
                    Finding::error(origin, fault.what, fault.help)
                }));
            }
        }
    }
}
